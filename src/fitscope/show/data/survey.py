"""Surveys a run: the sites, steps and epochs of its parts, its scalars, NaN and Inf, and the times of its steps.

This is everything that the page knows about a run apart from its matrices. It surveys every part once, when it is new.
"""

from __future__ import annotations

import numpy as np

from fitscope.show.data.facts import Facts
from fitscope.show.data.fill import PartColumns
from fitscope.show.data.matrix import Array
from fitscope.show.data.series import GrowingSeries
from fitscope.sites import OF_LAYERS, OF_WEIGHTS, Site

#: The columns that a survey reads.
COLUMNS = ("site", "step", "epoch", "time", "value", "count", "nans", "infs")


class Survey:
    """The contents of the parts taken so far."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.scalars: dict[str, GrowingSeries] = {}
        self.sites: set[str] = set()
        self.epochs: dict[int, int] = {}  #: epoch → its first recorded step
        self.last_step: int | None = None
        self.clock: list[tuple[int, float]] = []  #: steps and when they were recorded, in order
        self._recent: list[tuple[float, int]] = []  # time and step of the newest records, for the speed

    def take(self, piece: PartColumns) -> None:
        """Takes the columns of a part."""
        step = piece["step"]
        self.last_step = max(self.last_step if self.last_step is not None else -1, int(step.max()))
        largest = piece.largest("count")
        self.sites |= {name for name, count in zip(piece.names, largest, strict=True) if count >= 0}
        broken = np.flatnonzero((piece["nans"] > 0) | (piece["infs"] > 0))
        for site, at in piece.stretches(broken) if len(broken) else ():
            self.facts.take(site, step[at], piece["nans"][at], piece["infs"][at])
        scalar = (largest >= 0) & (largest <= 1)
        scalar[scalar] = [not _nested(piece.names[code]) for code in np.flatnonzero(scalar)]
        known = np.flatnonzero(
            scalar[piece.codes] & (piece["count"] > 0)
        )  # a count of 0 marks an unknown loss
        for site, at in piece.stretches(known) if len(known) else ():
            value = np.where(piece["infs"][at] > 0, np.inf, piece["value"][at])
            self.scalars.setdefault(site, GrowingSeries()).add(step[at], value)
        epochs = piece["epoch"]
        for epoch in np.unique(epochs).tolist():
            first = int(step[epochs == epoch].min())
            self.epochs[epoch] = min(self.epochs.get(epoch, first), first)
        self._time(step, piece["time"])
        newest = int(np.argmax(piece["time"]))
        self._recent = [*self._recent[-9:], (float(piece["time"][newest]), int(step[newest]))]

    def _time(self, step: Array, time: Array) -> None:
        """Records the times of the first and the last step of a part, in order and not too often."""
        for place in (int(np.argmin(step)), int(np.argmax(step))):
            at = (int(step[place]), float(time[place]))
            if not self.clock or (at[0] > self.clock[-1][0] and at[1] > self.clock[-1][1]):
                self.clock.append(at)
        if len(self.clock) > 256:
            self.clock = [*self.clock[:-1:2], self.clock[-1]]

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
        (begun, first), (ended, last) = (
            (self._recent[0], self._recent[-1]) if self._recent else ((0, 0), (0, 0))
        )
        return (last - first) / (ended - begun) if ended > begun and last > first else None

    def epoch_of(self, step: int) -> int | None:
        """The epoch of a step."""
        begun = [epoch for epoch, first in self.epochs.items() if first <= step]
        return max(begun, default=None)


def _nested(site: str) -> bool:
    """Whether a scalar belongs to a layer, a weight or a tap, and so has no separate series."""
    return Site.parse(site).kind in (*OF_LAYERS, *OF_WEIGHTS, "taps")


def _below(site: Site, wanted: Site) -> bool:
    """Whether a site is the wanted one with a label."""
    return bool(site.label) and site.but(label="", suffix="") == wanted
