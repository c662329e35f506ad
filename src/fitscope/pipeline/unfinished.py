"""Knows the writers that have not ended, and waits for them when the process ends.

A writer enters when its thread starts and leaves when its thread has ended, and not before: the end of its training or of a wait
does not count. So every end of the process that Python sees (the end of the script, an uncaught exception, `sys.exit`, the end of a
`multiprocessing` child) waits for every writer with a queue.

Python waits in two places. Functions of `threading` run first, before Python joins threads and before any `atexit` function:
JAX and TensorFlow tear themselves down there, executors and the starting of threads end in between, and captured tensors are
theirs. Writers whose training may still run in another thread wait until those threads are joined, in `atexit`.

Nothing here takes a lock. A second Ctrl-C, a signal handler or the garbage collector may run at any instruction, also in the middle of
a call to this module.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - it stops executors at the end; those before us in this list stop after us
import contextlib
import os
import signal
import sys
import threading
from typing import Protocol


class Writer(Protocol):
    """The methods that this module needs from a writer. A signal handler may call all but the last two."""

    ended: bool  #: whether its thread has finished

    def more_may_come(self) -> bool:
        """Whether the training continues although the main thread has ended."""

    def process_ends(self, signal: str | None) -> None:
        """Closes the queue, empties it, and ends, without waiting. `signal` is the signal that ends the process, if any."""

    def hurry(self) -> None:
        """Skips and counts the queued items."""

    def waiting(self) -> int:
        """The number of queued items."""

    def wait(self) -> None:
        """Returns when `ended`. A KeyboardInterrupt may end the wait."""

    def goodbye(self) -> None:
        """Reports errors at the end of the process, after the writer has ended."""


#: By thread. A thread stays until it is no longer alive, its writer until it has ended: a writer knows a whole model.
_all: dict[threading.Thread, Writer | None] = {}
Ending = dict[threading.Thread, Writer]

_registered = False
_given_up = False  # whether the user refused to wait at all
_dying: tuple[int, set[threading.Thread]] | None = None  # the signal, and the writers that it waits for


def enter(thread: threading.Thread, writer: Writer) -> None:
    """Registers a writer that is about to start its thread."""
    _register()
    for other, still in list(_all.items()):
        if still is None and not other.is_alive():
            _all.pop(other, None)
    _all[thread] = writer


def leave(thread: threading.Thread) -> None:
    """Unregisters a writer, as the last action of its thread."""
    if thread in _all:
        _all[thread] = None
    if _dying is not None:
        _dying[1].discard(thread)
        _die()


def writers() -> list[Writer]:
    """The writers that have not ended."""
    return [writer for writer in list(_all.values()) if writer is not None]


def terminate(number: int) -> None:
    """Lets the process die of a signal with its default action, as soon as every current writer has ended.

    The training thread continues in the meantime, because the writers may need something from it.
    """
    global _dying
    there = {thread: writer for thread, writer in list(_all.items()) if writer is not None}
    _dying = number, set(there)
    for writer in there.values():
        writer.process_ends(signal.Signals(number).name)
    _dying[1].intersection_update({thread for thread, writer in list(_all.items()) if writer is not None})
    _die()


def _die() -> None:
    if _dying is not None and not _dying[1]:
        os.kill(os.getpid(), _dying[0])


def _register() -> None:
    """Registers the exit functions at the first writer, after those of the frameworks: the last one registered runs first."""
    global _registered
    if not _registered:
        _registered = True
        # Python 3.9 to 3.14. Private; without it `atexit` does all, and runs before the frameworks' functions.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            with contextlib.suppress(RuntimeError):  # the process is already ending
                register(_finish, main_thread_only=True)
        atexit.register(_finish)


def _finish(*, main_thread_only: bool = False) -> None:
    """Ends the process: every writer empties its queue."""
    if _given_up:
        return
    by_interrupt = _uncaught_interrupt()
    ending = {
        thread: writer
        for thread, writer in list(_all.items())
        if writer is not None and not (main_thread_only and writer.more_may_come())
    }
    for writer in ending.values():
        writer.process_ends(None)
    try:
        _wait(ending)
    except KeyboardInterrupt:
        _hurry(ending)
    for writer in ending.values():
        if writer.ended:
            writer.goodbye()
    if by_interrupt:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _uncaught_interrupt() -> bool:
    """Whether an uncaught KeyboardInterrupt ends the process.

    Python then dies of SIGINT, marked by a flag in C (3.11 to 3.14). Code that executes a string, such as creating a dataclass,
    resets the flag, also on a writer thread. Raising another KeyboardInterrupt in such code sets it again. A console that shows
    an exception and continues stores it in the same place, but there the exception left a called frame.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    outermost = error.__traceback__ if type(error) is KeyboardInterrupt else None
    return outermost is not None and outermost.tb_frame.f_back is None and not hasattr(sys, "ps1")


def _wait(ending: Ending) -> None:
    for thread, writer in ending.items():
        writer.wait()
        thread.join()  # the thread has only a few instructions left


def _hurry(ending: Ending) -> None:
    """Closes the runs without the queued data and reports that, for a user who does not want to wait. Another Ctrl-C skips even this."""
    global _given_up
    try:
        left = sum(writer.waiting() for writer in ending.values())
        print(f"fitscope: interrupted again, {left} captured steps are not written", file=sys.stderr)
        for writer in ending.values():
            writer.hurry()
        _wait(ending)
    except KeyboardInterrupt:
        _given_up = True
        print("fitscope: left at once, the runs hold what was flushed before", file=sys.stderr)


def _forked() -> None:
    """Forgets the writers in a forked child, which has no threads; the runs belong to its parent."""
    global _dying
    _dying = None
    for writer in writers():
        writer.ended = True
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
