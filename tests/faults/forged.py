"""Uses a directory with a forged run in every way that reads one, and measures the memory in a separate process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from fitscope import read
from fitscope.errors import RunError
from fitscope.show.app import Pages, Parameters, Shelf
from fitscope.show.data.gather import Gathered
from fitscope.show.summary import summary
from fitscope.show.text import Pen

MOST_MEMORY = 500 << 20  #: bytes that one file may take


def used(runs: Path) -> None:
    """Everything that reads a run, on all runs of a directory. RunErrors are fine, anything else is not."""
    assert {brief.path.rpartition("/")[2] for brief in read.runs(runs)} == {"run", "other"}
    assert len(read.open(runs, "other").series("activations/small", "mean")) == 6
    pages = Pages(Shelf(runs), 1.0, lambda: False)
    for query in ({"run": "run"}, {"run": "other"}):
        try:
            with pages._shelf.run(query["run"]) as g:
                measure = g.measures[0].key if g.measures else ""
                row = g.rows[0].name if g.rows else ""
                summary(g, 100, Pen.of(Console(width=100)))
        except RunError:
            assert query["run"] == "run"
            continue
        for answer in (
            pages.head,
            pages.matrix,
            pages.series,
            pages.moment,
            pages.distribution,
            pages.samples,
        ):
            try:
                answer(Parameters({**query, "measure": measure, "row": row}))
            except RunError:
                assert query["run"] == "run"
    try:
        run = read.open(runs, "run")
    except RunError:
        return
    looks: list[Callable[[], Any]] = [
        lambda: repr(run), lambda: run.stats, lambda: run.samples, lambda: run.checkpoints, lambda: run.overhead,
        lambda: run.identity.sentence, lambda: (run.lost, run.dropped, run.unseen, run.errors, run.attempts),
        run.findings, lambda: repr(read.runs(runs)), run._repr_html_,
        lambda: run.sql("select count(*) from stats"), lambda: run.average("activations/small"),
        *(lambda site=site: run.histogram(site) for site in run.sites),  # type: ignore[misc]
        *(lambda site=site: run.frame(site) for site in run.sites),  # type: ignore[misc]
        *(lambda site=site: run.tensor(site).values for site in run.sites),  # type: ignore[misc]
    ]  # fmt: skip
    for look in looks:
        with contextlib.suppress(RunError):
            look()


def gathered(run: read.Run) -> Gathered:
    gathered = Gathered(run)
    gathered.update()
    return gathered


def in_bounds(runs: Path) -> None:
    """`used`, in a process of its own that counts its memory and ends after a minute."""
    here = Path(__file__)
    code = (
        f"import sys, resource, warnings; sys.path[:0] = [{str(here.parent)!r}, {str(here.parents[1])!r}]\n"
        "warnings.simplefilter('ignore')\n"
        "from faults import forged; from pathlib import Path\n"
        f"forged.used(Path({str(runs / 'sound')!r}))\n"  # what all of it takes without any harm
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"forged.used(Path({str(runs)!r}))\n"
        "print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < MOST_MEMORY
