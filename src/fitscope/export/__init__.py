"""Runs for other tools: `export_run(run, format, out)`, one small file per format.

Every format's module has one function of the same signature, `export(run, out, *, sites, stats, force,
progress)`, which returns the paths it wrote; `sites` are full names there and `stats` names that exist. Memory
is bounded however long the run is: statistics pass through part by part (`rows`), tensors capture by capture
(`kept`). A run that is still being written is exported as of the moment of asking.

What is written appears whole or not at all where the format allows it (`place`), and nothing that exists is
overwritten unless told to. Part of the reading side: no framework, nothing of the capturing side.
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

if TYPE_CHECKING:
    from fitscope.read import Run

#: Told how much is done, of how much. The unit is the format's.
Progress = Callable[[int, int], None]

#: The stats an export can be limited to. `value`, the scalar itself, is always there.
STATS = (*NAMES, "cosine", "histogram")


@dataclass(frozen=True, slots=True)
class Format:
    """One line about a format. Its code is in the module of its name."""

    meaning: str
    of: str = "stats"  #: or "tensors"
    more: str = ""  #: what it also takes: "samples" or "averages"


FORMATS = {
    "parquet": Format("the statistics, one Parquet file", more="samples"),
    "csv": Format("the statistics, one CSV file; lists as JSON", more="samples"),
    "duckdb": Format("the statistics, tables in a DuckDB file; further runs are added to it", more="samples"),
    "sqlite": Format(
        "the statistics, tables in an SQLite file; further runs are added to it", more="samples"
    ),
    "tensorboard": Format("scalars and histograms, an event file in a directory of the run's name"),
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
    """Writes a run, or the newest run in a directory, to `out` in one of the `FORMATS`. Returns what it wrote.

    `sites` are names or globs (`*` takes in slashes), `stats` some of `STATS`; all by default. The table of
    single samples is called `samples` among the sites. `force` replaces what an earlier export left at `out`.
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
            "a place that can be written to", f"{str(to)!r} ({problem})", "Make room there, or choose another"
        ) from problem
    return written


def _opened(run: Run | str | os.PathLike[str]) -> Run:
    if isinstance(run, (str, os.PathLike)):
        from fitscope.read import open as open_run

        return open_run(run)
    return run


def _local(out: str | os.PathLike[str]) -> Path:
    text = os.fspath(out)
    if not text or "://" in text:
        raise StoreError(
            "a path on this machine", repr(text), "Export to a file or directory and copy it from there"
        )
    return Path(text)


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
    """The full names of what is to be exported; an error where there is nothing."""
    from fitscope.export import kept, rows

    more = FORMATS[format].more
    if FORMATS[format].of == "tensors":
        there: Sequence[str] = sorted({*kept.sites(run), *(run.averages if more == "averages" else ())})
        what, fix = "kept tensors", "Watch with keep='tensor', or export the statistics: parquet, csv, duckdb"
    else:
        there = [*rows.sites(run), *([rows.SAMPLES] if more == "samples" and rows.has_samples(run) else ())]
        what, fix = "statistics", "Look again when the training has made some steps"
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
