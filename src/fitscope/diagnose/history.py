"""Histories: the recorded values of each site, in bounded memory.

A site keeps at most `POINTS` points (scalars `SCALAR_POINTS`). When it is full, every second point is dropped, and from then on
only every second recorded step becomes a point. The kept steps depend only on the number of recorded steps. So the writer thread,
which gets one step at a time, and a reader, which gets all at once, keep exactly the same points.
The loss is recorded at every step, out of order; each of its points covers a stretch of 1, 2, 4, … steps.

A point also stands for the steps that were dropped after it: `min`, `max`, `peak` (the largest rms), `nans` and `infs` are
the extremes of all of them, so that one odd batch is never thinned away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.sites import Site

Array = np.ndarray[Any, Any]

POINTS = 256  #: the most points of a tensor
SCALAR_POINTS = 4096  #: the most points of a scalar: the loss of every batch is worth more

#: The values of a point besides its step. `small` counts numbers below the normal range of float16, only in float16 tensors.
COLUMNS = (
    "value", "count", "mean", "std", "min", "max", "rms", "peak", "zeros", "negatives", "nans", "infs", "small",
)  # fmt: skip
_LEAST = [COLUMNS.index("min")]
_MOST = [COLUMNS.index(name) for name in ("max", "peak", "nans", "infs")]


@dataclass(frozen=True, eq=False)
class History:
    """The recorded statistics of one site, as arrays with one number for each point."""

    site: Site
    dtype: str
    shape: tuple[int, ...]  #: the shape of the first tensor recorded there
    steps: Array  #: int64, ascending
    data: Array  #: float32, a row for each of COLUMNS
    seen: int = 0  #: the number of recorded steps, including those without a point

    def __len__(self) -> int:
        return len(self.steps)

    def __getattr__(self, name: str) -> Array:
        try:
            column: Array = self.data[COLUMNS.index(name)]
        except ValueError:
            raise AttributeError(name) from None
        return column

    @property
    def norm(self) -> Array:
        """The Euclidean length of the tensor, estimated from the elements that were read."""
        size = float(np.prod(self.shape, dtype=np.float64)) if self.shape else 1.0
        length: Array = self.rms.astype(np.float64) * np.sqrt(size)
        return length

    def before(self, step: int | None) -> History:
        """The part of the history before a step; all of it for None."""
        return self if step is None else self.at(self.steps < step)

    def at(self, chosen: Array | slice) -> History:
        """Some points of the history."""
        return History(self.site, self.dtype, self.shape, self.steps[chosen], self.data[:, chosen], self.seen)


class _Shelf:
    """The points of many sites of one bound, in one array, so that a step of hundreds of sites is added at once."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.steps = np.zeros((0, 16), np.int64)
        self.data = np.zeros((len(COLUMNS), 0, 16), np.float32)
        self.count = np.zeros(0, np.int64)  # the number of points of each site
        self.seen = np.zeros(0, np.int64)  # recorded steps
        self.stride = np.ones(0, np.int64)

    def grow(self, sites: int, points: int) -> None:
        have, room = self.steps.shape
        if sites > have or points > room:
            room = min(max(room * 2 if points > room else room, points), self.bound)
            have = max(sites, have * 2 if sites > have else have)
            steps, data = np.zeros((have, room), np.int64), np.zeros((len(COLUMNS), have, room), np.float32)
            steps[: self.steps.shape[0], : self.steps.shape[1]] = self.steps
            data[:, : self.steps.shape[0], : self.steps.shape[1]] = self.data
            self.steps, self.data = steps, data
            more = have - len(self.count)
            self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
            self.seen = np.concatenate([self.seen, np.zeros(more, np.int64)])
            self.stride = np.concatenate([self.stride, np.ones(more, np.int64)])

    def extend(self, rows: Array, steps: Array, columns: Array) -> None:
        """Further recorded steps of these sites, in their order. `rows` has none of them twice.

        Gives the same points however many steps are given at once.
        """
        states = np.stack([self.seen[rows], self.stride[rows], self.count[rows]])
        if (states == states[:, :1]).all():  # sites that are always recorded together
            self._extend(rows, steps, columns)
            return
        for state in np.unique(states, axis=1).T:
            chosen = (state == states.T).all(axis=1)
            self._extend(rows[chosen], steps, columns[:, chosen])

    def _extend(self, rows: Array, steps: Array, columns: Array) -> None:
        """Adds steps to several sites that have equally many points and the same stride."""
        seen, stride, have = (int(of[rows[0]]) for of in (self.seen, self.stride, self.count))
        lead = min(-seen % stride, len(steps))  # these belong to the last existing point
        for column, extreme in _extremes() if lead else ():
            last = self.data[column, rows, have - 1]
            self.data[column, rows, have - 1] = extreme(
                last, extreme.reduce(columns[column, :, :lead], axis=1)
            )
        self.seen[rows] = seen + len(steps)
        starts = np.arange(lead, len(steps), stride)
        if not len(starts):
            return
        new, begin = columns[:, :, starts], have
        if stride > 1:
            for column, extreme in _extremes():
                new[column] = extreme.reduceat(columns[column], starts, axis=1)
        steps = np.broadcast_to(steps[starts], (len(rows), len(starts)))
        if have + len(starts) > self.bound:
            begin = 0
            steps = np.concatenate([self.steps[rows, :have], steps], axis=1)
            new = np.concatenate([self.data[:, rows, :have], new], axis=2)
            while steps.shape[1] > self.bound:
                steps, new = _halved(steps, new)
                stride *= 2
        end = begin + steps.shape[1]
        self.grow(0, end)
        self.steps[rows, begin:end], self.data[:, rows, begin:end] = steps, new
        self.count[rows], self.stride[rows] = end, stride


class _Line:
    """The points of one scalar that is recorded at every step, in any order: one for each stretch of 2^k steps.

    k is the smallest with which the stretches are few enough, so it depends on the first and the last step alone.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.seen = 0
        self._parts: list[tuple[Array, Array]] = []
        self._waiting = 0

    def add(self, steps: Array, columns: Array) -> None:
        self._parts.append((steps, columns))
        self.seen += len(steps)
        self._waiting += len(steps)
        if self._waiting > self.bound:
            self.points()

    def points(self) -> tuple[Array, Array]:
        """The current steps and columns, sorted by step."""
        steps = np.concatenate([part for part, _ in self._parts])
        columns = np.concatenate([part for _, part in self._parts], axis=1)
        order = np.argsort(steps, kind="stable")
        steps, columns = steps[order], columns[:, order]
        width = 0
        while (steps[-1] >> width) - (steps[0] >> width) >= self.bound:
            width += 1
        starts = np.flatnonzero(np.diff(steps >> width, prepend=-1))
        kept = columns[:, starts]
        for column, extreme in _extremes():
            kept[column] = extreme.reduceat(columns[column], starts)
        self._parts, self._waiting = [(steps[starts], kept)], 0
        return self._parts[0]


class Histories:
    """The history of every site."""

    def __init__(self) -> None:
        self._shelves = (_Shelf(POINTS), _Shelf(SCALAR_POINTS))
        self._lines: dict[str, _Line] = {}
        self._places: dict[str, tuple[int, int]] = {}  # for each site its shelf, and its place there
        self._used = [0, 0]
        self._about: dict[str, tuple[Site, str, tuple[int, ...]]] = {}

    def place(self, site: Site, dtype: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """The place of the points of a site, which is created with its first record."""
        known = self._places.get(site)
        if known is None:
            shelf = int(not shape)
            known = self._places[site] = (shelf, self._used[shelf])
            self._used[shelf] += 1
            self._shelves[shelf].grow(self._used[shelf], 1)
            self._about[site] = (site, dtype, shape)
        return known

    def add(self, shelf: int, rows: Array, steps: Array, columns: Array) -> None:
        """Further steps of several sites; columns × sites × steps."""
        self._shelves[shelf].extend(rows, steps, columns)

    def scatter(self, site: Site, dtype: str, steps: Array, columns: Array) -> None:
        """Adds steps of a scalar that is recorded at every step, in any order."""
        if len(steps):
            self._about.setdefault(site, (site, dtype, ()))
            data = columns.astype(np.float32)
            data[[COLUMNS.index("min"), COLUMNS.index("max")]] = data[COLUMNS.index("value")]
            self._lines.setdefault(site, _Line(SCALAR_POINTS)).add(steps, data)

    def extend(self, site: Site, dtype: str, shape: tuple[int, ...], steps: Array, columns: Array) -> None:
        """Adds recorded steps of a site, sorted."""
        shelf, row = self.place(site, dtype, shape)
        self._shelves[shelf].extend(np.array([row]), steps, columns.astype(np.float32)[:, None])

    def __iter__(self) -> Iterator[Site]:
        return (site for site, _, _ in self._about.values())

    def __contains__(self, site: object) -> bool:
        return site in self._about

    def __len__(self) -> int:
        return len(self._about)

    def get(self, site: str) -> History | None:
        line = self._lines.get(site)
        if line is not None:
            return History(*self._about[site], *line.points(), line.seen)
        place = self._places.get(site)
        if place is None:
            return None
        shelf, row = self._shelves[place[0]], place[1]
        n = int(shelf.count[row])
        about = self._about[site]
        return History(
            *about, shelf.steps[row, :n].copy(), shelf.data[:, row, :n].copy(), int(shelf.seen[row])
        )


def _halved(steps: Array, data: Array) -> tuple[Array, Array]:
    """Every second point, which then also stands for the next one."""
    kept = data[..., ::2].copy()
    gone = data[..., 1::2]
    for column, extreme in _extremes():
        some = kept[column, ..., : gone.shape[-1]]
        extreme(some, gone[column], out=some)
    return steps[..., ::2].copy(), kept


def _extremes() -> Iterator[tuple[int, Any]]:
    yield from ((column, np.fmin) for column in _LEAST)
    yield from ((column, np.fmax) for column in _MOST)


def columns_of(**given: Sequence[float] | Array) -> Array:
    """The rows of `History.data` from some of its columns; the others are NaN, counts 0."""
    size = max((len(np.atleast_1d(values)) for values in given.values()), default=0)
    data = np.full((len(COLUMNS), size), np.nan, np.float32)
    for name in ("count", "zeros", "negatives", "nans", "infs", "small"):
        data[COLUMNS.index(name)] = 0
    with np.errstate(over="ignore"):
        for name, values in given.items():
            data[COLUMNS.index(name)] = np.asarray(values, np.float64).astype(np.float32)
    if "peak" not in given:
        data[COLUMNS.index("peak")] = data[COLUMNS.index("rms")]
    return data
