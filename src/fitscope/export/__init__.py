"""Exports runs for other tools: `export_run(run, format, out)`, with one small module per format.

Every module has a function `export(run, out, *, sites, stats, force, progress)` that returns the paths it wrote. It
receives full site names and valid stat names. Memory is bounded for runs of any length: statistics pass part by part
(`rows`), tensors capture by capture (`kept`). A run that is still growing is exported in its current state.

A file appears complete or not at all where the format allows it (`place`). An export overwrites nothing unless
`force` is set. This package belongs to the reading side: it imports no framework and no capturing code.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fitscope.errors import FitscopeError, RunError, StoreError, WatchError, one_of
from fitscope.reduce.stats import NAMES
from fitscope.store.places import path_of

if TYPE_CHECKING:
    from fitscope.read import Run

#: A function that is called with the work done and the total, in a unit that depends on the format.
Progress = Callable[[int, int], None]

#: The stats to choose from. The `value` of a scalar is always exported.
STATS = (*NAMES, "cosine", "histogram")


@dataclass(frozen=True, slots=True)
class Format:
    """The description of a format. The module of the same name implements it."""

    meaning: str
    of: str = "stats"  #: "stats" or "tensors"
    more: str = ""  #: additional data that it exports: "samples" or "averages"


FORMATS = {
    "parquet": Format("the statistics, one Parquet file", more="samples"),
    "csv": Format("the statistics, one CSV file; lists as JSON", more="samples"),
    "duckdb": Format("the statistics, tables in a DuckDB file; you can add more runs", more="samples"),
    "sqlite": Format("the statistics, tables in an SQLite file; you can add more runs", more="samples"),
    "tensorboard": Format("scalars and histograms, an event file in a directory named after the run"),
    "npz": Format("all kept tensors and averages, one NumPy archive", of="tensors", more="averages"),
    "npy": Format("a directory of NumPy files: each kept tensor at the end of each epoch", of="tensors"),
}


def export_run(
    run: Run | str | os.PathLike[str],
    format: str,  # noqa: A002 - the word people look for
    out: str | os.PathLike[str],
    sites: str | Iterable[str] | None = None,
    *,
    stats: str | Iterable[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes a run in another format, and returns the paths it wrote.

    Args:
        run: A run, its path, or a directory: then its newest run.
        format: The name of a format, from the table below.
        out: The file or directory to write.
        sites: Names or globs, where `*` also matches slashes. The table of samples is called `samples`. All by default.
        stats: The stats to export, or "histogram". All by default.
        force: Replace an earlier export at `out`.
        progress: Called with the work done and the total.
    """
    if format not in FORMATS:
        raise WatchError("the name of a format", repr(format), one_of(FORMATS, format))
    wanted = _stats(format, stats)
    to = _local(out)
    opened = _opened(run)
    chosen = _sites(opened, format, sites)
    module: Any = importlib.import_module(f"fitscope.export.{format}")
    try:
        written: list[Path] = module.export(
            opened, to, sites=chosen, stats=wanted, force=force, progress=progress or (lambda *_: None)
        )
    except FitscopeError:
        raise
    except OSError as problem:
        raise StoreError(
            "a writable path", f"{str(to)!r} ({problem})", "Free some space, or choose another path"
        ) from problem
    return written


def _opened(run: Run | str | os.PathLike[str]) -> Run:
    if isinstance(run, (str, os.PathLike)):
        from fitscope.read import open as open_run

        return open_run(run)
    return run


def _local(out: str | os.PathLike[str]) -> Path:
    path_of(out, "a path on this machine")
    text = os.fspath(out)
    if not text or "://" in text:
        raise StoreError(
            "a path on this machine", repr(text), "Export to a file or directory and copy it from there"
        )
    return Path(text).expanduser()


def _stats(format: str, stats: str | Iterable[str] | None) -> tuple[str, ...]:  # noqa: A002
    if stats is None:
        return ()
    names = (stats,) if isinstance(stats, str) else tuple(stats)
    if names and FORMATS[format].of == "tensors":
        raise WatchError(
            f"no stats for {format}, which holds tensors", ", ".join(map(repr, names)), "Leave them out"
        )
    for name in names:
        if name not in STATS:
            raise WatchError("a stat", repr(name), one_of(STATS, name))
    return names


def _sites(run: Run, format: str, wanted: str | Iterable[str] | None) -> list[str]:  # noqa: A002
    """The full names of the sites to export; an error if there are none."""
    from fitscope.export import kept, rows

    more = FORMATS[format].more
    if FORMATS[format].of == "tensors":
        there: Sequence[str] = sorted({*kept.sites(run), *(run.averages if more == "averages" else ())})
        what, fix = "kept tensors", "Watch with keep='tensor', or export the statistics: parquet, csv, duckdb"
    else:
        there = [*rows.sites(run), *([rows.SAMPLES] if more == "samples" and rows.has_samples(run) else ())]
        what, fix = "statistics", "Try again when the training has captured some steps"
    if not there:
        raise RunError(f"a run with {what}", f"run {run.id!r}, which has none", fix)
    if wanted is None:
        return sorted(there)
    chosen: set[str] = set()
    for pattern in (wanted,) if isinstance(wanted, str) else tuple(wanted):
        found = {site for site in there if site == pattern or fnmatchcase(site, pattern)}
        if not found:
            raise RunError(f"a site of run {run.id!r} with {what}", repr(pattern), one_of(there, pattern))
        chosen |= found
    return sorted(chosen or there)


__all__ = ["FORMATS", "STATS", "Format", "Progress", "export_run"]
