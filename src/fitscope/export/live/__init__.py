"""Exports during training: the files that `Scope(tensorboard=…, database=…, npy=…)` writes in addition to the run.

Each export is a sink (`pipeline/sinks.py`). It receives the same records as the run, on the same thread. At the end its files equal
those of `fitscope export`, because it uses the same code. If a later attempt repeats a step, the sink replaces the earlier data.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fitscope.errors import StoreError, WatchError, one_of
from fitscope.read.run import Run
from fitscope.store import schema
from fitscope.store.places import existing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fitscope.export.database import Database
    from fitscope.record import Record, Samples
    from fitscope.store import Objects, RunWriter

Say = Callable[[str], None]


class Live(Protocol):
    """The interface of a sink for the capturing side."""

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


Make = Callable[["RunWriter", Say], Live]

#: The class for each scheme, which is also the name of its module.
DATABASES = {"duckdb": "DuckDB", "sqlite": "SQLite"}


def sinks(
    to: str | os.PathLike[str] | Objects,
    *,
    tensorboard: str | os.PathLike[str] | None = None,
    database: str | None = None,
    npy: str | os.PathLike[str] | None = None,
) -> dict[str, Make]:
    """The factories of the requested sinks. A setting that cannot work raises an error now. This creates nothing yet."""
    found: dict[str, Make] = {}
    try:
        if tensorboard is not None:
            found["tensorboard"] = _tensorboard(_path("tensorboard", tensorboard))
        if database is not None:
            found["database"] = _database(database)
        if npy is not None:
            found["npy"] = _npy(_path("npy", npy), to)
    except StoreError as problem:
        raise WatchError(problem.expected, problem.received, problem.fix) from problem
    return found


def run_of(writer: RunWriter) -> Run:
    """The growing run, opened for reading."""
    return Run(writer.run, json.loads(writer.run.get(schema.RUN)))


def start_of(run: Run, attempt: int) -> int:
    """The step at which an attempt started."""
    return next(int(a["start_step"]) for a in run.attempts if int(a["attempt"]) == attempt)


def _tensorboard(logs: Path) -> Make:
    from fitscope.export import tensorboard

    tensorboard.package()
    _folder(logs)
    return partial(_events, logs)


def _events(logs: Path, writer: RunWriter, _: Say) -> Live:
    from fitscope.export.live.events import LiveEvents

    return LiveEvents(logs, run_of(writer), writer.number)


def _database(url: str) -> Make:
    from fitscope.export import database

    kind, out = _parsed(url)
    database.check(kind, out)
    return partial(_tables, kind, out)


def _tables(kind: type[Database], out: Path, writer: RunWriter, _: Say) -> Live:
    from fitscope.export.live.tables import LiveTables

    return LiveTables(kind, out, run_of(writer), writer.number, writer.rank)


def _npy(out: Path, to: Any) -> Make:
    from fitscope.export.live.arrays import check

    _folder(out)
    goes_on = existing(to)
    check(out, None if goes_on is None else goes_on[1])
    return partial(_arrays, out)


def _arrays(out: Path, writer: RunWriter, say: Say) -> Live:
    from fitscope.export.live.arrays import LiveArrays

    return LiveArrays(out, run_of(writer), writer.number, say)


def _parsed(url: Any) -> tuple[type[Database], Path]:
    """Parses a database URL: three slashes and a relative path, or four slashes and an absolute path."""
    text = url if isinstance(url, str) else repr(url)
    scheme, colon, rest = text.partition(":")
    examples = " or ".join(f"'{name}:///stats.{name}'" for name in DATABASES)
    if not colon or not isinstance(url, str):
        raise WatchError("`database` to be an address", repr(url), f"Use {examples}")
    if scheme not in DATABASES:
        raise WatchError("`database` to be of a known kind", repr(url), one_of(DATABASES, scheme))
    if not rest.startswith("///") or not rest[3:] or rest.endswith("/"):
        raise WatchError(
            "a file in `database`, after three slashes",
            repr(url),
            f"Use {examples}; an absolute path has four",
        )
    kind: type[Database] = getattr(importlib.import_module(f"fitscope.export.{scheme}"), DATABASES[scheme])
    return kind, Path(rest[3:])


def _path(name: str, value: Any) -> Path:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text or "://" in text:
        raise WatchError(f"`{name}` to be a directory on this machine", repr(value), "Name a directory")
    return Path(text)


def _folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise StoreError("a directory", f"{str(path)!r}, a file", "Choose another name")


__all__ = ["Live", "Make", "run_of", "sinks", "start_of"]
