"""Decides whether a loss is unusual: far above the newest losses, or NaN or Inf.

A loss is far above them if, minus its own error, it is `FAR` robust standard deviations above their median and at least `TIMES` the
median. Used by the writer's thread alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from fitscope.record import Stretch

FAR = 10.0
TIMES = 2.0
NEWEST = 256  #: the newest losses that count
TOGETHER = 64  #: losses that are compared only with earlier ones: a training begins with high losses
ENOUGH = 16  #: with fewer losses, none is unusual


class Spikes:
    """The newest losses of one training."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._level = np.inf

    def in_stretch(self, stretch: Stretch) -> int | None:
        """The first of these steps with an unusual loss, if any."""
        for first in range(0, len(stretch), TOGETHER):
            some = slice(first, first + TOGETHER)
            values, errors = stretch.values[some], stretch.errors[some]
            with np.errstate(invalid="ignore"):
                found = (values - errors > self._level) | (~np.isfinite(values) & (errors == 0))
            self._newest.extend(values[np.isfinite(values) & ~found].tolist())
            self._settle()
            if found.any():
                return int(stretch.steps[some][np.argmax(found)])
        return None

    def is_one(self, value: float) -> bool:
        """Whether the loss of a captured step is unusual."""
        if not np.isfinite(value) or value > self._level:
            return True
        self._newest.append(value)
        return False

    def _settle(self) -> None:
        if len(self._newest) < ENOUGH:
            return
        values = np.array(self._newest)
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        self._level = max(middle + FAR * spread, TIMES * abs(middle))
