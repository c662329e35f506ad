"""The standouts of the page, in words, from the statistics alone.

There are four: the first NaN or Inf, batches with an unusual loss, layers whose output stays zero, and layers that jump for a
batch. Each names a row of the picture and a step. New rows update them; nothing is computed from the start again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fitscope.show.data.matrix import VALUE, Array, Cells, Matrix
from fitscope.show.data.rows import Row
from fitscope.show.data.series import GrowingSeries
from fitscope.sites import TRAIN, Site

MANY_ZEROS = 0.98  #: the share from which on an output counts as zero
STAYED = 5  #: recorded steps it must stay so
JUMP = 4.0  #: doublings from one recorded batch to the next
SPIKE = 8.0  #: times the usual distance from the running median
WINDOW = 51  #: recorded steps of the running median

#: The order in which things happen within a step; layers forward for some, backward for others.
_ORDER = (
    "inputs",
    "weights",
    "activations",
    "predictions",
    "loss",
    "gradients",
    "weight_gradients",
    "updates",
)
_WORDS = {
    "activations": "output",
    "gradients": "gradient",
    "weights": "weights",
    "weight_gradients": "weight gradient",
    "updates": "update",
}


@dataclass(frozen=True, slots=True)
class Standout:
    """One fact."""

    severity: str  #: error, warning or note
    title: str
    text: str
    lane: str
    step: int
    end: int  #: the last step it was seen at
    row: str | None = None
    site: str | None = None
    measure: str | None = None  #: what shows it best

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Facts:
    """The facts of one run."""

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self.first: dict[str, dict[str, int]] = {"nans": {}, "infs": {}}  #: by site: the exact first step
        self.broken: set[int] = set()  #: steps with something that is not finite
        self._amount: dict[str, tuple[int, int]] = {}  # by site: how many of how many at that first step
        self.spikes: list[tuple[int, float, float]] = []  #: step, loss, running median
        self._looked = 0
        self._zeros = Streaks()
        self._jumps = Jumps()

    def settle(self, rows: Sequence[Row]) -> None:
        """Sets the rows of the picture, and forgets everything known by row."""
        self.rows = rows
        self._zeros, self._jumps = Streaks(), Jumps()

    def take(self, site: str, step: Array, nans: Array, infs: Array, count: Array) -> None:
        """Takes rows of the table for one site."""
        for name, counts in (("nans", nans), ("infs", infs)):
            at = np.flatnonzero(counts > 0)
            if len(at):
                self.broken.update(step[at].tolist())
                where = at[np.argmin(step[at])]
                first = int(step[where])
                if first < self.first[name].get(site, first + 1):
                    self.first[name][site] = first
                    self._amount[f"{name} {site}"] = (int(counts[where]), int(count[where]))

    def take_loss(self, loss: GrowingSeries) -> None:
        """Takes new losses. A spike is judged by the losses before it."""
        if loss.count <= self._looked:
            return
        values = np.where(np.isfinite(loss.values), loss.values, np.nan)
        first = max(self._looked, 5)
        past = np.concatenate([np.full(WINDOW, np.nan), values])
        windows = np.lib.stride_tricks.sliding_window_view(past, WINDOW)[first : loss.count]
        for begin in range(0, len(windows), 4096):
            some = windows[begin : begin + 4096]
            with np.errstate(invalid="ignore"):
                middle = _median(some)
                usual = np.maximum(1.48 * _median(np.abs(some - middle[:, None])), 0.05 * np.abs(middle))
                now = values[first + begin : first + begin + len(some)]
                odd = np.flatnonzero(now - middle > SPIKE * usual)
            self.spikes += [
                (int(loss.steps[first + begin + i]), float(now[i]), float(middle[i])) for i in odd
            ]
        self._looked = loss.count

    def take_zeros(self, zeros: Matrix) -> None:
        self._zeros.take(zeros)

    def take_jumps(self, size: Matrix) -> None:
        self._jumps.take(size)

    def findings(self) -> list[Standout]:
        """The standouts, the worst first, then the earliest."""
        found = [*self._not_finite(), *self._stayed_zero(), *self._jumped(), *self._spiked()]
        rank = {"error": 0, "warning": 1, "note": 2}
        return sorted(found, key=lambda finding: (rank[finding.severity], finding.step))

    def lanes(self) -> list[dict[str, Any]]:
        """The stretches of steps of each standout."""
        zero = [(streak.begin, streak.end) for streak in self._zeros.long() if self._a_layer(streak.row)]
        return [
            {"name": "NaN / Inf", "severity": "error", "spans": _stretches(sorted(self.broken))},
            {"name": "stays zero", "severity": "warning", "spans": _united(zero)},
            {
                "name": "jumps",
                "severity": "warning",
                "spans": [(s, s) for s in self._jumps.steps(self._a_layer)],
            },
            {
                "name": "loss spikes",
                "severity": "note",
                "spans": [(step, step) for step, _, _ in self.spikes],
            },
        ]

    def _a_layer(self, row: int) -> bool:
        """Whether a row is a layer: inputs and targets may be zero or jump."""
        return row < len(self.rows) and self.rows[row].type not in ("inputs", "targets")

    def _not_finite(self) -> list[Standout]:
        found = []
        for name, word in (("nans", "NaN"), ("infs", "Inf")):
            firsts = self.first[name]
            if firsts:
                step = min(firsts.values())
                at_once = [site for site, first in firsts.items() if first == step]
                site = min(at_once, key=self._moment)
                found.append((step, name, word, site, len(firsts), len(at_once)))
        found.sort(key=lambda f: f[0])
        return [self._born(*facts, first=i == 0) for i, facts in enumerate(found)]

    def _born(
        self, step: int, name: str, word: str, site: str, all_sites: int, at_once: int, *, first: bool
    ) -> Standout:
        bad, count = self._amount[f"{name} {site}"]
        facts = Site.parse(site)
        walk, kind = ("" if facts.in_pass == TRAIN else facts.in_pass), facts.kind
        row = next((r.name for r in self.rows if any(site in of for of in r.sites.values())), None)
        what = _WORDS.get(kind, kind) + (f" of {row}" if row is not None and kind in _WORDS else "")
        others = f"; {at_once - 1} more in the same step" if at_once > 1 else ""
        later = f", {all_sites - at_once} later" if all_sites > at_once else ""
        text = (
            f"first {word}: {what}{f' in {walk}' if walk else ''}, {bad:,} of {count:,} values{others}{later}"
        )
        measure = f"{walk or kind}.rms" if kind in _WORDS else None
        title = f"{word} born here · {row or site}" if first else f"{word} · {row or site}"
        last = max(self.broken, default=step)
        return Standout("error", title, text, "NaN / Inf", step, last, row, site, measure)

    def _moment(self, site: str) -> tuple[int, int]:
        """The order of a site within the step: earlier sites may be the cause, later ones the effect."""
        facts = Site.parse(site)
        walk, kind = ("" if facts.in_pass == TRAIN else facts.in_pass), facts.kind
        place = next(
            (i for i, row in enumerate(self.rows) if any(site in of for of in row.sites.values())), 0
        )
        backward = kind in ("gradients", "weight_gradients", "updates")
        order = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
        return (order + (len(_ORDER) if walk else 0), -place if backward else place)

    def _stayed_zero(self) -> list[Standout]:
        found = []
        for streak in self._zeros.long():
            if self._a_layer(streak.row):
                name, begin, end = self.rows[streak.row].name, streak.begin, streak.end
                since = f"since step {begin:,}" if streak.open else f"steps {begin:,} to {end:,}"
                much = "all" if streak.least >= 0.9999 else f"{100 * streak.least:.3g} % or more"
                text = f"{much} of its output is zero, {since}"
                found.append(
                    Standout("warning", f"Stays zero · {name}", text, "stays zero", begin, end, name,
                            f"activations/{name}", "activations.zeros")
                )  # fmt: skip
        return found[:8]

    def _jumped(self) -> list[Standout]:
        by_row = self._jumps.first_rows(self._a_layer)
        found = []
        for row, jumps in by_row.items():
            step, size = max(jumps, key=lambda jump: jump[1])
            name = self.rows[row].name
            times = f"{len(jumps)} times, first at step {jumps[0][0]:,}, most" if len(jumps) > 1 else "once,"
            text = f"output grew {2**size:,.0f}-fold from one recorded batch to the next; {times} at step {step:,}"
            found.append(
                Standout("warning", f"Jumps · {name}", text, "jumps", jumps[0][0], jumps[-1][0], name,
                        f"activations/{name}", "activations.rms")
            )  # fmt: skip
        return sorted(found, key=lambda finding: finding.step)[:4]

    def _spiked(self) -> list[Standout]:
        if not self.spikes:
            return []
        step, value, usual = max(self.spikes, key=lambda spike: spike[1] - spike[2])
        others = f"; {len(self.spikes)} spikes in all" if len(self.spikes) > 1 else ""
        text = f"loss {value:.3g} at step {step:,}, where {usual:.3g} was usual{others}"
        return [Standout("note", "Loss spike", text, "loss spikes", step, self.spikes[-1][0], None, "loss")]


@dataclass(slots=True)
class Streak:
    """A row whose share of zeros stayed high."""

    row: int
    begin: int  #: the first step
    end: int  #: the last
    count: int = 0  #: recorded steps
    least: float = 1.0  #: the lowest share
    open: bool = True  #: whether it is still so


class Streaks:
    """Rows whose share of zeros stays high."""

    def __init__(self) -> None:
        self._seen = 0
        self._since: dict[int, Streak] = {}  # by row
        self._ended: list[Streak] = []

    def take(self, zeros: Matrix) -> None:
        for first, stop in zeros.blocks(self._seen):
            self._look(zeros, zeros.cells(first, stop), zeros.steps[first:stop])
            self._seen = stop

    def _look(self, zeros: Matrix, cells: Cells, steps: Array) -> None:
        high = (cells.flags & VALUE > 0) & (zeros.code.decode(cells.low) >= MANY_ZEROS)
        dull = (cells.flags & VALUE > 0) & ~high
        for row in np.flatnonzero(high.any(axis=1) | np.isin(np.arange(zeros.rows), list(self._since))):
            self._follow(int(row), high[row], dull[row], steps, zeros.code.decode(cells.low[row]))

    def _follow(self, row: int, high: Array, dull: Array, steps: Array, share: Array) -> None:
        for at in np.flatnonzero(high | dull):
            step = int(steps[at])
            if high[at]:
                now = self._since.get(row) or self._since.setdefault(row, Streak(row, step, step))
                now.end, now.count, now.least = step, now.count + 1, min(now.least, float(share[at]))
            elif (over := self._since.pop(row, None)) is not None and over.count >= STAYED:
                over.open = False
                self._ended.append(over)

    def long(self) -> list[Streak]:
        """The long streaks, those that still last first."""
        now = [streak for streak in self._since.values() if streak.count >= STAYED]
        return sorted(now, key=lambda streak: streak.row) + self._ended[-20:]


class Jumps:
    """Rows that grow many-fold from one recorded step to the next."""

    def __init__(self) -> None:
        self._seen = 0
        self._at: dict[int, list[tuple[int, float]]] = {}  # step: rows and doublings

    def take(self, size: Matrix) -> None:
        for begin, stop in size.blocks(self._seen):
            first = max(begin - 1, 0)  # the one before the new ones, to compare with
            self._look(size, size.cells(first, stop), size.steps[first:stop])
            self._seen = stop

    def _look(self, size: Matrix, cells: Cells, steps: Array) -> None:
        if len(steps) > 1:
            number = np.where(cells.flags & VALUE, cells.high, 0).astype(np.int32)
            both = (number[:, 1:] > 0) & (number[:, :-1] > 0)
            grown = np.where(both, number[:, 1:] - number[:, :-1], 0) * size.code.step
            for row, column in np.argwhere(grown >= JUMP):
                self._at.setdefault(int(steps[column + 1]), []).append((int(row), float(grown[row, column])))

    def steps(self, counts: Any) -> list[int]:
        return [step for step, rows in sorted(self._at.items()) if any(counts(row) for row, _ in rows)]

    def first_rows(self, counts: Any) -> dict[int, list[tuple[int, float]]]:
        """The steps and sizes (in doublings) of jumps, for each row that was the first of its step to jump."""
        found: dict[int, list[tuple[int, float]]] = {}
        for step, rows in sorted(self._at.items()):
            real = [(row, size) for row, size in rows if counts(row)]
            if real:
                row, size = min(real)
                found.setdefault(row, []).append((step, size))
        return found


def _median(windows: Array) -> Array:
    """The median of each row without NaN; NaN for a row of only NaN."""
    ordered = np.sort(windows, axis=1)  # NaN come last
    count = (~np.isnan(windows)).sum(axis=1)
    rows = np.arange(len(windows))
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    high = ordered[rows, np.minimum(count // 2, windows.shape[1] - 1)]
    middle: Array = np.where(count > 0, (low + high) / 2, np.nan)
    return middle


def _stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Steps as stretches; a gap of at most twice the usual one does not end a stretch."""
    if not steps:
        return []
    gaps = np.diff(np.asarray(steps))
    usual = 2 * float(np.median(gaps)) if len(gaps) else 0
    ends = np.flatnonzero(gaps > usual)
    begins = [0, *(ends + 1).tolist()]
    return [
        (int(steps[a]), int(steps[b])) for a, b in zip(begins, [*ends.tolist(), len(steps) - 1], strict=True)
    ]


def _united(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united


def by_name(findings: Sequence[Standout]) -> Mapping[str, list[Standout]]:
    """The findings by the row they name."""
    found: dict[str, list[Standout]] = {}
    for finding in findings:
        if finding.row is not None:
            found.setdefault(finding.row, []).append(finding)
    return found
