"""Writes the statistics to an SQLite file, with the tables of `database`. You can add more runs to the file.

Shapes are JSON. SQLite has no NaN and stores NULL: for a NaN scalar, `value` is NULL and `nans` is 1.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from fitscope.export.csv import with_texts
from fitscope.export.database import Database, fill

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run

INDEXED = ("stats", "histograms")  #: the tables that users query by site
BATCH_ROWS = 5_000  #: rows turned into Python objects at once


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    return fill(SQLite, run, out, sites, stats, force, progress)


class SQLite(Database):
    """An SQLite file."""

    Error = sqlite3.Error

    def _connect(self) -> sqlite3.Connection:
        # An absolute path, so that `:memory:` is a file too.
        return sqlite3.connect(self._out.absolute(), isolation_level=None)

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def insert(self, name: str, table: pa.Table) -> None:
        names = ", ".join(f'"{column}"' for column in table.column_names)
        places = ", ".join("?" * table.num_columns)
        for start in range(0, table.num_rows, BATCH_ROWS):
            batch = with_texts(table.slice(start, BATCH_ROWS))
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            self._connection.executemany(f"INSERT INTO {name} ({names}) VALUES ({places})", rows)

    @classmethod
    def is_busy(cls, problem: BaseException) -> bool:
        code = getattr(problem, "sqlite_errorcode", None)  # SQLite's own error code
        return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    @classmethod
    def is_one(cls, start: bytes) -> bool:
        return start.startswith(b"SQLite format 3\0")

    def _prepare(self, name: str, form: pa.Schema) -> None:
        super()._prepare(name, form)
        if name in INDEXED:
            self._connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_by_site ON {name} (run, site, step)")

    def _columns(self, name: str, form: pa.Schema) -> tuple[dict[str, str], Collection[str]]:
        wanted = {field.name: _type(field.type) for field in form}
        columns = ", ".join(f'"{column}" {kind}' for column, kind in wanted.items())
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        return wanted, {row[1] for row in self._connection.execute(f"PRAGMA table_info({name})")}


def _type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"
