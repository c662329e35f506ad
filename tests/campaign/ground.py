"""What all attacks share: the result of a round, a small run whose every number follows from its step, and a look at a run."""

from __future__ import annotations

import contextlib
import functools
import resource
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitscope import read
from fitscope.errors import FitscopeError, FitscopeWarning
from fitscope.read.tensors import Captures
from fitscope.record import Moment, Record, Samples
from fitscope.reduce.average import Average
from fitscope.reduce.oracle import reduce
from fitscope.store import Memory, Objects, RunWriter

SITES = ("activations/a", "gradients/a", "weights/a/kernel")
SLOW = 10.0  #: seconds that nothing may take
MUCH = 500 << 20  #: bytes that nothing may take


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
        """One thing that is tried. A foreign error, a wrong number, 10 seconds and 500 MB are failures."""
        began, memory = clock(), most_memory()
        self.tried += 1
        trouble = ""
        try:
            yield
        except FitscopeError:
            pass
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        seconds = clock() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SLOW:
            trouble = trouble or f"took {seconds:.1f} s"
        if most_memory() > memory + MUCH:
            trouble = trouble or f"took {(most_memory() - memory) >> 20} MB"
        if trouble:
            self.failures.append(f"{what}: {trouble}"[:400])
        else:
            self.survived += 1

    def add(self, other: Round) -> None:
        self.tried += other.tried
        self.survived += other.survived
        self.lost += other.lost
        self.slowest = max(self.slowest, other.slowest)
        self.failures += other.failures


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Attacks provoke warnings of fitscope. (Not thread-safe, hence once around a round.)"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitscopeWarning)
        yield


def clock() -> float:
    """Seconds on the clock, without those for which this thread waited for a CPU: other work on a busy machine is no hang."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return time.perf_counter() - int(file.read(100).split()[1]) / 1e9
    except OSError:  # not on Linux
        return time.perf_counter()


def most_memory() -> int:
    """The most bytes that this process has had in memory at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---- a run -----------------------------------------------------------------------------------------


def value(site: str, step: int) -> int:
    return step * 10 + SITES.index(site) + 1


def tensor(site: str, step: int) -> np.ndarray[Any, Any]:
    return np.full((4, 3), value(site, step), np.float32)


def records(step: int) -> list[Record]:
    at = Moment(step, step // 4, step % 4, 1_700_000_000.0 + step)
    found = [Record(s, at, (4, 3), "float32", reduce(tensor(s, step)), tensor(s, step)) for s in SITES]
    return [*found, Record("loss", at, (), "float32", reduce(np.float32(step)))]


def samples(step: int) -> Samples:
    return Samples(
        Moment(step, step // 4, step % 4, 1_700_000_000.0 + step), "train", loss=np.arange(4) + 10.0 * step
    )


def write(to: Any, steps: int = 8, flush: int = 2, close: bool = True) -> RunWriter:
    """A run with parts, tensors, samples and an average."""
    writer = RunWriter.create(
        to, "run", {"model": {"name": "net", "layers": [{"path": "a"}]}, "backend": "jax"}
    )
    average = Average.empty()
    for step in range(steps):
        writer.write(records(step), [samples(step)])
        average.add(tensor(SITES[0], step), step, batched=True)
        writer.average(SITES[0], average)
        if step % flush == flush - 1:
            writer.flush()
    if close:
        writer.close()
    return writer


# ---- looks at it -----------------------------------------------------------------------------------
#
# Of the time of `run.series` or `run.tensor` on a run this small nine tenths go into making frames of pandas and xarray. The attacks
# read what these are made of, through the same readers; `looked_at` uses what people call.


def right_rows(run: read.Run) -> int:
    """Reads the statistics. Returns the steps it saw; AssertionError if a number is wrong."""
    run._state.look()
    table = run._state.stats.read(("site", "step", "min"))
    if table is None:
        return 0
    steps = 0
    names = np.asarray(table["site"].to_pylist(), object)
    step, least = (table[name].to_numpy() for name in ("step", "min"))
    for number, site in enumerate(SITES):
        here = names == site
        assert (least[here] == step[here] * 10 + number + 1).all(), f"{site}: a wrong number"
        assert len(set(step[here].tolist())) == here.sum(), f"{site}: a step twice"
        steps = max(steps, int(here.sum()))
    return steps


def right_samples(run: read.Run) -> int:
    run._state.look()
    table = run._state.samples.read(("step", "sample", "loss"))
    if table is None:
        return 0
    step, sample, loss = (table[name].to_numpy() for name in ("step", "sample", "loss"))
    assert (loss == step * 10.0 + sample).all(), "a wrong sample"
    return len(loss)


def right_tensors(run: read.Run, *sites: str) -> int:
    """Reads the tensors of some sites, or all. Returns how many it saw; AssertionError if one is wrong."""
    seen = 0
    run._state.look()
    for rank in run._state.ranks:
        for site, path in ((site, path) for site, paths in rank.arrays().items() for path in paths):
            array = rank.array(path) if site in (sites or SITES) else None
            captures = Captures(site, [[(array, rank.end)]]) if array is not None else None
            for place, step in enumerate(captures.step.tolist() if captures else ()):
                with contextlib.suppress(FitscopeError):
                    found = captures.capture(place)
                    assert found.shape == (4, 3), f"{site}: a wrong shape of a tensor"
                    assert (found == value(site, step)).all(), f"{site}: a wrong tensor"
                    seen += 1
    return seen


def facts(run: read.Run) -> None:
    """All that documents say."""
    _ = (run.status, run.errors, run.lost, run.dropped, run.unseen, run.overhead, run.checkpoints)
    _ = (run.identity.sentence, run.model, run.ended_by, run.limit_reached_at, run.averages)


@functools.cache
def warm_up() -> None:
    """Imports and compiles everything that a look needs, which is no part of any trial."""
    store = Memory()
    write(store, steps=3)
    assert looked_at(store) == 3


def looked_at(place: Objects, name: str = "run") -> int:
    """Reads all of a run, as people do. Returns the steps it saw; AssertionError if a number is wrong."""
    run = read.open(place, name)
    repr(run)
    facts(run)
    steps = 0
    for site in SITES:
        with contextlib.suppress(FitscopeError):
            rows = run.series(site, "min")
            assert (rows == rows.index * 10 + SITES.index(site) + 1).all(), f"{site}: a wrong number"
            steps = max(steps, len(rows))
        with contextlib.suppress(FitscopeError):
            for step in run.tensor(site)["step"].values.tolist():
                assert np.array_equal(run.array(site, step), tensor(site, step)), f"{site}: a wrong tensor"
    frame = run.samples
    assert (frame["loss"] == frame["step"] * 10.0 + frame["sample"]).all(), "a wrong sample"
    for look in (
        lambda: run.histogram(SITES[0]),
        lambda: run.average(SITES[0]),
        lambda: run.sql("select site, count(*) from stats group by site"),
        lambda: run.findings(),
    ):
        with contextlib.suppress(FitscopeError):
            look()
    return steps
