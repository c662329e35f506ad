"""Identifies the process that writes a run, and checks whether it is alive.

A killed process cannot report its end, so its last status says "running" forever. On its own machine the answer is exact: the
process exists, is not a zombie, and started when the writer did (process ids are reused). On another machine fitscope knows only the
heartbeat of its last flush, and gives the process the benefit of the doubt.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = (
    120.0  #: seconds without a heartbeat before a process elsewhere counts as dead; it flushes within 30
)


def me() -> dict[str, Any]:
    """The facts of a status about the process that wrote it."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": machine(), "pid": pid, "started": started(pid)}


def is_alive(status: dict[str, Any]) -> bool:
    """Whether the process behind a status that says "running" is alive."""
    pid = status.get("pid")
    if isinstance(pid, int) and status.get("machine") == machine() and _can_look():
        return started(pid) is not None and started(pid) == status.get("started")
    return time.time() - float(status.get("heartbeat") or 0.0) < PATIENCE


@functools.cache
def machine() -> str:
    """The scope of a process id: this boot of this machine, this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return f"{platform.node()} {sys.platform}"


def started(pid: int) -> str | None:
    """The start time of a process, which distinguishes it from a later one with the same id. None if no such process is alive."""
    try:
        # "pid (name) state ppid …": the name may hold anything, so count from its closing bracket
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists() or os.name == "nt":
        return None
    try:  # macOS and the like: signal 0 only asks
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _can_look() -> bool:
    return os.name == "posix"
