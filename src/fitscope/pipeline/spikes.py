"""Whether a loss is out of the ordinary: far above the newest ones, or not a number.

A loss is far above them if it lies `FAR` robust standard deviations over their median, its own error taken off, and is at least
`TIMES` the median. Used by the writer's thread alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np

from fitscope.record import Stretch

FAR = 10.0
TIMES = 2.0
NEWEST = 256  #: losses that count
ENOUGH = 16  #: before that nothing is ordinary


class Spikes:
    """The newest losses of one training."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._level = np.inf

    def in_stretch(self, stretch: Stretch) -> int | None:
        """The first step of these whose loss is out of the ordinary, if there is one."""
        values, errors = stretch.values, stretch.errors
        if (
            self._level == np.inf
        ):  # nothing is known yet: these losses tell what is ordinary, a few odd ones among them or not
            self._settle([*self._newest, *values[np.isfinite(values)][:NEWEST]])
        with np.errstate(invalid="ignore"):
            found = (values - errors > self._level) | (~np.isfinite(values) & (errors == 0))
        self._newest.extend(values[np.isfinite(values) & ~found][-NEWEST:].tolist())
        self._settle(self._newest)
        return int(stretch.steps[np.argmax(found)]) if found.any() else None

    def is_one(self, value: float) -> bool:
        """Whether the loss of a captured step is."""
        if not np.isfinite(value) or value > self._level:
            return True
        self._newest.append(value)
        return False

    def _settle(self, usual: Collection[float]) -> None:
        if len(usual) < ENOUGH:
            return
        values = np.array(usual)
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        self._level = max(middle + FAR * spread, TIMES * abs(middle))
