"""SIGTERM and SIGHUP, whose default is to kill the process without telling Python: what is queued is written first.

Schedulers, containers and `kill` end a training by SIGTERM, a closed terminal by SIGHUP. While something is being recorded, and only
where the program leaves these signals to their default, fitscope listens to them. It then closes the runs, gives the signal its
default back and lets it kill the process, which dies of the signal as it would have without us: no `finally`, no
`atexit`, the same exit status. A second signal kills at once.

A program with a handler is left alone: one in Python, one that was set in C (a preemption notifier is), and `SIG_IGN` (`nohup`). So is
a training outside of the main thread, because Python sets handlers in the main thread alone.
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

_ours: dict[int, int | None] = {}  # by signal, the address of Python's handler in C


def listen() -> None:
    """A recording begins."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL and _in_c(number) in (0, None):
            with contextlib.suppress(ValueError, OSError):  # not in the main interpreter
                signal.signal(number, _handle)
                _ours[number] = _in_c(number)


def listen_no_more() -> None:
    """A recording has ended. While another goes on nothing changes."""
    if unfinished.writers() or threading.current_thread() is not threading.main_thread():
        return
    for number, address in list(_ours.items()):
        del _ours[number]
        if signal.getsignal(number) is _handle and _in_c(number) == address:  # nobody has set another since
            signal.signal(number, signal.SIG_DFL)


def _handle(number: int, frame: Any) -> None:  # noqa: ARG001
    signal.signal(number, signal.SIG_DFL)
    unfinished.terminate(number)


def _in_c(number: int) -> int | None:
    """The handler as the system knows it: 0 is the default. Python does not see what others set in C. None: it cannot be found out."""
    if os.name != "posix":
        return None
    try:
        action = (ctypes.c_void_p * 64)()  # larger than any `struct sigaction`, which begins with the handler
        failed = ctypes.CDLL(None).sigaction(int(number), None, ctypes.byref(action))
    except (OSError, AttributeError):
        return None
    return None if failed else action[0] or 0
