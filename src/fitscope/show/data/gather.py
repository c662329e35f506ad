"""Gathered: the numbers of one run for its pictures, read part by part and updated.

`update` takes new rows for everything requested so far; a measure is read on first request. If a new row appears or an attempt
takes over, everything starts again (`generation` grows). The exact numbers of a moment are read from their part. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.diagnose import Findings, diagnose
from fitscope.errors import RunError, one_of
from fitscope.read import Run
from fitscope.read.evidence import noted
from fitscope.read.follow import Exchange, Follow
from fitscope.read.parts import Part
from fitscope.show.data.facts import Facts, PlacedFinding, placed
from fitscope.show.data.fill import Filled, PartColumns, columns_of
from fitscope.show.data.matrix import Array, Matrix
from fitscope.show.data.measures import MEASURES, Measure, offered
from fitscope.show.data.modes import MODES, Against, Mode
from fitscope.show.data.rows import Row, rows_of
from fitscope.show.data.series import GrowingSeries
from fitscope.sites import OF_LAYERS, OF_WEIGHTS, Site
from fitscope.store import schema

KEEP_BYTES = 1 << 30  #: of matrices; beyond that the one longest unused goes
_ALWAYS = ("activations.zeros", "activations.rms")  #: read with the first look
_SURVEYED = (
    "site",
    "step",
    "epoch",
    "time",
    "value",
    "count",
    "nans",
    "infs",
)  #: columns that are read of every part
_KNOWN = {measure.key: measure for measure in MEASURES}

_NOTHING = (0, -1)  # first and last step of a part without any

Progress = Callable[[int, int], None]


class Gathered:
    """The numbers of one run."""

    def __init__(self, run: Run, *, quiet: bool = False) -> None:
        """With `quiet`, damage is not warned about: the picture shows it."""
        self.run = run
        self.generation = 0
        self._follow = Follow(run)
        if quiet:
            self._follow.hush()
        self._begin()

    def _begin(self) -> None:
        self.facts = Facts()
        self._evidence = self._follow.evidence()  # taken in when it is first needed
        self._diagnosis: Findings | None = None
        self.scalars: dict[str, GrowingSeries] = {}
        self.rows: list[Row] = []
        self.sites: set[str] = set()
        self.epochs: dict[int, int] = {}  #: epoch → its first recorded step
        self.last_step: int | None = None
        self.clock: list[tuple[int, float]] = []  #: steps and when they were recorded, in order
        self._clock: list[tuple[float, int]] = []  # time and step of the newest records, for the speed
        self._parts: dict[Part, tuple[int, int]] = {}  # those taken, with their first and last step
        self._filled: dict[str, Filled] = {}
        self._modes: dict[tuple[str, str, int], Mode] = {}
        self._changed = False  # whether the rows have, since it was last told

    # ---- taking in ----------------------------------------------------------------------------------

    def update(self, progress: Progress | None = None) -> bool:
        """Takes new rows, reading each part once. Returns whether there were any."""
        parts = self._follow.parts()
        exchanged = self._follow.exchanged(set(self._parts).difference(parts))
        if exchanged is None:
            self.generation += 1
            self._begin()
        rest = {exchange.whole: exchange.rest for exchange in exchanged or ()}
        new = [rest.get(part, part) for part in parts if part not in self._parts]
        shown = len(self.rows)
        columns = dict.fromkeys((*_SURVEYED, *_columns_first(), *columns_of(self._filled.values())))
        for i, (part, piece) in enumerate(self._pieces(new, list(columns))):
            self._survey(part, piece)
            for filled in self._filled.values():
                if piece is None or set(filled.columns) <= set(piece.columns):
                    filled.take(part, piece)
            if progress is not None:
                progress(i + 1, len(new))
        if new:
            self._settle(anew=shown > 0)
        for exchange in exchanged or ():
            self._exchange(exchange)
        return bool(new)

    def _exchange(self, exchange: Exchange) -> None:
        """Replaces several taken parts by one."""
        pieces = [*exchange.pieces, exchange.rest]
        spans = [span for span in map(self._parts.pop, pieces) if span != _NOTHING] or [_NOTHING]
        self._parts[exchange.whole] = (min(first for first, _ in spans), max(last for _, last in spans))
        self._parts = dict(sorted(self._parts.items(), key=lambda item: item[0].key))
        for filled in self._filled.values():
            filled.parts.difference_update(pieces)
            filled.parts.add(exchange.whole)

    def _pieces(
        self, parts: Sequence[Part], columns: Sequence[str]
    ) -> Iterator[tuple[Part, PartColumns | None]]:
        for part, table in self._follow.each(parts, columns):
            yield part, PartColumns(table) if table is not None and table.num_rows else None

    def _survey(self, part: Part, piece: PartColumns | None) -> None:
        """Surveys a part: sites, steps, epochs, scalars, NaN and Inf."""
        if piece is None:
            self._parts[part] = _NOTHING
            return
        step = piece["step"]
        self._parts[part] = (int(step.min()), int(step.max()))
        self.last_step = max(self.last_step if self.last_step is not None else -1, int(step.max()))
        largest = piece.largest("count")
        there = {name for name, count in zip(piece.names, largest, strict=True) if count >= 0}
        if not there <= self.sites:
            self.sites |= there
            self._fit()
        broken = np.flatnonzero((piece["nans"] > 0) | (piece["infs"] > 0))
        for site, at in piece.stretches(broken) if len(broken) else ():
            self.facts.take(site, step[at], piece["nans"][at], piece["infs"][at])
        for code in np.flatnonzero((largest >= 0) & (largest <= 1)):
            if not _nested(piece.names[code]):
                at = np.flatnonzero(
                    (piece.codes == code) & (piece["count"] > 0)
                )  # 0: a loss that is not known
                value = np.where(piece["infs"][at] > 0, np.inf, piece["value"][at])
                self.scalars.setdefault(piece.names[code], GrowingSeries()).add(step[at], value)
        epochs = piece["epoch"]
        for epoch in np.unique(epochs).tolist():
            first = int(step[epochs == epoch].min())
            self.epochs[epoch] = min(self.epochs.get(epoch, first), first)
        self._time(step, piece["time"])
        newest = int(np.argmax(piece["time"]))
        self._clock = [*self._clock[-9:], (float(piece["time"][newest]), int(step[newest]))]

    def _time(self, step: Array, time: Array) -> None:
        """Notes when the first and the last step of a part were recorded, in order and not too often."""
        for place in (int(np.argmin(step)), int(np.argmax(step))):
            at = (int(step[place]), float(time[place]))
            if not self.clock or (at[0] > self.clock[-1][0] and at[1] > self.clock[-1][1]):
                self.clock.append(at)
        if len(self.clock) > 256:
            self.clock = [*self.clock[:-1:2], self.clock[-1]]

    def _fit(self) -> None:
        """Updates the rows. Data taken before moves to its new row."""
        rows = rows_of(self.run.model, self.sites, self.run.configuration)
        if [(r.name, r.sites) for r in rows] == [(r.name, r.sites) for r in self.rows]:
            return
        self.rows = rows
        self._changed = True
        self._modes = {}
        self._filled = {key: filled for key, filled in self._filled.items() if filled.refit(rows)}
        for key in self._first_wanted():
            if key not in self._filled:
                self._filled[key] = Filled(_KNOWN[key], rows)

    def _first_wanted(self) -> list[str]:
        """The measures that the page shows first, and those of the terminal."""
        offered_now = [measure.key for measure in self.measures]
        return [key for key in dict.fromkeys((*_ALWAYS, *offered_now[:1])) if key in offered_now]

    def _settle(self, *, anew: bool) -> None:
        """Updates everything derived from the taken rows. `anew` means that rows were shown before."""
        if self._changed:
            self._changed = False
            self.generation += anew
        self._fill(list(self._filled))

    def _fill(self, keys: Sequence[str], progress: Progress | None = None) -> None:
        """Updates these measures, reading each part once for all of them."""
        for key in keys:
            if key not in self._filled:
                self._filled[key] = Filled(_KNOWN[key], self.rows)
        filled = [self._filled[key] for key in keys]
        todo = [part for part in self._parts if any(part not in f.parts for f in filled)]
        for i, (part, piece) in enumerate(self._pieces(todo, columns_of(filled))):
            for f in filled:
                if part not in f.parts:
                    f.take(part, piece)
            if progress is not None:
                progress(i + 1, len(todo))

    # ---- giving out ---------------------------------------------------------------------------------

    @property
    def measures(self) -> list[Measure]:
        """The measures that the run can show."""
        return offered(self.rows, schema.STATS_SCHEMA.names)

    @property
    def has_samples(self) -> bool:
        return self._follow.has_samples

    @property
    def kept(self) -> set[str]:
        """The sites with kept tensors."""
        return self._follow.kept

    @property
    def findings(self) -> list[PlacedFinding]:
        """The findings, the worst first, each with its place among the rows."""
        return placed(self.diagnosis, self.rows)

    @property
    def diagnosis(self) -> Findings:
        """The findings, as the recording process noted them. A run without such a note is diagnosed here, and again when it grows."""
        found = noted(self.run, live=True)
        if found is not None:
            return found
        new = self._evidence.update()
        if new or self._diagnosis is None:
            self._diagnosis = diagnose(self._evidence.evidence)
        return self._diagnosis

    @property
    def loss(self) -> GrowingSeries:
        return self.scalar("loss") or GrowingSeries()

    def scalar(self, site: str) -> GrowingSeries | None:
        """The series of a site, or the first one below it: a step with several optimizers has `loss/d_optimizer` and so on."""
        wanted = Site.parse(site)
        below = (held for name, held in sorted(self.scalars.items()) if _below(Site.parse(name), wanted))
        return self.scalars.get(site) or next(below, None)

    @property
    def speed(self) -> float | None:
        """The recent number of steps per second."""
        (begun, first), (ended, last) = (self._clock[0], self._clock[-1]) if self._clock else ((0, 0), (0, 0))
        return (last - first) / (ended - begun) if ended > begun and last > first else None

    def epoch_of(self, step: int) -> int | None:
        """The epoch of a step."""
        begun = [epoch for epoch, first in self.epochs.items() if first <= step]
        return max(begun, default=None)

    def row(self, name: str) -> int:
        """The index of a row."""
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
        """One measure over rows and steps in a mode; `other` is the run to compare with."""
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
            known = Mode(mode, held.matrix)
        self._modes[key] = known
        related = known.follow(self._against(measure, other) if mode == "run" else None)
        self._let_go(measure)
        return related

    def matrices(self, measures: Sequence[str]) -> dict[str, Matrix]:
        """Several measures at once, reading each part once."""
        self._fill(measures)
        return {key: self._filled[key].matrix for key in measures}

    def _against(self, measure: str, other: Gathered | None) -> Against | None:
        """The current matrix of another run, if it has that measure."""
        if other is None or measure not in [m.key for m in other.measures]:
            return None
        theirs = {row.name: i for i, row in enumerate(other.rows)}
        return Against(other.matrix(measure), np.array([theirs.get(row.name, -1) for row in self.rows]))

    def _let_go(self, keep: str) -> None:
        """Limits memory: drops the least recently used modes first, then such measures."""
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
        """The table rows of these sites at the newest moment up to `step`, and at the one before.

        By site, the newest first, at most two. Only the parts that have them are read.
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
            if table is None or not table.num_rows or first > step:
                continue
            piece = PartColumns(table)
            for site in found:
                at = piece.of(site)
                places = at[piece["step"][at] <= step][-2:][::-1]
                found[site] += table.take(pa.array(places)).select(["step", *columns]).to_pylist()
        return {site: sorted(rows, key=lambda row: -row["step"])[:2] for site, rows in found.items() if rows}

    def histograms(self, sites: Sequence[str], most: int = 160) -> dict[str, tuple[Array, Array]]:
        """The steps and bucket counts (−256…256) of each site over the training.

        For a run with very many parts, only as many are read as the picture has columns, including the first and the last. In a
        part with more steps, several are added and count as the first of them.
        """
        parts = [part for part, (first, last) in self._parts.items() if first <= last]
        found: dict[str, list[tuple[Array, Array]]] = {site: [] for site in sites}
        for i in np.unique(np.linspace(0, len(parts) - 1, min(len(parts), most)).astype(int)):
            table = self._follow.rows(parts[i], ["site", "step", "buckets", "counts"], sites)
            if table is None or not table.num_rows:  # damaged, or without these sites
                continue
            piece = PartColumns(table)
            for site, pieces in found.items():
                rows = table.take(pa.array(piece.of(site)))
                if rows.num_rows:
                    pieces.append(_dense(rows, most))
        return {site: _joined(pieces) for site, pieces in found.items() if pieces}


def _columns_first() -> tuple[str, ...]:
    """The table columns of the measures that are always needed, before the contents of the run are known."""
    return tuple(column for key in _ALWAYS for column in _KNOWN[key].columns)


def _nested(site: str) -> bool:
    """Whether a scalar belongs to a layer, a weight or a tap, and so has no separate series."""
    return Site.parse(site).kind in (*OF_LAYERS, *OF_WEIGHTS, "taps")


def _below(site: Site, wanted: Site) -> bool:
    """Whether a site is the wanted one with a label."""
    return bool(site.label) and site.but(label="", suffix="") == wanted


def _dense(table: pa.Table, most: int) -> tuple[Array, Array]:
    """Steps and counts by bucket for one site. If there are more than `most`, neighbours are added."""
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
