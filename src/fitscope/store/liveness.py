"""Who writes a run, and whether that process still lives.

A killed process cannot say goodbye, so its last status reads "running" for ever. On the machine it ran on
the answer is exact: the process exists, is no zombie, and started when the writer did (process ids are used
again). From anywhere else all there is is the heartbeat of its last flush, and the benefit of the doubt.
"""

from __future__ import annotations

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
    """What a status says about the process that wrote it."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": machine(), "pid": pid, "started": started(pid)}


def is_alive(status: dict[str, Any]) -> bool:
    """Whether the process behind a status that says "running" still runs."""
    pid = status.get("pid")
    if isinstance(pid, int) and status.get("machine") == machine() and _can_look():
        return started(pid) is not None and started(pid) == status.get("started")
    return time.time() - float(status.get("heartbeat") or 0.0) < PATIENCE


def machine() -> str:
    """Names the space in which a process id means something: this boot of this machine, this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return f"{platform.node()} {sys.platform}"


def started(pid: int) -> str | None:
    """Tells a process from a later one with the same id. None if there is no such process alive."""
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
