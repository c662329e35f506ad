"""Handles SIGTERM and SIGHUP, which by default kill the process without notice: fitscope writes the queue first. Counts Ctrl-C.

Schedulers, containers and `kill` end a training with SIGTERM, a closed terminal with SIGHUP. fitscope handles these signals only
while it records, and only if the program leaves them at their default. It closes the runs, restores the default and lets the
signal kill the process. So the process ends as without fitscope: no `finally`, no `atexit`, the same exit status. A second signal
kills at once.

Ctrl-C (SIGINT) raises KeyboardInterrupt as always; fitscope only counts it. On torch an exception may leave `fit` at a place
without a fitscope hook, and only Ctrl-C can be raised anywhere.

fitscope does not touch a program with a handler: in Python, in C (such as a preemption notifier), or `SIG_IGN` (`nohup`). It does
not handle signals for a training outside the main thread either, because Python sets handlers only in the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from typing import Any

from fitscope.pipeline import unfinished

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

_ours: dict[int, int | None] = {}  # for each signal the address of Python's handler in C
_interrupts = 0  # the number of Ctrl-C so far


def listen() -> None:
    """Starts to handle the signals, when a recording begins."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL and _in_c(number) in (0, None):
            with contextlib.suppress(ValueError, OSError):  # this is not the main interpreter
                signal.signal(number, _handle)
                _ours[number] = _in_c(number)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGINT, _interrupt)


def listen_no_more() -> None:
    """Stops handling the signals, when the last recording has ended."""
    if unfinished.writers() or threading.current_thread() is not threading.main_thread():
        return
    for number, address in list(_ours.items()):
        del _ours[number]
        # Nobody set another handler since.
        if signal.getsignal(number) is _handle and _in_c(number) == address:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupts() -> int:
    """How often Ctrl-C came while fitscope listened."""
    return _interrupts


def _interrupt(number: int, frame: Any) -> None:
    global _interrupts
    _interrupts += 1
    signal.default_int_handler(number, frame)


def _handle(number: int, frame: Any) -> None:  # noqa: ARG001
    signal.signal(number, signal.SIG_DFL)
    unfinished.terminate(number)


def _in_c(number: int) -> int | None:
    """The handler as the system knows it: 0 is the default. Python does not see handlers set in C. None if it cannot be found."""
    if os.name != "posix":
        return None
    try:
        action = (ctypes.c_void_p * 64)()  # larger than any `struct sigaction`, which begins with the handler
        failed = ctypes.CDLL(None).sigaction(int(number), None, ctypes.byref(action))
    except (OSError, AttributeError):
        return None
    return None if failed else action[0] or 0
