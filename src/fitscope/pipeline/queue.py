"""From the training thread to the disk: a queue bounded in bytes, and one thread that empties it.

The training thread only hands over references; reducing and writing happen during the next steps. Order is kept. When
the queue is full, `"block"` makes the training wait (nothing is lost), `"drop"` refuses what does not fit (the caller
counts it by name). One item larger than the whole queue is let through when the queue is empty.

Small items are worked on several at a time: the writer lets them gather for a moment, so that `work` can share the fixed costs of
a step among many. It does not wait if the queue fills up or somebody waits for it.

No error is lost: if `work` or `idle` raises, the writer's thread passes the error to `on_error` and continues with the next items.
It never dies in silence. `close` waits until everything handed over was worked on; with `"drop"` it waits at most twice `FINISH` seconds.
Without `wait`, the end of the process waits (`unfinished`).

**An exception may strike anywhere on the training thread**: Ctrl-C raises between any two instructions, and the garbage collector may call
`close` in the middle of `put`. Python's conditions and events can be left locked by that, and joining a thread can declare it
dead while it runs (3.11, 3.12). So the two threads share a reentrant queue, numbers with one writer each, and nothing else.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from fitscope.pipeline import unfinished

Item = TypeVar("Item")

AT_ONCE = 64  #: the most items that the writer takes together,
GATHER = 0.02  #: seconds in which they gather, with
LULL = 0.01  #: seconds between two checks whether a thread waits
SMALL = 64  #: an item is small if the queue has room for this many
PATIENCE = 0.05  #: seconds after which a waiting thread checks again without a signal
AT_END = 120.0  #: seconds that the end of a training waits for an unreachable store
FINISH = 10.0  #: seconds that the end of a training waits for the writer, twice, when `when_full` is "drop"


class Owner(Protocol):
    """The object to ask when the process ends before the training; see `unfinished.Writer`."""

    def more_may_come(self) -> bool: ...

    def process_ends(self, signal: str | None) -> None: ...

    def goodbye(self) -> None: ...


class _End:
    """A marker behind the last item of the queue."""


class _Look:
    """A marker in the queue that calls `idle` at once."""


class Transport(Generic[Item]):
    """A bounded queue and its writer thread."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], None],
        idle: Callable[[], float],
        on_error: Callable[[Exception, Sequence[Item]], None],
        *,
        limit: int,
        when_full: str = "block",
        start: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
        skipped: Callable[[Item], None] = lambda _: None,
        owner: Owner | None = None,
    ) -> None:
        self._work = work
        self._idle = idle  # called between items; returns the seconds until the next call is due
        self._on_error = on_error
        self._skipped = skipped  # called with the items that are skipped because the user did not wait
        self._owner = owner
        self._limit = limit
        self._drop = when_full == "drop"
        self._items: queue.SimpleQueue[tuple[Item, int] | type[_End] | type[_Look]] = queue.SimpleQueue()
        self._put_back: type[_End] | type[_Look] | None = (
            None  # a marker found behind items that were taken together
        )
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes waiting threads
        self._waiters = 0
        self._putting = threading.Lock()  # several training threads put in turn; a finalizer never does
        self._closing = False
        self._hurried = False
        self._handed = self._handed_bytes = 0  # items and bytes handed over, counted in `put`
        self._worked = self._worked_bytes = 0  # items and bytes processed, counted by the writer
        self.peak = 0
        self.waited = 0.0  #: seconds that the training thread waited in `put`
        self.full = False  #: whether the last item did not fit
        self._closed_at = 0.0
        self.ready = False  #: whether `start` is done
        self.ended = False  #: whether the writer has finished
        self.start_cpu = 0.0  #: CPU seconds that `start` took
        self._cpu = 0.0  # CPU seconds of the thread, as it last reported them
        self._thread = threading.Thread(
            target=self._run, args=(start, end), name="fitscope-writer", daemon=True
        )
        unfinished.enter(self._thread, self)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads, or the process is ending
            self.ended = True
            unfinished.leave(self._thread)
            raise

    @property
    def queued(self) -> int:
        """The bytes handed over and not processed yet."""
        return self._handed_bytes - self._worked_bytes

    def may_wait(self) -> bool:
        """Whether the writer may wait for its store: the queue has room, or the training ended not long ago."""
        if self._closing:
            return not self._hurried and time.monotonic() < self._closed_at + AT_END
        return not self.full

    @property
    def cpu(self) -> float:
        """The CPU seconds of the writer, without its warm-up."""
        if not self.ready:
            return 0.0
        try:
            alive = not self.ended and self._thread.is_alive()
            clock = time.pthread_getcpuclockid(self._thread.ident or 0) if alive else None
            used = self._cpu if clock is None else time.clock_gettime(clock)
        except (AttributeError, OSError):  # this system has no such clock, or the thread has just ended
            used = self._cpu
        return used - self.start_cpu

    def put(self, item: Item, nbytes: int) -> bool:
        """Hands an item over. Returns False if it did not fit and was dropped, or if the queue is closed."""
        if self.ended:  # in a forked child, where a lock may never be released
            return False
        if self._put(item, nbytes):
            return True
        if not self._drop and not self._closing:
            began = time.perf_counter()
            try:
                while not self._closing and not self.ended:
                    self._listen()
                    if self._put(item, nbytes):
                        return True
            finally:
                self.waited += time.perf_counter() - began
        return False

    def _put(self, item: Item, nbytes: int) -> bool:
        with self._putting:
            self.full = not self._fits(nbytes)
            if self._closing or self.full:
                return False
            # Handed over first: an exception in between makes the queue look emptier than it is, never fuller.
            self._items.put((item, nbytes))
            self._handed += 1
            self._handed_bytes += nbytes
            self.peak = max(self.peak, self.queued)
        return True

    def _fits(self, nbytes: int) -> bool:
        return self._handed <= self._worked or self.queued + nbytes <= self._limit

    def _listen(self) -> None:
        """Waits until the writer is done with an item, or for a moment."""
        self._waiters += 1
        try:
            self._bell.get(timeout=PATIENCE)
        except queue.Empty:
            pass
        finally:
            self._waiters -= 1

    def drain(self) -> None:
        """Waits until everything handed over so far is processed."""
        handed = self._handed
        while self._worked < handed and not self.ended:
            self._listen()

    def look(self) -> None:
        """Makes the writer call `idle` as soon as it can."""
        self._items.put(_Look)

    def close(self, *, wait: bool = True) -> None:
        """Makes the thread process the queue, call `end`, and end. Without `wait` this happens in the background.

        An exception that ends the wait, such as Ctrl-C, does not stop the thread.
        """
        if not self._closing:
            self._closed_at = time.monotonic()
            self._closing = True
            self._items.put(_End)
        if wait and threading.current_thread() is not self._thread:
            if self._drop:
                self._wait_a_while()
            else:
                self.wait()

    def _wait_a_while(self) -> None:
        """With `when_full="drop"`, the end does not wait for a slow disk either: queued items are dropped."""
        for _ in range(2):  # once for the queue, once for the current item
            until = time.monotonic() + FINISH
            while not self.ended and time.monotonic() < until:
                self._listen()
            self._hurried = not self.ended

    # ---- when the process ends: `unfinished.Writer` ----------------------------------------------------------

    def wait(self) -> None:
        while not self.ended:
            self._listen()

    def waiting(self) -> int:
        return max(self._handed - self._worked, 0)

    def hurry(self) -> None:
        self._hurried = True

    def more_may_come(self) -> bool:
        return not self._closing and self._owner is not None and self._owner.more_may_come()

    def process_ends(self, signal: str | None) -> None:
        if self._owner is not None:
            self._owner.process_ends(signal)
        self.close(wait=False)

    def goodbye(self) -> None:
        if self._owner is not None:
            self._owner.goodbye()

    # ---- on the writer's thread ----------------------------------------------------------------------------

    def _run(self, start: Callable[[], None], end: Callable[[], None]) -> None:
        try:
            self._work_off(start)
            self._safely(end)
            self._cpu = time.thread_time()
        finally:
            self.ended = True
            for _ in range(self._waiters + 1):
                self._bell.put(None)
            unfinished.leave(self._thread)

    def _work_off(self, start: Callable[[], None]) -> None:
        self._safely(start)
        self.start_cpu = self._cpu = time.thread_time()
        self.ready = True
        again, last = time.monotonic(), False
        while True:
            try:
                # Another thread may have put an item after the end.
                entry = self._put_back or self._items.get(
                    timeout=0.0 if last else max(0.0, again - time.monotonic())
                )
                self._put_back = None
            except queue.Empty:
                if last:
                    return
                entry = _Look
            if isinstance(entry, tuple):
                items, nbytes = self._gathered(*entry)
                del entry
                self._work_on(items, nbytes)
            elif entry is _End:
                last = True
            else:
                again = 0.0
            if time.monotonic() >= again and not last:
                pause = self._safely(self._idle)
                again = time.monotonic() + (pause if isinstance(pause, float) else 2.0)
            self._cpu = time.thread_time()

    def _work_on(self, items: list[Item], nbytes: int) -> None:
        number = len(items)
        if self._hurried:
            for item in items:
                self._skipped(item)
                del item
        else:
            self._safely(lambda: self._work(items), items)
        items.clear()  # frees the tensors before the queue reports room
        self._worked += number
        self._worked_bytes += nbytes
        if self._waiters and self._bell.empty():
            self._bell.put(None)

    def _gathered(self, item: Item, nbytes: int) -> tuple[list[Item], int]:
        """An item and those behind it, and their bytes. Small items get a moment to gather."""
        items = [item]
        if nbytes * SMALL > self._limit:
            return items, nbytes
        until = time.monotonic() + GATHER
        while not (self._closing or self._waiters or 2 * self.queued > self._limit):
            if self._items.qsize() >= AT_ONCE or time.monotonic() >= until:
                break
            time.sleep(LULL)
        while len(items) < AT_ONCE and 4 * nbytes <= self._limit:
            try:
                entry = self._items.get_nowait()
            except queue.Empty:
                break
            if not isinstance(entry, tuple):
                self._put_back = entry
                break
            items.append(entry[0])
            nbytes += entry[1]
        return items, nbytes

    def _safely(self, call: Callable[[], object], items: Sequence[Item] = ()) -> object:
        try:
            return call()
        except Exception as error:
            self._on_error(error, items)
            return None
