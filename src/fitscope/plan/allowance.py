"""The seconds that every training may spend on capturing, before its share of the time counts.

Two percent of a training of twenty seconds are only a few captured steps, and a second or two more does not matter. So each training may
spend its allowance, spread evenly over the remaining steps, as `fit` announces them. If their number is unknown, the training is assumed to
last as long again as it has so far, and at least `UNKNOWN` seconds. In a long training the allowance is smaller than the share and
changes nothing.

The allowance is a promise about the whole training: all that fitscope adds to it. So the fixed costs come out of it too: compiling the
tapped program, proving identity, and compiling the kernels of the writer thread. Captures have the rest. Flushes and rules do not
count: they follow the clock, so on a busy machine they would take the steps of a short training.

Where fixed costs leave little, a training still gets `FEWEST` captured steps, as far as these cost no more than `RESERVED` of the
allowance. There the promise gives way, because a run of ten steps would be of little use.
"""

from __future__ import annotations

import math
import re

from fitscope.errors import WatchError

UNKNOWN = 60.0  #: the assumed minimum duration of a training of unknown length, in seconds
FEWEST = 320  #: captured steps that a training gets despite its fixed costs,
RESERVED = 0.6  #: if they cost at most this share of the allowance
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


class Allowance:
    """The rest of the allowance of one training."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.again()

    def again(self) -> None:
        """Starts another training."""
        self.spent = 0.0  #: seconds of captures
        self.fixed = 0.0  #: seconds that do not depend on the number of captures
        self.end: int | None = None  #: the step at which the training will end, if known
        self._first: int | None = None

    def for_captures(self, captured: float) -> float:
        """The seconds that captures may take, given those of one."""
        return max(self.seconds - self.fixed, min(RESERVED * self.seconds, FEWEST * captured))

    def every(self, step: int, plain: float, captured: float) -> float:
        """The number of steps per captured step, from this step on, given the seconds of a plain step and of a capture."""
        self._first = step if self._first is None else self._first
        left = self.for_captures(captured) - self.spent
        if left <= 0:
            return math.inf
        so_far = step - self._first
        ahead = max(so_far, UNKNOWN / plain) if self.end is None else max(self.end - step, 1)
        return ahead * captured / left


def seconds(value: float | str, name: str) -> float:
    """Parses a duration: seconds, or a string like "3 s", "500 ms", "1 min"."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    found = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s|min|h)\s*", value) if isinstance(value, str) else None
    try:
        if found is not None:
            return float(found[1]) * _UNITS[found[2]]
    except ValueError:
        pass
    raise WatchError(
        f"`{name}` to be a number of seconds from 0 up, or a text like '3 s' or '500 ms'",
        repr(value),
        f"Write {name}='3 s', or {name}=0 for none",
    )
