"""The settings of a black box: how many steps it keeps, in how much memory, and for which findings it writes them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fitscope import sizes
from fitscope.errors import WatchError, one_of

#: From the mildest to the worst finding that makes a black box write.
SEVERITIES = ("warning", "error")


@dataclass(frozen=True, slots=True)
class BlackBox:
    """A flight recorder: `fs.Scope(black_box=fs.BlackBox(20, memory="2 GB", severity="warning"))`.

    Args:
        steps: The number of training steps to keep.
        memory: The memory that they may take, in bytes or like "1 GB". The oldest steps are dropped first.
        severity: Write the steps at a finding of this severity or worse: "error" or "warning". A training that dies is
            always written.
    """

    steps: int = 20
    memory: int | str = "1 GB"
    severity: str = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise WatchError(
                "the `steps` of a black box to be a whole number, at least 1",
                repr(self.steps),
                "Write black_box=20 or fs.BlackBox(steps=20)",
            )
        if self.severity not in SEVERITIES:
            raise WatchError(
                "`severity` to be the severity of a finding",
                repr(self.severity),
                one_of(SEVERITIES, str(self.severity)),
            )
        _ = self.bytes

    @property
    def bytes(self) -> int:
        """The memory in bytes."""
        return sizes.parse(self.memory, "memory") or sys.maxsize

    def writes_at(self, severity: str) -> bool:
        """Whether a finding of this severity makes the box write."""
        return severity in SEVERITIES and SEVERITIES.index(severity) >= SEVERITIES.index(self.severity)


def black_box(given: BlackBox | int | None) -> BlackBox | None:
    """The settings as given to a scope: a number of steps, a `BlackBox`, or None."""
    return given if given is None or isinstance(given, BlackBox) else BlackBox(given)
