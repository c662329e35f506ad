"""Puts objects and keeps count of the bytes a run takes up, for its limit.

Only this rank's objects are counted, each at its present size: a replaced object counts once. Metadata may
always be put, so that a run that is full can still say so; what may not is asked with `room` beforehand.
"""

from __future__ import annotations

from fitscope.store._base import Data, Objects


class Meter:
    """The bytes put, against the bytes allowed."""

    def __init__(self, objects: Objects, limit: int | None = None) -> None:
        self.objects = objects
        self.limit = limit
        self.bytes = 0
        self.promised = 0  #: bytes of objects that will be put for what was already accepted

    def put(self, key: str, data: Data, before: int = 0) -> None:
        """Puts an object, which so far had `before` bytes."""
        self.objects.put(key, data)
        self.bytes += len(data) - before

    def room(self, more: int) -> bool:
        """Whether `more` bytes are still allowed."""
        return self.limit is None or self.bytes + self.promised + more <= self.limit
