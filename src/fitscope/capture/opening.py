"""Opens the run of a training: a new one, the one that it continues, or the one that it shares with other processes.

A training alone creates a run or begins another attempt at one. A training in several processes has one run and one attempt, and
every process writes its own rank (`peers`).
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

from fitscope.capture.peers import Peers, name_given, peers
from fitscope.capture.settings import Settings
from fitscope.store import RunWriter, attempt_of, next_attempt, place, sampled_ranks
from fitscope.store.begin import folder
from fitscope.store.schema import RUN

NO_NAME = (
    "Expected processes that can find their run together. Received: process {rank} of {world}, as the launcher says, without "
    "torch.distributed or jax.distributed to agree in. This process is recorded by itself. Give all of them one name: "
    'Scope(name="…") or FITSCOPE_RUN'
)


def open_writer(
    settings: Settings, there: tuple[Any, str] | None, info: dict[str, Any], step: int, backend: str | None
) -> RunWriter:
    """The writer of a training that begins with this step. `there` is the run that it continues: its place and name."""
    among = peers(backend)
    name = name_given(settings.name) if among is not None else settings.name
    runs, named = there or (settings.to, name)
    if among is None:
        return _alone(settings, runs, named, info, step)
    if among.agree is None and named is None:
        writer = _alone(settings, runs, None, info, step)
        writer.trouble = NO_NAME.format(rank=among.rank, world=among.world)
        return writer
    run_id, attempt = _agreed(among, runs, named, info)
    sampled = sampled_ranks(among.world, settings.ranks)
    shared = {"launch": among.launch, "shards": among.shards, **({"sampled": sampled} if sampled else {})}
    return RunWriter.share(
        runs,
        run_id,
        {**info, **shared},
        attempt=attempt,
        start_step=step,
        world=among.world,
        rank=among.rank,
        limit=settings.limit,
    )


def _alone(settings: Settings, runs: Any, named: str | None, info: dict[str, Any], step: int) -> RunWriter:
    if named is not None and _exists(runs, named):
        return RunWriter.attempt(runs, named, info, start_step=step, limit=settings.limit)
    return RunWriter.create(runs, named or new_name(), info, start_step=step, limit=settings.limit)


def _agreed(among: Peers, runs: Any, named: str | None, info: dict[str, Any]) -> tuple[str, int]:
    """The run and the attempt, the same on every rank."""
    if among.agree is None:
        assert named is not None
        return attempt_of(runs, named, among.rank, among.launch, info.get("doing"))

    def propose() -> tuple[str, int]:
        return (new_name(), 0) if named is None else next_attempt(runs, named, among.launch)

    told = [info.get(name) for name in ("model", "plan", "doing")]
    return among.choose([place(runs).describe(), named, *told], propose)


def _exists(runs: Any, name: str) -> bool:
    return RUN in folder(runs, name).list()


def new_name() -> str:
    """A unique name that sorts after earlier ones."""
    now = datetime.now()
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{secrets.token_hex(1)}"
