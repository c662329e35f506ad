"""What all attacks share: a small run whose every number follows from its step, and a look at all of a run."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitscope import read
from fitscope.errors import FitscopeError, FitscopeWarning
from fitscope.record import Moment, Record
from fitscope.reduce.average import Average
from fitscope.reduce.oracle import reduce
from fitscope.store import Objects, RunWriter

SITES = ("activations/a", "gradients/a", "weights/a/kernel")


@dataclass
class Round:
    """What came of one seed."""

    tried: int = 0
    survived: int = 0
    lost: int = 0  #: flushed records that are gone, though nothing was damaged
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def trial(self, what: str) -> Iterator[None]:
        """One thing that is tried. An error that is none of ours, a wrong number and 10 seconds are failures."""
        began = time.perf_counter()
        self.tried += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitscopeWarning)
                yield
        except FitscopeError:
            self.survived += 1
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}"[:300])
        else:
            self.survived += 1
        seconds = time.perf_counter() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > 10:
            self.survived -= 1
            self.failures.append(f"{what}: took {seconds:.1f} s")


def tensor(site: str, step: int) -> np.ndarray[Any, Any]:
    return np.full((4, 3), step * 10 + SITES.index(site) + 1, np.float32)


def records(step: int) -> list[Record]:
    at = Moment(step, step // 4, step % 4, 1_700_000_000.0 + step)
    found = [Record(s, at, (4, 3), "float32", reduce(tensor(s, step)), tensor(s, step)) for s in SITES]
    return [*found, Record("loss", at, (), "float32", reduce(np.float32(step)))]


def write(to: Any, steps: int = 8, run_id: str = "run", flush: int = 2, close: bool = True) -> RunWriter:
    """A run with parts, tensors and an average."""
    writer = RunWriter.create(
        to, run_id, {"model": {"name": "net", "layers": [{"path": "a"}]}, "backend": "jax"}
    )
    average = Average.empty()
    for step in range(steps):
        writer.write(records(step))
        average.add(tensor(SITES[0], step), step, batched=True)
        writer.average(SITES[0], average)
        if step % flush == flush - 1:
            writer.flush()
    if close:
        writer.close()
    return writer


def looked_at(place: Objects, name: str = "run") -> int:
    """Reads all of a run. Returns how many numbers it saw; AssertionError if one of them is wrong."""
    run = read.open(place, name)
    seen = 0
    (
        repr(run),
        run.errors,
        run.lost,
        run.dropped,
        run.unseen,
        run.overhead,
        run.identity.sentence,
        run.checkpoints,
    )
    for site in run.sites:
        with contextlib.suppress(FitscopeError):
            if site in SITES:
                rows = run.series(site, "min")
                assert (rows == rows.index * 10 + SITES.index(site) + 1).all(), f"{site}: a wrong number"
                run.histogram(site)
                seen += len(rows)
        with contextlib.suppress(FitscopeError):
            if site in SITES:
                found = run.tensor(site)
                for step in found["step"].values.tolist():
                    assert np.array_equal(run.array(site, step), tensor(site, step)), (
                        f"{site}: a wrong tensor"
                    )
                    seen += 1
    with contextlib.suppress(FitscopeError):
        run.average(SITES[0])
    with contextlib.suppress(FitscopeError):
        run.sql("select site, count(*) from stats group by site")
    return seen
