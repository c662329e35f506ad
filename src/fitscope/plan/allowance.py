"""The seconds that every training may spend on capturing, before its share of the time counts.

Two percent of a training of twenty seconds are only a few captured steps, and a second or two more does not matter. So each training may
spend its allowance, spread evenly over the remaining steps, as `fit` announces them. If their number is unknown, the training is assumed to
last as long again as it has so far, and at least `UNKNOWN` seconds. In a long training the allowance is smaller than the share and
changes nothing.

Compiling the tapped program and proving identity come out of the allowance too, because a user waits for them. They take at most
`COMPILING` of it, so that a program that compiles slowly is still recorded closely.
"""

from __future__ import annotations

import math
import re

from fitscope.errors import WatchError

UNKNOWN = 60.0  #: the assumed minimum duration of a training of unknown length, in seconds
COMPILING = 0.4  #: the most that compiling and proofs may take of an allowance
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


class Allowance:
    """The rest of the allowance of one training."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.again()

    def again(self) -> None:
        """Starts another training."""
        self.spent = 0.0  #: seconds of captures
        self.compiling = 0.0  #: seconds of compiling and proofs
        self.end: int | None = None  #: the step at which the training will be over, where that is known
        self._first: int | None = None

    @property
    def for_captures(self) -> float:
        """The seconds that captures may take."""
        return self.seconds - min(self.compiling, COMPILING * self.seconds)

    def every(self, step: int, plain: float, captured: float) -> float:
        """How many steps to let pass for each captured one, from this step on, given the seconds of a plain step and of a capture."""
        self._first = step if self._first is None else self._first
        left = self.for_captures - self.spent
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
