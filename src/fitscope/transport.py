"""From the training thread to the disk: a queue bounded in bytes, and one thread that empties it.

The training thread only hands over references; reducing and writing happen beside the next step. Order is kept. When
the queue is full, `"block"` makes the training wait (nothing is lost), `"drop"` refuses what does not fit (the caller
counts it by name). One item larger than the whole queue is let through when the queue is empty.

Errors come home: whatever `work` or `idle` raises is given to `on_error`, in the writer's thread, and the writer goes on
with the next item. It never dies in silence. `close` waits until everything handed over was worked on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Transport(Generic[Item]):
    """A bounded queue and its writer thread."""

    def __init__(
        self,
        work: Callable[[Item], None],
        idle: Callable[[], float],
        on_error: Callable[[Exception, Item | None], None],
        *,
        limit: int,
        when_full: str = "block",
        start: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._idle = idle  # called between items; says after how many seconds it wants to be called again
        self._on_error = on_error
        self._limit = limit
        self._drop = when_full == "drop"
        self._items: deque[tuple[Item, int]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._working = False
        self.queued = 0  #: bytes handed over and not worked on yet
        self.peak = 0
        self.waited = 0.0  #: seconds the training thread stood in `put`
        self.ready = False  #: whether `start` is done
        self.start_cpu = 0.0  #: seconds of CPU that it took
        self._cpu = 0.0  # of the thread, as it last said itself
        self._thread = threading.Thread(
            target=self._run, args=(start, end), name="fitscope-writer", daemon=True
        )
        self._thread.start()

    @property
    def cpu(self) -> float:
        """Seconds of CPU that the writer has used, without getting ready."""
        if not self.ready:
            return 0.0
        try:
            clock = time.pthread_getcpuclockid(self._thread.ident or 0) if self._thread.is_alive() else None
            used = self._cpu if clock is None else time.clock_gettime(clock)
        except (AttributeError, OSError):  # not on this system; or it has just ended
            used = self._cpu
        return used - self.start_cpu

    def put(self, item: Item, nbytes: int) -> bool:
        """Hands an item over. False: it did not fit and was dropped."""
        with self._changed:
            if not self._fits(nbytes):
                if self._drop:
                    return False
                began = time.perf_counter()
                while not self._fits(nbytes) and self._thread.is_alive():
                    self._changed.wait(timeout=1.0)
                self.waited += time.perf_counter() - began
            self._items.append((item, nbytes))
            self.queued += nbytes
            self.peak = max(self.peak, self.queued)
            self._changed.notify_all()
        return True

    def _fits(self, nbytes: int) -> bool:
        return self.queued == 0 or self.queued + nbytes <= self._limit

    def drain(self) -> None:
        """Waits until everything handed over so far was worked on."""
        with self._changed:
            while (self._items or self._working) and self._thread.is_alive():
                self._changed.wait(timeout=1.0)

    def close(self, *, wait: bool = True) -> None:
        """Has the thread work off what is queued, call `end`, and end. Without `wait` it does so by itself."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, start: Callable[[], None], end: Callable[[], None]) -> None:
        self._work_off(start)
        self._safely(end)
        self._cpu = time.thread_time()

    def _work_off(self, start: Callable[[], None]) -> None:
        self._safely(start)
        self.start_cpu = self._cpu = time.thread_time()
        self.ready = True
        again = time.monotonic()
        while True:
            with self._changed:
                if not self._items and not self._closing:
                    self._changed.wait(timeout=max(0.0, again - time.monotonic()))
                if not self._items and self._closing:
                    return
                entry = self._items.popleft() if self._items else None
                self._working = entry is not None
            if entry is not None:
                item, nbytes = entry
                self._safely(lambda item=item: self._work(item), item)  # type: ignore[misc]
                del item, entry  # the tensors, before the queue says there is room
                with self._changed:
                    self._working = False
                    self.queued -= nbytes
                    self._changed.notify_all()
            if time.monotonic() >= again:
                pause = self._safely(self._idle)
                again = time.monotonic() + (pause if isinstance(pause, float) else 2.0)
            self._cpu = time.thread_time()

    def _safely(self, call: Callable[[], object], item: Item | None = None) -> object:
        try:
            return call()
        except Exception as error:
            self._on_error(error, item)
            return None
