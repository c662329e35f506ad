"""A training that is exported while it goes on, and what must come of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

from fitscope.export import export_run, live
from fitscope.pipeline.sinks import Sinks
from fitscope.record import Record, Samples
from fitscope.store import RunWriter

T0 = 1_800_000_000.0


ALL = ("tensorboard", "database", "npy")


TABLES = ("runs", "stats", "histograms", "samples")


class Training:
    """An attempt at a run with sinks beside it, which are called as a recorder calls them."""

    def __init__(
        self, root: Path, start: int | None = None, *, only: Iterable[str] = ALL, kind: str = "sqlite"
    ) -> None:
        self.told: list[str] = []
        places = {
            "tensorboard": root / "logs", "database": f"{kind}:///{root / 'all.db'}", "npy": root / "arrays"
        }  # fmt: skip
        to = root / "runs" if start is None else root / "runs" / "r"
        makers = live.sinks(to, **{name: places[name] for name in only})
        if start is None:
            self.writer = RunWriter.create(root / "runs", "r", {"model": {"name": "net", "parameters": 7}})
        else:
            self.writer = RunWriter.attempt(root / "runs", "r", start_step=start)
        self.sinks = Sinks(makers, self.told.append)
        self.sinks.open(self.writer)

    def write(self, records: list[Record], samples: Iterable[Samples] = ()) -> None:
        self.writer.write(records, list(samples))
        self.sinks.write(records, list(samples))

    def flush(self) -> None:
        self.writer.flush()
        self.sinks.flush()

    def close(self) -> None:
        self.sinks.flush()
        self.writer.close()
        self.sinks.close()
        assert self.told == []


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What somebody else sees."""
    with path.open("rb") as file:
        lite = file.read(6) == b"SQLite"
    if not lite:
        with duckdb.connect(str(path), read_only=True) as database:
            return database.execute(query).fetchall()
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def compare_databases(got: Path, wanted: Path) -> None:
    for name in TABLES:
        columns = [row[0] for row in ask(wanted, f"SELECT name FROM pragma_table_info('{name}')")]
        listed = ", ".join(f'"{column}"' for column in columns if column != "exported")
        found = [sorted(map(repr, ask(path, f"SELECT {listed} FROM {name}"))) for path in (got, wanted)]
        assert found[0] == found[1], name
        assert found[1], f"{name} is empty: nothing was compared"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def compare(root: Path, kind: str = "sqlite") -> None:
    """What lies there live is what an export makes of the run."""
    export_run(root / "runs", kind, root / "after.db")
    compare_databases(root / "all.db", root / "after.db")
    export_run(root / "runs", "npy", root / "after")
    assert contents(root / "arrays") == contents(root / "after")
    assert len(contents(root / "after")) >= 3, "too little was compared"
