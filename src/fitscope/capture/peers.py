"""The processes of a training: the rank of this process, and how all processes find one run.

A training in several processes is one run, and each process is a rank of it. This module says which rank this process is, and
lets all ranks agree on the run and the attempt, at the start of a training and never in a step. Nothing is guessed from times:

1. The engine knows its processes: `jax.distributed`, or the default process group of `torch.distributed`. Its key-value store
   keeps the first proposal, and every rank takes that. No rank waits, and no rank leads.
2. Otherwise the launcher's environment says who this is: `RANK`, `WORLD_SIZE` and `MASTER_ADDR` (torchrun and many others), or
   `TF_CONFIG`. There is no store to agree in, so the run needs a name: `Scope(name=...)`, `FITSCOPE_RUN`, or the id that torchrun
   was given (`--rdzv-id`).
3. Otherwise the process is alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fitscope._compat import jax_store, torch_store

#: A function that keeps the first value that any process proposes for a key, and returns it.
Agree = Callable[[str, str], str]

_asked: Counter[str] = Counter()  # the number of runs of each kind that this process requested


PATIENCE = 60.0  #: seconds that a process waits for the others before a training that all must record alike


class Peers(NamedTuple):
    """The place of this process among those of its training."""

    rank: int
    world: int
    agree: Agree | None = None  #: the store of the engine, if it has one
    launch: str = ""  #: the id of this start, the same in all its processes, if the launcher gives one
    shards: bool = False  #: whether exactly one process records each element of a tensor
    #: Waits for a key of the store, at most this many seconds.
    wait: Callable[[str, float], bool] | None = None

    def choose(self, about: Any, propose: Callable[[], tuple[str, int]]) -> tuple[str, int]:
        """The run and attempt of the training that `about` describes, the same in every process."""
        if self.agree is None:
            return propose()
        key = _key("run", about)
        run, attempt = json.loads(self.agree(key, json.dumps(propose())))
        return str(run), int(attempt)

    def all_here(self, about: Any) -> str | None:
        """Waits until every process has passed the same words. Returns None if all did, otherwise the same error text in every process."""
        if self.agree is None or self.wait is None:
            return "its processes have no store to agree in"
        key, until = _key("here", about), time.monotonic() + PATIENCE
        self.agree(f"{key}/{self.rank}", "here")
        ranks = range(self.world)
        missing = next((n for n in ranks if not self.wait(f"{key}/{n}", until - time.monotonic())), None)
        # The decision of one process holds for all, also for one that comes too late.
        return self.agree(f"{key}/all", "" if missing is None else NOT_HERE.format(missing)) or None


NOT_HERE = (
    "all its processes must run the same programs, and process {} has no scope with the same settings. "
    "Give every process the same scope"
)


def _key(what: str, about: Any) -> str:
    """The key of this agreement about a training: the same in every process that has agreed as often."""
    kind = what + hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]
    _asked[kind] += 1
    return f"fitscope/{kind}/{_asked[kind]}"


def rank_of(backend: str | None) -> int:
    """The rank of this process; 0 if it trains alone."""
    found = peers(backend)
    return 0 if found is None else found.rank


def together(backend: str | None, about: Any) -> str | None:
    """The reason why the processes of a training cannot record it together, or None."""
    found = peers(backend)
    return "its processes do not know of each other" if found is None else found.all_here(about)


def peers(backend: str | None) -> Peers | None:
    """The place of this process in a training on this backend; None if it trains alone."""
    engine = {"jax": _jax, "torch": _torch}.get(backend or "")
    found = (engine() if engine is not None else None) or from_environment(os.environ)
    return found if found is not None and found.world > 1 else None


def _jax() -> Peers | None:
    import jax

    store = jax_store()
    if store is None or jax.process_count() == 1:
        return None

    def agree(key: str, value: str) -> str:
        try:
            store.key_value_set(key, value)
        except Exception:  # another process was first, or the service is gone: then this raises too
            return str(store.blocking_key_value_get(key, 10_000))
        return value

    def wait(key: str, seconds: float) -> bool:
        try:
            store.blocking_key_value_get(key, max(int(1000 * seconds), 1))
        except Exception:  # no process answered in time
            return False
        return True

    return Peers(jax.process_index(), jax.process_count(), agree, _token(agree), shards=True, wait=wait)


def _torch() -> Peers | None:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    store = torch_store()
    if store is None:
        return Peers(dist.get_rank(), dist.get_world_size(), launch=_launch(os.environ))

    def agree(key: str, value: str) -> str:
        return bytes(store.compare_set(key, "", value)).decode()

    return Peers(dist.get_rank(), dist.get_world_size(), agree, _token(agree))


def _token(agree: Agree) -> str:
    """A name of this start of the training, which no other start has."""
    return agree("fitscope/launch", secrets.token_hex(8))


def from_environment(given: Mapping[str, str]) -> Peers | None:
    """The facts from the launcher's environment; None if there are none, or they are invalid."""
    try:
        if "MASTER_ADDR" in given and "RANK" in given and "WORLD_SIZE" in given:
            return _checked(int(given["RANK"]), int(given["WORLD_SIZE"]), _launch(given))
        if "TF_CONFIG" in given:
            said = json.loads(given["TF_CONFIG"])
            cluster, task = said["cluster"], said["task"]
            training = [(kind, n) for kind in ("chief", "worker") for n in range(len(cluster.get(kind, ())))]
            return _checked(training.index((task["type"], int(task["index"]))), len(training), "")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _checked(rank: int, world: int, launch: str) -> Peers | None:
    return Peers(rank, world, launch=launch) if 0 <= rank < world else None


def _launch(given: Mapping[str, str]) -> str:
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return " ".join(given.get(name, "") for name in names).strip()


def name_given(chosen: str | None, given: Mapping[str, str] = os.environ) -> str | None:
    """The name of the run that the user gave, in the scope or for all processes of a launch."""
    job = given.get("TORCHELASTIC_RUN_ID", "none")
    return chosen or given.get("FITSCOPE_RUN") or (f"job-{job}" if job != "none" else None)
