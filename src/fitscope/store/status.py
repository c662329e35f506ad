"""The status that a rank writes at every flush: alive, progress, size and errors.

Any thread may add facts at any time; the writer combines them with its own numbers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from fitscope.store import schema
from fitscope.store.liveness import me

MOST_ERRORS = 50  #: errors kept as text; the rest is only counted


class Status:
    """The facts of status.json that do not come from the writer."""

    def __init__(self) -> None:
        self.word = "running"
        self._who = me()
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}
        self._errors: list[str] = []
        self._errors_total = 0
        self._refused: Counter[str] = Counter()

    def note(self, error: str | None, facts: dict[str, Any]) -> None:
        """Adds an error to the list; other facts replace earlier ones of the same name."""
        with self._lock:
            if error is not None:
                self._errors_total += 1
                if len(self._errors) < MOST_ERRORS:
                    self._errors.append(error)
            self._facts.update(facts)

    def refuse(self, sites: Iterable[str]) -> None:
        """Counts records that the training did not hand over."""
        with self._lock:
            self._refused.update(sites)

    @property
    def refused(self) -> Counter[str]:
        """The number of refused records, by site."""
        with self._lock:
            return self._refused.copy()

    def document(self, **numbers: Any) -> bytes:
        """The current document."""
        with self._lock:
            ours = {
                "status": self.word,
                "heartbeat": time.time(),
                **self._who,
                **numbers,
                "errors": self._errors,
                "errors_total": self._errors_total,
            }
            return schema.encode({**ours, **self._facts, **ours})  # fitscope's keys win
