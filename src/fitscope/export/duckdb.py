"""Writes the statistics to a DuckDB file, with the tables of `database`. You can add more runs to the file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from fitscope.export.database import Database, fill, not_ours

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    return fill(DuckDB, run, out, sites, stats, force, progress)


MEMORY = "512MB"  #: memory that DuckDB may use besides its input; by default it takes most of the machine's


class DuckDB(Database):
    """A DuckDB file."""

    Error = duckdb.Error

    def _connect(self) -> Any:
        try:
            # An absolute path, so that `:memory:` is a file too.
            return duckdb.connect(str(self._out.absolute()))
        # Another process has the file open, or it is no database; RuntimeError: its name is not UTF-8.
        except (duckdb.Error, RuntimeError) as problem:
            raise not_ours(self._out, problem) from problem

    def _begin(self) -> None:
        self._connection.execute(f"SET memory_limit = '{MEMORY}'")
        self._connection.execute("BEGIN")

    def insert(self, name: str, table: pa.Table) -> None:  # noqa: ARG002
        # DuckDB finds `table` by its name in this frame. DuckDB would keep a registered table, even after it is
        # unregistered, until the transaction ends (duckdb 2.0): the whole of a long run.
        self._connection.execute(f'INSERT INTO {name} BY NAME SELECT * FROM "table"')

    @classmethod
    def is_busy(cls, problem: BaseException) -> bool:
        # Another process has the file open, or this one has, to read only.
        locked = isinstance(problem, duckdb.IOException) and "lock" in str(problem)
        return locked or isinstance(problem, duckdb.ConnectionException)

    @classmethod
    def is_one(cls, start: bytes) -> bool:
        return start[8:12] == b"DUCK"  # the magic bytes follow a checksum

    def _columns(self, name: str, form: pa.Schema) -> tuple[dict[str, str], Collection[str]]:
        self._connection.register("added", form.empty_table())
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM added")
        wanted, there = (
            {row[0]: row[1] for row in self._connection.execute(f"DESCRIBE {table}").fetchall()}
            for table in ("added", name)
        )
        self._connection.unregister("added")
        return wanted, there.keys()
