"""Lets several ranks of one training find one run, and one attempt at it, in any order.

The first rank creates the documents of the run and of the attempt, and the others find them. `next_attempt` returns the attempt
that a training begins, and `attempt_of` the attempt of a rank that cannot ask the others. Nothing waits.
"""

from __future__ import annotations

import json
import os
from typing import Any

from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.begin import (
    MOST_STATUS,
    Info,
    Location,
    begin_attempt,
    begin_run,
    beside,
    folder,
    writer_of,
)
from fitscope.store.begin import usable as usable_place
from fitscope.store.liveness import is_alive
from fitscope.store.places import place

MOST_BESIDE = 100  #: the most runs of one name that are tried


def next_attempt(runs: Location, run_id: str, launch: str) -> tuple[str, int]:
    """The run and the attempt of a training that continues a run or begins one.

    If a live process of another launch writes that run, the training gets a new run next to it.
    """
    run = folder(runs, run_id)
    attempts = _attempts(run)
    begun = _document(run, schema.attempt_key(attempts - 1)) if attempts else {}
    if begun.get("launch") != launch and writer_of(run, attempts) is not None:
        return beside(runs, run_id), 0
    return run_id, attempts


def attempt_of(runs: Location, run_id: str, rank: int, launch: str, doing: Any) -> tuple[str, int]:
    """The run and the attempt, for a rank that knows the name of the run but cannot ask the other ranks.

    It is the newest attempt, if the same launch began it and this rank has not written in it; else the next one.
    """
    taken = {name.rstrip("/") for name in place(runs).list()}
    for name in (run_id, *(f"{run_id[:190]}+{n}" for n in range(1, MOST_BESIDE))):
        if name not in taken:
            return name, 0
        run = folder(runs, name)
        attempts = _attempts(run)
        if not attempts:
            return name, 0
        begun = _document(run, schema.attempt_key(attempts - 1))
        own = _document(run, f"{schema.rank_folder(attempts - 1, rank)}/{schema.STATUS}")
        if own.get("status") == "running" and own.get("pid") != os.getpid() and is_alive(own):
            continue  # another training uses this name
        ours = begun.get("launch") == launch and begun.get("doing") == doing
        return name, attempts - 1 if ours and not own else attempts
    return beside(runs, run_id), 0


def meet(
    runs: Location, run_id: str, attempt: int, info: Info, *, start_step: int, world: int
) -> tuple[Objects, int]:
    """The run and the attempt, created if no other rank has done so."""
    run = folder(runs, run_id)
    with usable_place(run):
        if schema.RUN not in run.list():
            begin_run(runs, run_id, info, first=False)
        return run, begin_attempt(run, attempt, info, start_step=start_step, world=world, first=False)


def _attempts(run: Objects) -> int:
    with usable_place(run):
        return len(run.list(schema.ATTEMPTS))


def _document(run: Objects, key: str) -> dict[str, Any]:
    """A document of the run; empty if there is none that can be read."""
    try:
        found = json.loads(run.get(key, MOST_STATUS))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
