"""Decides how often a rank writes, and so how many requests a run costs.

In a directory a flush is cheap, so only its spacing in time counts. An object store has a price per request and limits on their
rate, and a training may have a thousand ranks. There a rank makes at most `PER_MINUTE` requests a minute, whatever the number of
its layers: half of them for tables and status, which the live page needs soon, half for kept tensors and averages, which need one
or two for each site. The only requests beyond that are the chunks of large tensors, one for each, when they are captured.

A light rank (`sampled_ranks`) writes only its status, every `LIGHT_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fitscope.store._base import Objects

PER_MINUTE = 60  #: the most requests of one rank to an object store
LIGHT_SECONDS = (
    30.0  #: seconds between two writes of a light rank; readers call it dead after four times as long
)
LOOK_SECONDS = 30.0  #: seconds between two checks that a run in an object store is still there


def interval(runtime: float) -> float:
    """The seconds to the next flush. They grow with the run: a day has about 4,000 flushes."""
    return min(max(runtime / 500.0, 2.0), 30.0)


def sampled_ranks(world: int, most: int | None) -> list[int] | None:
    """The ranks that record everything: rank 0 and others at even distances. None: all of them."""
    if most is None or world <= most:
        return None
    return [n * world // most for n in range(most)]


class Pace:
    """Decides when one rank may write next, from the requests that it made."""

    def __init__(self, objects: Objects, clock: Callable[[], float] = time.monotonic) -> None:
        self.light = False  #: whether the rank writes only its status
        self._objects = objects
        self._clock = clock
        self._tables = self._tensors = 0  # requests in the last flush
        # The earliest times of the next commit of tensors and the next look.
        self._tensors_at = self._look_at = 0.0

    @property
    def _costly(self) -> bool:
        return self._objects.requests is not None

    def pause(self, runtime: float) -> float:
        """The seconds from the flush that just ended to the next."""
        usual = max(interval(runtime), LIGHT_SECONDS) if self.light else interval(runtime)
        return max(usual, self._tables * _SECONDS)

    def counted(self, write: Callable[[], object], *, tensors: bool = False) -> None:
        """Calls the write, and counts the requests that it made."""
        before = self._objects.requests
        write()
        made = (self._objects.requests or 0) - (before or 0)
        if tensors:
            self._tensors_at = self._clock() + made * _SECONDS
        else:
            self._tables = made

    def tensors_due(self) -> bool:
        """Whether kept tensors may be committed now."""
        return not self._costly or self._clock() >= self._tensors_at

    def look_due(self) -> bool:
        """Whether to check that the run is still there. A light rank has nothing to lose there."""
        if self.light:
            return False
        if self._costly and self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_SECONDS
        return True


_SECONDS = 2 * 60.0 / PER_MINUTE  # for each request, of tables or of tensors
