"""Writes to a remote store that may be unavailable for a while.

obstore repeats a request for some seconds. Outages, lasting throttling and expired credentials remain.
fitscope treats a failed put in two ways:

* **Repeated later.** The callers keep tables, indexes and the status, and put them again at the next flush. One failure is
  enough to know: until the next try is due, further puts fail at once, so a flush of a hundred objects takes no longer than one.
* **Waited for.** A chunk of a large tensor would be lost. So inside `waiting()` a put is repeated as long as `may_wait` allows: while
  the queue between training and writer has room, and for a while after the training has ended.

Everything else is passed on.
"""

from __future__ import annotations

import builtins
import contextlib
import time
from collections.abc import Callable, Iterator

from fitscope.store._base import Data, Objects

FIRST, LONGEST = 0.5, 10.0  #: seconds until the next try, which double
LOOK = 0.05  #: seconds between two checks whether to keep waiting


class PatientStore(Objects):
    """The objects of one rank in a remote store. For one thread."""

    def __init__(self, inner: Objects, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner = inner
        self.may_wait: Callable[[], bool] = lambda: False  #: whether the writer may wait now
        self.troubled: Callable[[str], None] = _nobody  #: called once for each outage that it waits for
        self._clock = clock
        self._waits = False
        self._failed: OSError | None = None  # the error of the last try
        self._pause = FIRST
        self._next_try = 0.0

    @property
    def requests(self) -> int | None:
        return self.inner.requests

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Repeats a failed put inside the block while `may_wait` allows."""
        before, self._waits = self._waits, True
        try:
            yield
        finally:
            self._waits = before

    def try_now(self) -> None:
        """Tries the next put even during an outage, because no later one follows."""
        self._next_try = 0.0

    def put(self, key: str, data: Data) -> None:
        if self._failed is not None and not self._wait():
            raise self._failed
        while True:
            try:
                self.inner.put(key, data)
            except OSError as problem:
                self._note(problem)
                if not self._wait():
                    raise
            else:
                self._failed, self._pause = None, FIRST
                return

    def create(self, key: str, data: Data) -> bool:
        return self.inner.create(key, data)

    def get(self, key: str, most: int | None = None) -> bytes:
        return self.inner.get(key, most)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def list(self, folder: str = "") -> builtins.list[str]:
        return self.inner.list(folder)

    def folder(self, name: str) -> Objects:
        return self.inner.folder(name)

    def describe(self, key: str = "") -> str:
        return self.inner.describe(key)

    def _note(self, problem: OSError) -> None:
        if self._failed is None and self._waits:
            self.troubled(f"the store does not take what is written, and is tried again: {problem}")
        self._failed = problem
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST)

    def _wait(self) -> bool:
        """Waits for the next try. False if it is not due and the writer may not wait."""
        while self._clock() < self._next_try:
            if not (self._waits and self.may_wait()):
                return False
            time.sleep(LOOK)
        return True


def _nobody(_: str) -> None:
    pass
