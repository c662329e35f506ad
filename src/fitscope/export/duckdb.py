"""The statistics in a DuckDB file, tables as in `database`. Further runs can be added to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from fitscope.export.database import TABLES, Database, fill, not_ours

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    return fill(DuckDB, run, out, sites, stats, force, progress)


MEMORY = "512MB"  #: what DuckDB may use beside what it is given; by default it takes most of the machine


class DuckDB(Database):
    """A DuckDB file."""

    Error = duckdb.Error

    def __init__(self, out: Path) -> None:
        self._out = out
        self._connection: Any = None

    def __enter__(self) -> Self:
        try:
            self._connection = duckdb.connect(str(self._out))
        except duckdb.Error as problem:  # another process has it open, or it is something else
            raise not_ours(self._out, problem) from problem
        try:
            self._connection.execute(f"SET memory_limit = '{MEMORY}'")
            self._connection.execute("BEGIN")
            for name, form in TABLES.items():
                self._prepare(name, form)
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            self._connection.close()  # what is not committed by then is gone

    def runs(self) -> list[str]:
        return [run for (run,) in self._connection.execute("SELECT run FROM runs").fetchall()]

    def insert(self, name: str, table: pa.Table) -> None:  # noqa: ARG002
        # DuckDB finds `table` by its name in this frame. What is registered instead would be kept, although
        # unregistered, until the transaction ends (duckdb 2.0): all of a long run.
        self._connection.execute(f'INSERT INTO {name} BY NAME SELECT * FROM "table"')

    def execute(self, statement: str, values: Sequence[Any]) -> None:
        self._connection.execute(statement, values)

    @classmethod
    def is_busy(cls, problem: BaseException) -> bool:
        # Another process has it open; or this one has, to read only.
        locked = isinstance(problem, duckdb.IOException) and "lock" in str(problem)
        return locked or isinstance(problem, duckdb.ConnectionException)

    @classmethod
    def is_one(cls, start: bytes) -> bool:
        return start[8:12] == b"DUCK"  # behind a checksum

    def _prepare(self, name: str, form: pa.Schema) -> None:
        """Makes the table, or adds the columns that an older version of it does not have."""
        self._connection.register("added", form.empty_table())
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM added")
        wanted, there = (
            {row[0]: row[1] for row in self._connection.execute(f"DESCRIBE {table}").fetchall()}
            for table in ("added", name)
        )
        self._connection.unregister("added")
        if "run" not in there:
            raise not_ours(self._out, f"its table {name} has no column run")
        for column in wanted.keys() - there.keys():
            self._connection.execute(f'ALTER TABLE {name} ADD COLUMN "{column}" {wanted[column]}')
