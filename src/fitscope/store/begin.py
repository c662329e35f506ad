"""Creates a run and its attempts: documents that are written once and never changed.

If two processes create the same thing at the same moment, only one succeeds, because the store's `create` has one winner. This
happens before the training, so an unusable place is an error for the user.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from fitscope.errors import StoreError
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.liveness import is_alive, machine, me
from fitscope.store.places import place
from fitscope.store.software import software

MOST_STATUS = 16 << 20  #: the most bytes of a status that is read

Location = str | os.PathLike[str] | Objects
Info = Mapping[str, Any]


def begin_run(runs: Location, run_id: str, info: Info, *, first: bool = True) -> Objects:
    """Creates a run that does not exist yet. Without `first`, another rank of the same training may have just created it."""
    run = folder(runs, run_id)
    ours = {"format": schema.FORMAT, "id": run_id, **_birth()}
    document = {**ours, **info, **ours}  # fitscope's keys win over the user's
    with usable(run):
        if not run.create(schema.RUN, schema.encode(document)) and first:
            raise StoreError("the id of a new run", f"{run.describe()!r}, which exists", "Choose another id")
    return run


def existing_run(runs: Location, run_id: str) -> tuple[Objects, int]:
    """An existing run, and the number of its attempts."""
    run = folder(runs, run_id)
    with usable(run):
        if schema.RUN not in run.list():
            raise StoreError("a run that exists", f"{run.describe()!r}", "Create it first, or check the id")
        return run, len(run.list(schema.ATTEMPTS))


def writer_of(run: Objects, attempts: int) -> int | None:
    """The process on this machine that writes the newest attempt now, if it is not this one."""
    if not attempts:
        return None
    folder = schema.attempt_folder(attempts - 1)
    for rank in run.list(folder):
        try:
            status = json.loads(run.get(f"{folder}/{rank}{schema.STATUS}", MOST_STATUS))
            pid, ours = status["pid"], status["machine"] == machine()
            if status["status"] == "running" and ours and pid != os.getpid() and is_alive(status):
                return int(pid)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # do not wait for a process that may be dead
    return None


def beside(runs: Location, run_id: str) -> str:
    """A free name, similar to that of a run which another process writes."""
    taken = {name.rstrip("/") for name in place(runs).list()}
    return next(name for n in itertools.count(1) if (name := f"{run_id[:190]}+{n}") not in taken)


def begin_attempt(
    run: Objects, number: int, info: Info, *, start_step: int, world: int, first: bool = True
) -> int:
    """Creates attempt `number`, or the next free one. Returns its number. Without `first`, it may join the attempt of this number."""
    ours = {"attempt": number, "start_step": start_step, "world": world, **me(), **_birth()}
    with usable(run):
        while not run.create(schema.attempt_key(number), schema.encode({**ours, **info, **ours})) and first:
            ours["attempt"] = number = number + 1
    return number


@contextlib.contextmanager
def usable(run: Objects) -> Iterator[None]:
    """Turns a store error into one that says what to do."""
    try:
        yield
    except StoreError:
        raise
    except OSError as problem:
        raise StoreError(
            "a place that can be written to",
            f"{run.describe()!r} ({problem})",
            "Choose another place for the runs, or free some space there",
        ) from problem


def folder(runs: Location, run_id: str) -> Objects:
    """The objects of a run, which need not exist."""
    if not re.fullmatch(r"\w[\w.+@ -]{0,199}", run_id):
        raise StoreError(
            "an id that can name a folder: letters, digits and . _ + @ -", f"{run_id!r}", "Choose another id"
        )
    return place(runs).folder(run_id)


def _birth() -> dict[str, Any]:
    now = time.time_ns()
    return {
        "created": datetime.fromtimestamp(now / 1e9, UTC).isoformat(timespec="seconds"),
        "created_ns": now,
        "software": software(),
    }
