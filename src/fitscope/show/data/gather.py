"""Gathered: the numbers of one run that its pictures need, read part by part and kept up to date.

`update` takes in the rows that are new, whatever has been asked for so far; a measure is read when it is first
asked for. A row that turns up later, or an attempt that takes over, makes everything begin anew (`generation`
grows). The exact numbers of a moment are read from the part that has them. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.errors import RunError, one_of
from fitscope.read import Run
from fitscope.read.follow import Exchange, Follow
from fitscope.read.parts import Part
from fitscope.show.data.facts import Facts, Finding
from fitscope.show.data.matrix import INF, NAN, VALUE, Array, Matrix
from fitscope.show.data.measures import MEASURES, Groups, Measure, offered
from fitscope.show.data.modes import MODES, Mode
from fitscope.show.data.rows import Row, rows_of
from fitscope.show.data.series import Series
from fitscope.store import schema

KEEP_BYTES = 1 << 30  #: of matrices; beyond that the one longest unused goes
_ALWAYS = ("activations.zeros", "activations.rms")  #: what the facts are taken from

_NOTHING = (0, -1)  # first and last step of a part without any

Progress = Callable[[int, int], None]


class Gathered:
    """One run's numbers."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.generation = 0
        self._follow = Follow(run)
        self._begin()

    def _begin(self) -> None:
        self.facts = Facts()
        self.scalars: dict[str, Series] = {}
        self.rows: list[Row] = []
        self.sites: set[str] = set()
        self.epochs: dict[int, int] = {}  #: epoch → its first recorded step
        self.last_step: int | None = None
        self._clock: list[tuple[float, int]] = []  # time and step of the newest records, for the speed
        self._parts: dict[Part, tuple[int, int]] = {}  # those taken, with their first and last step
        self._filled: dict[str, Filled] = {}
        self._modes: dict[tuple[str, str, int], Mode] = {}

    # ---- taking in ----------------------------------------------------------------------------------

    def update(self, progress: Progress | None = None) -> bool:
        """Takes in what is new. Whether anything was."""
        parts = self._follow.parts()
        exchanged = self._follow.exchanged(set(self._parts).difference(parts))
        if exchanged is None:
            self.generation += 1
            self._begin()
        rest = {exchange.whole: exchange.rest for exchange in exchanged or ()}
        new = [rest.get(part, part) for part in parts if part not in self._parts]
        for i, part in enumerate(new):
            self._take(part)
            if progress is not None:
                progress(i + 1, len(new))
        if new:
            self._settle()
        for exchange in exchanged or ():
            self._exchange(exchange)
        return bool(new)

    def _exchange(self, exchange: Exchange) -> None:
        """Has one part instead of several, of which all was taken."""
        pieces = [*exchange.pieces, exchange.rest]
        spans = [span for span in map(self._parts.pop, pieces) if span != _NOTHING] or [_NOTHING]
        self._parts[exchange.whole] = (min(first for first, _ in spans), max(last for _, last in spans))
        self._parts = dict(sorted(self._parts.items(), key=lambda item: item[0].key))
        for filled in self._filled.values():
            filled.parts.difference_update(pieces)
            filled.parts.add(exchange.whole)

    def _take(self, part: Part) -> None:
        columns = ["site", "step", "epoch", "time", "value", "count", "nans", "infs"]
        table = self._follow.rows(part, columns)
        if table is None or not table.num_rows:
            self._parts[part] = _NOTHING
            return
        names, codes = _sites(table)
        c = _numbers(table, columns[1:])
        step = c["step"]
        self._parts[part] = (int(step.min()), int(step.max()))
        self.last_step = max(self.last_step if self.last_step is not None else -1, int(step.max()))
        broken = bool(c["nans"].any() or c["infs"].any())
        for at in _stretches(codes):
            site = names[codes[at.start]]
            self.sites.add(site)
            if broken:
                self.facts.take(site, step[at], c["nans"][at], c["infs"][at], c["count"][at])
            if not _nested(site) and c["count"][at].max() <= 1:
                value = np.where(c["infs"][at] > 0, np.inf, c["value"][at])
                self.scalars.setdefault(site, Series()).add(step[at], value)
        low, high = int(c["epoch"].min()), int(c["epoch"].max())
        for epoch in range(low, high + 1):
            within = step if low == high else step[c["epoch"] == epoch]
            if len(within):
                first = int(within.min())
                self.epochs[epoch] = min(self.epochs.get(epoch, first), first)
        newest = int(np.argmax(c["time"]))
        self._clock = [*self._clock[-9:], (float(c["time"][newest]), int(step[newest]))]

    def _settle(self) -> None:
        """The rows there are by now; what follows from them."""
        rows = rows_of(self.run.model, self.sites)
        if [(r.name, r.sites) for r in rows] != [(r.name, r.sites) for r in self.rows]:
            if self.rows:
                self.generation += 1
            self.rows = rows
            self._filled, self._modes = {}, {}
            self.facts.settle(rows)
        if "loss" in self.scalars:
            self.facts.take_loss(self.scalars["loss"])
        offered_now = {measure.key for measure in self.measures}
        wanted = [key for key in _ALWAYS if key in offered_now]
        self._fill([*wanted, *(key for key in self._filled if key not in wanted)])
        if _ALWAYS[0] in wanted:
            self.facts.take_zeros(self._filled[_ALWAYS[0]].matrix)
        if _ALWAYS[1] in wanted:
            self.facts.take_jumps(self._filled[_ALWAYS[1]].matrix)

    def _fill(self, keys: Sequence[str], progress: Progress | None = None) -> None:
        """Brings these measures up to date, reading each part once for all of them."""
        known = {measure.key: measure for measure in MEASURES}
        for key in keys:
            if key not in self._filled:
                self._filled[key] = Filled(known[key], self.rows)
        filled = [self._filled[key] for key in keys]
        todo = [part for part in self._parts if any(part not in f.parts for f in filled)]
        for i, part in enumerate(todo):
            lacking = [f for f in filled if part not in f.parts]
            columns = dict.fromkeys(c for f in lacking for c in ("site", "step", "nans", "infs", *f.columns))
            table = self._follow.rows(part, list(columns))
            for f in lacking:
                f.take(part, table)
            if progress is not None:
                progress(i + 1, len(todo))

    # ---- giving out ---------------------------------------------------------------------------------

    @property
    def measures(self) -> list[Measure]:
        """What can be shown."""
        return offered(self.rows, schema.STATS_SCHEMA.names)

    @property
    def has_samples(self) -> bool:
        return self._follow.has_samples

    @property
    def findings(self) -> list[Finding]:
        return self.facts.findings()

    @property
    def loss(self) -> Series:
        return self.scalars.get("loss") or Series()

    @property
    def speed(self) -> float | None:
        """Steps a second, lately."""
        (begun, first), (ended, last) = (self._clock[0], self._clock[-1]) if self._clock else ((0, 0), (0, 0))
        return (last - first) / (ended - begun) if ended > begun and last > first else None

    def epoch_of(self, step: int) -> int | None:
        """The epoch that a step lies in."""
        begun = [epoch for epoch, first in self.epochs.items() if first <= step]
        return max(begun, default=None)

    def row(self, name: str) -> int:
        """The place of a row."""
        names = [row.name for row in self.rows]
        if name not in names:
            raise RunError("the name of a layer", repr(name), one_of(names, name))
        return names.index(name)

    def matrix(
        self,
        measure: str,
        mode: str = "absolute",
        other: Gathered | None = None,
        progress: Progress | None = None,
    ) -> Matrix:
        """One measure over rows and steps, seen in a mode; `other` is what `run` compares with."""
        keys = [m.key for m in self.measures]
        if measure not in keys:
            raise RunError("a measure", repr(measure), one_of(keys, measure))
        if mode not in MODES or (mode == "run" and other is None):
            raise RunError("a mode, and a run to compare with for 'run'", repr(mode), one_of(MODES, mode))
        self._fill([measure], progress)
        held = self._filled[measure] = self._filled.pop(measure)  # the newest used stands last
        self._let_go(measure)
        if mode == "absolute":
            return held.matrix
        key = (measure, mode, id(other))
        known = self._modes.pop(key, None)
        if known is None or known.of is not held.matrix:
            known = self._related(held.matrix, measure, mode, other)
        self._modes[key] = known
        related = known.follow()
        self._let_go(measure)
        return related

    def _related(self, of: Matrix, measure: str, mode: str, other: Gathered | None) -> Mode:
        if other is None:
            return Mode(mode, of)
        theirs = {row.name: i for i, row in enumerate(other.rows)}
        match = np.array([theirs.get(row.name, -1) for row in self.rows])
        there = measure in [m.key for m in other.measures]
        return Mode(mode, of, other.matrix(measure) if there else None, match)

    def _let_go(self, keep: str) -> None:
        """Keeps within bounds: first the modes longest unused go, then such measures."""
        while self._kept() > KEEP_BYTES and len(self._modes) > 1:
            del self._modes[next(iter(self._modes))]
        while self._kept() > KEEP_BYTES:
            oldest = next((key for key in self._filled if key not in (keep, *_ALWAYS)), None)
            if oldest is None:
                return
            gone = self._filled.pop(oldest)
            self._modes = {key: mode for key, mode in self._modes.items() if mode.of is not gone.matrix}

    def _kept(self) -> int:
        matrices = [f.matrix for f in self._filled.values()] + [mode.matrix for mode in self._modes.values()]
        return sum(matrix.nbytes for matrix in matrices)

    def rows_at(
        self, sites: Sequence[str], step: int, columns: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of the table about these sites at the newest moment up to `step`, and the one before.

        By site: the newest first, two at most. Only the parts that have them are read.
        """
        found: dict[str, list[dict[str, Any]]] = {site: [] for site in sites}
        parts = sorted(
            ((first, last, part) for part, (first, last) in self._parts.items() if first <= step <= last or last < step),
            key=lambda p: (p[1], p[0]), reverse=True,
        )  # fmt: skip
        for looked, (first, _, part) in enumerate(parts):
            if all(len(rows) >= 2 for rows in found.values()) or looked >= 24:
                break
            table = self._follow.rows(part, ["site", "step", *columns], sites)
            if table is None or first > step:
                continue
            names, codes = _sites(table)
            steps = table["step"].to_numpy()
            for at in _stretches(codes):
                site = names[codes[at.start]]
                if site in found:
                    places = at.start + np.flatnonzero(steps[at] <= step)[-2:][::-1]
                    found[site] += table.take(pa.array(places)).select(["step", *columns]).to_pylist()
        return {site: sorted(rows, key=lambda row: -row["step"])[:2] for site, rows in found.items() if rows}

    def histograms(self, sites: Sequence[str], most: int = 160) -> dict[str, tuple[Array, Array]]:
        """By site: the steps, and the counts of each by bucket (−256…256): its values over the training.

        Of a run with very many parts only as many are read as the picture has columns, the first and the last
        among them, and of a part with more steps than that some count together, as the first of them.
        """
        parts = [part for part, (first, last) in self._parts.items() if first <= last]
        found: dict[str, list[tuple[Array, Array]]] = {site: [] for site in sites}
        for i in np.unique(np.linspace(0, len(parts) - 1, min(len(parts), most)).astype(int)):
            table = self._follow.rows(parts[i], ["site", "step", "buckets", "counts"], sites)
            if table is None:
                continue
            names, codes = _sites(table)
            for at in _stretches(codes):
                if names[codes[at.start]] in found:
                    found[names[codes[at.start]]].append(
                        _dense(table.slice(at.start, at.stop - at.start), most)
                    )
        return {site: _joined(pieces) for site, pieces in found.items() if pieces}


class Filled:
    """A measure's matrix and the parts that are in it."""

    def __init__(self, measure: Measure, rows: Sequence[Row]) -> None:
        self.measure = measure
        self.columns = measure.columns
        self.matrix = Matrix(len(rows), measure.scale)
        self.parts: set[Part] = set()
        self._of = {
            site: (i, kind)
            for i, row in enumerate(rows)
            for kind, name in enumerate(measure.kinds)
            for site in row.sites.get(name, ())
        }
        self._single = len(self._of) == len({row for row, _ in self._of.values()})

    def take(self, part: Part, table: pa.Table | None) -> None:
        self.parts.add(part)
        if table is None:
            return
        names, codes = _sites(table)
        known = np.array([self._of.get(name, (-1, 0)) for name in names] or [(-1, 0)])
        inside = np.flatnonzero(known[codes, 0] >= 0)
        if not len(inside):
            return
        wanted = dict.fromkeys(("step", "nans", "infs", *self.columns))
        c = _numbers(table.take(pa.array(inside)) if len(inside) < len(codes) else table, wanted)
        row, c["kind"] = known[codes[inside]].T
        starts = np.arange(len(row))
        if not self._single:
            order = np.lexsort((c["step"], row))
            c = {name: values[order] for name, values in c.items()}
            row = row[order]
            starts = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(c["step"], prepend=-1) != 0))
        groups = Groups(starts, len(row))
        number = self.measure.value(c, groups)
        flags = np.where(np.isfinite(number), VALUE, 0)
        flags = flags | np.where(groups.sum(c["infs"]) > 0, INF, 0)
        flags = flags | np.where(groups.sum(c["nans"]) > 0, NAN, 0)
        self.matrix.add(row[starts], c["step"][starts], number, flags.astype(np.uint8))


def _nested(site: str) -> bool:
    """Weights may be scalars too, but they are no series of their own."""
    return site.startswith(
        ("weights/", "weight_gradients/", "updates/", "activations/", "gradients/", "taps/")
    )


def _sites(table: pa.Table) -> tuple[list[str], Array]:
    column = table["site"].unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False)


def _stretches(codes: Array) -> list[slice]:
    """Where rows of one site follow one another."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    return [slice(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(codes)], strict=True)]


def _numbers(table: pa.Table, columns: Any) -> dict[str, Array]:
    return {name: table[name].to_numpy() for name in columns}


def _dense(table: pa.Table, most: int) -> tuple[Array, Array]:
    """Steps and counts by bucket, of one site. Where there are more than `most`, neighbours are added up."""
    table = table.combine_chunks()
    buckets, counts = (table[name].combine_chunks() for name in ("buckets", "counts"))
    lengths = buckets.value_lengths().to_numpy(zero_copy_only=False)
    places = np.arange(len(table)) * min(len(table), most) // len(table)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    dense = np.zeros((len(starts), 513), np.int64)
    ids = buckets.flatten().to_numpy(zero_copy_only=False).astype(np.int64) + 256
    np.add.at(dense, (np.repeat(places, lengths), ids), counts.flatten().to_numpy(zero_copy_only=False))
    return table["step"].to_numpy()[starts], dense


def _joined(pieces: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    steps, counts = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    order = np.argsort(steps, kind="stable")
    return steps[order], counts[order]
