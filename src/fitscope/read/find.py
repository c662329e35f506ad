"""Finds runs: the run at a path, the newest run in a directory, or a list of all runs there."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

from fitscope.errors import RunError, StoreError, one_of
from fitscope.read import untrusted
from fitscope.read.completion import offer_names
from fitscope.read.run import Run
from fitscope.read.state import RunState
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.places import alone, in_utf8, is_local, place

if TYPE_CHECKING:
    import pandas as pd

    from fitscope.read.many import ManyRuns

AHEAD = 60 * 10**9  #: nanoseconds by which the clocks of several machines may differ

Path = str | os.PathLike[str] | Objects


@dataclass(frozen=True, slots=True)
class Brief:
    """A summary of one run, as listed by `fs.runs`."""

    id: str
    path: str
    created: datetime | None
    status: str  #: running, complete, interrupted, failed, or unreadable
    last_step: int | None  #: the last recorded step
    bytes: int
    model: str | None
    problem: str | None = None  #: why the run cannot be read
    run: Run | None = field(default=None, repr=False, compare=False)  #: the run itself, opened


class Runs(Sequence[Brief]):
    """The runs at a place, oldest first. A prompt and a notebook show it as a table. It opens a run when needed."""

    def __init__(
        self, find: Callable[[], list[Brief]], objects: Objects, folders: Sequence[str] | None = None
    ) -> None:
        self._find = find
        self._objects = objects
        self._folders = folders  # None: all folders

    @functools.cached_property
    def _briefs(self) -> list[Brief]:
        return self._find()

    @functools.cached_property
    def _together(self) -> ManyRuns:
        from fitscope.read.many import ManyRuns

        there = self._objects.list()
        if schema.RUN in there:
            raise RunError(
                "a directory with runs",
                f"a single run at {self._objects.describe()!r}",
                "Use fs.open(path).sql(query)",
            )
        folders = self._folders
        if folders is None:
            folders = [name[:-1] for name in there if name.endswith("/")]
        return ManyRuns(self._objects, folders, lambda name: _state(self._objects.folder(name)))

    @overload
    def __getitem__(self, at: SupportsIndex) -> Brief: ...
    @overload
    def __getitem__(self, at: slice) -> Runs: ...
    def __getitem__(self, at: SupportsIndex | slice) -> Brief | Runs:
        if not isinstance(at, slice):
            return self._briefs[at]
        some = self._briefs[at]
        return Runs(lambda: some, self._objects, [_folder(brief.path) for brief in some])

    def __len__(self) -> int:
        return len(self._briefs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._briefs == list(other)

    def sql(self, query: str) -> pd.DataFrame:
        """Runs a DuckDB query over the tables of all runs: `stats` and `samples`, each with a column `run`, and `runs`.

        It does not open each run, so thousands are fine. `runs` has a row for each run (`run`, `path`, `created`, `status`, `last_step`,
        `bytes`, `model`); for a query that reads from it, each run is opened once.
        """
        return self._together.ask(query, self._table)

    def _table(self) -> pd.DataFrame:
        import pandas as pd

        columns = ("path", "created", "status", "last_step", "bytes", "model")
        rows = [{"run": brief.id, **{name: getattr(brief, name) for name in columns}} for brief in self]
        for row in rows:
            row["path"] = in_utf8(row["path"])
        return pd.DataFrame(rows, columns=["run", *columns])

    def __repr__(self) -> str:
        from fitscope.show.cards import runs_text

        return runs_text(self)

    def _repr_html_(self) -> str:
        from fitscope.show.cards import runs_html

        return runs_html(self)


class HasPath(Protocol):
    """An object that knows the path of its run: a scope, a run, or a row of `fs.runs`."""

    @property
    def path(self) -> str | None: ...


def open(path: Path | HasPath = "runs", run: str | None = None) -> Run:  # noqa: A001 - fs.open(…) is the name people expect
    """Opens a run.

    Args:
        path: A run, or a directory with runs: a path or URL. A scope, a row of `fs.runs` or an open run stands for its run.
        run: The id of a run in that directory. The newest run by default.
    """
    known = path.run if isinstance(path, Brief) else path
    if isinstance(known, Run) and run is None:
        return _open(known._state.objects)
    place = path if isinstance(path, str | os.PathLike | Objects) else _path_of(path)
    with _readable(place):
        return _find(_place(place), run)


def _path_of(known: HasPath) -> str:
    path = getattr(known, "path", known)
    if path is None:
        raise RunError("a scope with a run", f"{known!r}, which has no run yet", "Train with it first")
    return path  # type: ignore[return-value]  # anything else: `place` raises the error


def _find(objects: Objects, run: str | None) -> Run:
    if run is not None:
        ids = [name for name, _ in _inside(objects)]
        if run not in ids:
            raise RunError(f"the id of a run in {objects.describe()!r}", f"{run!r}", one_of(ids, str(run)))
        return _open(objects.folder(run))
    if schema.RUN in objects.list():
        return _open(objects)
    inside = _inside(objects)
    found = [
        (_age(document.get("created_ns") or 0), name)
        for name, document in inside
        if isinstance(document, dict)
    ]
    if not found:
        for _, problem in inside:
            if isinstance(problem, BaseException):
                raise problem
        raise RunError(
            "a run, or a directory with runs in it",
            f"{objects.describe()!r}, {_contents(objects)}",
            f"{nearby(objects)}Check the path. A training with fs.Scope(path) creates a run there",
        )
    return _open(objects.folder(max(found)[1]))


def runs(path: Path = "runs") -> Runs:
    """The runs at `path`, oldest first: a list that shows itself as a table, and answers SQL over all of them.

    Args:
        path: A directory with runs, or a run: a path or URL.
    """
    with _readable(path):
        objects = _place(path)
        objects.list()

    def find() -> list[Brief]:
        with _readable(path):
            if schema.RUN in objects.list():
                return [_brief(objects)]
            briefs = [_brief(objects.folder(name)) for name, _ in _inside(objects)]
        return in_order(briefs)

    return Runs(find, objects)


def in_order(briefs: Iterable[Brief]) -> list[Brief]:
    """The runs, oldest first."""
    return sorted(briefs, key=lambda brief: (_age(_nanoseconds(brief.created)), brief.id))


def _state(objects: Objects) -> RunState:
    """The tables of a run alone."""
    document = _document(objects)
    return RunState(alone(objects), str(document.get("id", "")), document.get("format", schema.FORMAT))


def _age(created: int) -> int:
    """The order of runs. A run from the future, by a wrong clock, comes before all others, so it is not the newest."""
    return created if created <= time.time_ns() + AHEAD else -1


def _nanoseconds(created: datetime | None) -> int:
    return 0 if created is None else int(created.timestamp() * 1e9)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise RunError(
            "a readable path or URL", f"{path!r} ({problem})", "Check the path and your permissions"
        ) from problem


def _place(path: Path) -> Objects:
    try:
        return place(path, writing=False)
    except StoreError as problem:
        raise RunError("a directory or URL with a run", problem.received, problem.fix) from problem


def _inside(objects: Objects) -> list[tuple[str, dict[str, Any] | Exception]]:
    """The folders with a run.json, and that document or the reason why it cannot be read."""
    found: list[tuple[str, dict[str, Any] | Exception]] = []
    for name in objects.list():
        if name.endswith("/"):
            try:
                found.append((name[:-1], _document(objects.folder(name[:-1]))))
            except FileNotFoundError:
                continue
            except (RunError, OSError) as problem:
                found.append((name[:-1], problem))
    return found


def _open(objects: Objects) -> Run:
    return run_of(objects, _document(objects))


def run_of(objects: Objects, document: dict[str, Any]) -> Run:
    """The run that `run.json` describes."""
    written = document.get("format")
    if not isinstance(written, int):
        raise _damaged(objects, ValueError("it has no format number"))
    if written > schema.FORMAT:
        raise RunError(
            f"a run of format {schema.FORMAT} or older",
            f"format {written!r} at {objects.describe()!r}",
            "A newer fitscope wrote it. Upgrade: pip install --upgrade fitscope",
        )
    offer_names()
    return Run(alone(objects), document)


def _document(objects: Objects) -> dict[str, Any]:
    return parsed(objects, fetched(objects))


def fetched(objects: Objects) -> bytes:
    """What `run.json` holds."""
    try:
        return alone(objects).get(schema.RUN, untrusted.MOST_BYTES)
    except (FileNotFoundError, PermissionError):
        raise
    except untrusted.UNREADABLE as problem:
        raise _damaged(objects, problem) from problem


def parsed(objects: Objects, data: bytes) -> dict[str, Any]:
    """The document in `run.json`."""
    try:
        document = untrusted.parse(data)
    except untrusted.UNREADABLE as problem:
        raise _damaged(objects, problem) from problem
    untrusted.cleaned(document, untrusted.RUN)
    return document


def _damaged(objects: Objects, problem: BaseException) -> RunError:
    return RunError(
        f"a readable {schema.RUN}",
        f"a damaged one at {objects.describe(schema.RUN)!r} ({_reason(problem)})",
        "Its tables and tensors can still be read with pandas, DuckDB, xarray or zarr",
    )


def _brief(objects: Objects) -> Brief:
    return brief_of(objects, lambda: _open(objects))


def brief_of(objects: Objects, opened: Callable[[], Run]) -> Brief:
    """The summary of a run, and the run itself, or the reason why it cannot be read."""
    path = objects.describe()
    try:
        run = opened()
        with run._state.looked():
            model = run.model.get("name") if isinstance(run.model, dict) else None
            return Brief(run.id, path, run.created, run.status, run.last_step, run.bytes, model, run=run)
    except (RunError, *untrusted.UNREADABLE) as problem:  # a broken run must not hide the others
        return Brief(_folder(path), path, None, "unreadable", None, 0, None, _reason(problem))


def _folder(path: str) -> str:
    """The name of the folder that a run is in."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _reason(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__


def nearby(objects: Objects) -> str:
    """A guess at the directory that a path without one means: `runs` for `run`."""
    root = is_local(objects)
    if root is None or root.exists():
        return ""
    with contextlib.suppress(OSError):
        names = [each.name for each in root.parent.iterdir() if each.is_dir()]
        near = difflib.get_close_matches(root.name, names, n=1)
        return f"Did you mean {near[0]!r}? " if near else ""
    return ""


def _contents(objects: Objects) -> str:
    names = objects.list()
    if not names:
        root = is_local(objects)
        return "which is empty" if root is None or root.exists() else "which does not exist"
    return (
        f"which has {len(names)} entries, none of them a run"
        if len(names) > 3
        else f"with only {', '.join(names)}"
    )
