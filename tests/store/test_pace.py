"""How often a rank writes: requests to an object store are bounded, whatever there is to write and however many ranks there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.record import Record
from fitscope.store import Memory, Remote, RunWriter, interval, sampled_ranks
from fitscope.store.pace import LIGHT_SECONDS, PER_MINUTE

Make = Callable[..., Record]


@pytest.fixture
def remote() -> Remote:
    stores = pytest.importorskip("obstore.store")
    return Remote(stores.MemoryStore(), name="memory")


def test_requests_to_an_object_store_are_counted(remote: Remote) -> None:
    assert Memory().requests is None
    inner = remote.folder("a")
    inner.put("k", b"1")
    inner.get("k")
    inner.create("j", b"2")
    remote.list("a")
    remote.size("a/k")
    assert remote.requests == inner.requests == 5


def minutes(
    writer: RunWriter, runs: Remote, records: Callable[[int], list[Record]], seconds: int
) -> list[int]:
    """The requests in each minute of a training with a captured step every five seconds."""
    begun, clock = time.monotonic(), [0.0]
    writer.pace._clock = lambda: begun + clock[0]
    made, due = [0] * (seconds // 60), 0.0
    for second in range(0, seconds, 5):
        clock[0] = float(second)
        before = runs.requests
        writer.write(records(second))
        if second >= due:
            writer.flush(tensors=writer.pace.tensors_due())
            due = second + writer.pace.pause(second)
        made[second // 60] += runs.requests - before
    return made


@pytest.mark.parametrize("sites", [1, 60])
def test_a_rank_stays_within_its_requests(remote: Remote, make: Make, sites: int) -> None:
    writer = RunWriter.create(remote, "r")

    def records(step: int) -> list[Record]:
        loss = make("loss", step, np.float32(1.0), keep="stats", batched=False)
        kept = [
            make(f"activations/d{n}", step, np.ones((2, 3), np.float32), keep="tensor") for n in range(sites)
        ]
        return [loss, *kept]

    made = minutes(writer, remote, records, 1500)
    # Whatever is committed at once, the time until the next commit makes up for it.
    assert sum(made) / len(made) <= PER_MINUTE
    writer.close()
    run = read.open(remote)
    assert run.series("loss").shape == (300,)
    assert run.tensor("activations/d0").shape == (300, 2, 3), "nothing is left behind"


def test_tables_do_not_wait_for_tensors(remote: Remote, make: Make) -> None:
    """With many kept tensors the live page still has the newest losses."""
    writer = RunWriter.create(remote, "r")
    clock = [time.monotonic()]
    writer.pace._clock = lambda: clock[0]
    for step in (0, 1):
        kept = [make(f"activations/d{n}", step, np.ones((2, 3), np.float32)) for n in range(100)]
        writer.write([*kept, make("loss", step, np.float32(step), keep="stats", batched=False)])
        writer.flush(tensors=writer.pace.tensors_due())
        clock[0] += 5.0
    run = read.open(remote)
    assert run.series("loss").tolist() == [0, 1]
    assert len(run.tensor("activations/d0")) == 1
    writer.flush()  # which somebody asked for
    assert len(run.tensor("activations/d0")) == 2


def test_a_store_without_a_price_is_not_slowed_down(make: Make) -> None:
    writer = RunWriter.create(Memory(), "r")
    writer.write([make(f"activations/d{n}", 0, np.ones((2, 3), np.float32)) for n in range(100)])
    writer.flush()
    assert writer.pace.pause(0.0) == interval(0.0)
    assert writer.pace.tensors_due()


@pytest.mark.parametrize(("world", "most", "expected"), [(4, 8, None), (8, 8, None), (16, 4, [0, 4, 8, 12])])
def test_the_number_of_sampled_ranks_is_limited(world: int, most: int, expected: list[int] | None) -> None:
    assert sampled_ranks(world, most) == expected
    assert sampled_ranks(world, None) is None


def test_sampled_ranks_are_spread_and_include_the_first() -> None:
    found = sampled_ranks(1000, 8)
    assert found is not None
    assert found[0] == 0
    assert len(set(found)) == 8
    assert max(np.diff(found)) - min(np.diff(found)) <= 1


def light(runs: Any, rank: int, world: int = 4) -> RunWriter:
    info = {"sampled": [0, 2]}
    return RunWriter.share(runs, "r", info, attempt=0, start_step=0, world=world, rank=rank)


def test_a_light_rank_writes_its_status_alone_and_seldom(remote: Remote) -> None:
    light(remote, 0)
    writer = light(remote, 1)
    assert writer.pace.light
    assert writer.pace.pause(0.0) == LIGHT_SECONDS
    before = remote.requests
    for step in range(5):
        writer.reached(step)
        writer.note(pulse={"step": [step]})
        writer.flush()
    assert remote.requests - before == 5
    assert remote.list("r/a0000/r00001") == ["status.json"]


def test_readers_ask_a_light_rank_only_for_its_status(
    spy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    asked: list[str] = []
    store = spy(Memory(), on_get=asked.append)
    writers = [light(store, rank) for rank in range(4)]
    for writer in writers:
        if writer.pace.light:
            writer.reached(7)
        else:
            writer.write([make("loss", 7, np.float32(writer.rank), keep="stats", batched=False)])
        writer.flush()
    asked.clear()
    run = read.open(store)
    assert run.last_step == 7
    frame = run.ranks
    assert frame["sampled"].tolist() == [True, False, True, False]
    assert frame["step"].tolist() == [7] * 4
    assert run.series("loss", by="rank").columns.tolist() == [0, 2]
    of_light = [key for key in asked if "r00001" in key]
    assert of_light == ["r/a0000/r00001/status.json"], "once, for all of these"
    writers[1].reached(9)
    writers[1].flush()
    assert run.ranks["step"][1] == 7  # it is asked again later
    monkeypatch.setattr("fitscope.read.ranks.LIGHT_LOOK", 0.0)
    monkeypatch.setattr("fitscope.read.state.SELDOM", 0)
    assert run.ranks["step"][1] == 9
    for writer in writers:
        writer.close()
    assert run.status == "complete"
