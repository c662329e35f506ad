"""Writes objects and counts the bytes of a run, for its limit.

It counts the objects of this rank at their current size: a replaced object counts once. Metadata may always be written, so that a
full run can still report it; other data asks `room` first.
"""

from __future__ import annotations

from fitscope.store._base import Data, Objects


class Meter:
    """The bytes put, against the bytes allowed."""

    def __init__(self, objects: Objects, limit: int | None = None) -> None:
        self.objects = objects
        self.limit = limit
        self.bytes = 0
        self.promised = 0  #: bytes of objects that accepted records will still need

    def put(self, key: str, data: Data, before: int = 0) -> None:
        """Writes an object that had `before` bytes so far."""
        self.objects.put(key, data)
        self.bytes += len(data) - before

    def room(self, more: int) -> bool:
        """Whether `more` bytes are still allowed."""
        return self.limit is None or self.bytes + self.promised + more <= self.limit
