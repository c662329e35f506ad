"""One run, many writers: how ranks find each other, what readers make of them, and what a dead one leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fitscope import read
from fitscope.capture import peers as peers_module
from fitscope.capture.opening import open_writer
from fitscope.capture.peers import Peers, from_environment, name_given
from fitscope.capture.settings import Settings
from fitscope.errors import RunError, WatchError
from fitscope.read.rank_frames import told
from fitscope.record import Record
from fitscope.scope import Scope
from fitscope.store import Memory, Objects, RunWriter, attempt_of

Make = Callable[..., Record]
TORCHRUN = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "8"}


class TestWhoThisIs:
    def test_rank_and_world_come_from_the_launcher(self) -> None:
        found = from_environment(TORCHRUN)
        assert found is not None
        assert (found.rank, found.world) == (3, 8)
        assert found.launch == "10.0.0.1 29500"
        config = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}}
        for kind, index, rank in (("chief", 0, 0), ("worker", 1, 2)):
            given = {"TF_CONFIG": json.dumps({**config, "task": {"type": kind, "index": index}})}
            found = from_environment(given)
            assert found is not None
            assert (found.rank, found.world) == (rank, 3)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"RANK": "1", "WORLD_SIZE": "2"},  # of something else: there is no address to meet at
            {**TORCHRUN, "RANK": "eight"},
            {**TORCHRUN, "RANK": "8"},
            {"TF_CONFIG": "{"},
            {"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}'},
        ],
    )
    def test_an_unusable_environment_means_no_peers(self, given: dict[str, str]) -> None:
        assert from_environment(given) is None

    def test_the_name_of_a_run_comes_from_its_argument_or_the_environment(self) -> None:
        assert name_given(None, {}) is None
        assert name_given(None, {"TORCHELASTIC_RUN_ID": "none"}) is None  # what torchrun says without an id
        assert name_given(None, {"TORCHELASTIC_RUN_ID": "17"}) == "job-17"
        assert name_given(None, {"TORCHELASTIC_RUN_ID": "17", "FITSCOPE_RUN": "mine"}) == "mine"
        assert name_given("ours", {"FITSCOPE_RUN": "mine"}) == "ours"


def settings(to: Objects, **more: object) -> Settings:
    return Scope(to, **more)._recordings.settings  # type: ignore[arg-type]


def opened(
    monkeypatch: pytest.MonkeyPatch, to: Objects, rank: Peers | None, *, name: str | None = None, step: int = 0,
    there: str | None = None, doing: str = "train",
) -> RunWriter:  # fmt: skip
    """The writer of one rank. All ranks are this process."""
    monkeypatch.setattr("fitscope.capture.opening.peers", lambda _: rank)
    given = settings(to, name=name)
    return open_writer(given, (to, there) if there else None, {"doing": doing}, step, "jax")


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Peers]:
    """Ranks with one key-value store. Each counts by itself how often it asked."""
    store: dict[str, str] = {}
    counts: dict[int, object] = {}

    def rank(number: int) -> Peers:
        counter = counts.setdefault(number, type(peers_module._asked)())
        monkeypatch.setattr(peers_module, "_asked", counter)
        return Peers(number, 2, store.setdefault, "launch")

    return rank


class TestTheSameRun:
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_ranks_find_one_run_through_the_engine(
        self, monkeypatch: pytest.MonkeyPatch, agreeing: Callable[[int], Peers], order: tuple[int, int]
    ) -> None:
        store = Memory()
        writers = [opened(monkeypatch, store, agreeing(rank)) for rank in order]
        assert [writer.rank for writer in writers] == list(order)
        assert {(writer.id, writer.number) for writer in writers} == {(writers[0].id, 0)}
        # The next training, of another kind, is another run; one that continues is another attempt.
        others = [opened(monkeypatch, store, agreeing(rank), doing="loop") for rank in order]
        assert {writer.id for writer in others} == {others[0].id} != {writers[0].id}
        again = [opened(monkeypatch, store, agreeing(rank), there=writers[0].id, step=9) for rank in order]
        assert {(writer.id, writer.number) for writer in again} == {(writers[0].id, 1)}

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_ranks_find_one_run_by_its_name(
        self, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
    ) -> None:
        store = Memory()

        def both(launch: str, step: int) -> set[tuple[str, int]]:
            found = [
                opened(monkeypatch, store, Peers(rank, 2, None, launch), name="exp", step=step)
                for rank in order
            ]
            return {(writer.id, writer.number) for writer in found}

        assert both("a", 0) == {("exp", 0)}
        assert both("b", 5) == {("exp", 1)}  # started again, by another launch
        assert both("b", 8) == {("exp", 2)}  # or by the same one, which has written already

    def test_a_live_process_of_this_rank_is_another_training(self, make: Make) -> None:
        store = Memory()
        RunWriter.share(store, "exp", {"launch": "a"}, attempt=0, start_step=0, world=2, rank=1)
        path = "exp/a0000/r00001/status.json"
        mine = json.loads(store.get(path))
        assert attempt_of(store, "exp", 1, "a", None) == ("exp", 1)
        store.put(path, json.dumps({**mine, "pid": os.getppid(), "machine": "elsewhere"}).encode())
        assert attempt_of(store, "exp", 1, "a", None) == ("exp+1", 0)
        assert attempt_of(store, "exp", 0, "a", None) == ("exp", 0), (
            "the other rank of that training joins it"
        )

    def test_a_rank_without_name_or_store_is_recorded_alone_and_warns(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("FITSCOPE_RUN", raising=False)
        writer = opened(monkeypatch, Memory(), Peers(1, 2))
        assert (writer.rank, writer.number) == (0, 0)
        assert "FITSCOPE_RUN" in str(writer.trouble)

    def test_a_second_training_of_one_name_is_another_attempt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Memory()
        first = opened(monkeypatch, store, None, name="exp")
        first.close()
        second = opened(monkeypatch, store, None, name="exp", step=3)
        assert [(one.id, one.number) for one in (first, second)] == [("exp", 0), ("exp", 1)]

    def test_an_invalid_name_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="letters, digits"):
            Scope(tmp_path, name="a/b")
        RunWriter.create(tmp_path, "r").close()
        with pytest.raises(WatchError, match="Pass only one of them"):
            Scope(tmp_path / "r", name="exp")


@pytest.fixture
def two(make: Make) -> read.Run:
    """A run of two ranks, of which the second is one step behind; its loss is another."""
    store = Memory()
    for rank in (1, 0):
        writer = RunWriter.share(store, "r", {}, attempt=0, start_step=0, world=2, rank=rank)
        for step in range(4 - rank):
            share = np.full((2, 3), 10 * rank + step, np.float32)
            writer.write([make("a", step, share), make("loss", step, np.float32(rank), batched=False)])
        writer.close("complete" if rank == 0 else "failed")
    return read.open(store)


class TestReading:
    def test_series_by_rank_are_side_by_side(self, two: read.Run) -> None:
        frame = two.series("a", "mean", by="rank")
        assert list(frame.columns) == [0, 1]
        np.testing.assert_array_equal(frame.to_numpy(), [[0, 10], [1, 11], [2, 12], [3, np.nan]])
        assert two.series("a", "mean").tolist() == [5, 6, 7, 3]
        assert two.series("loss", by="rank")[1].tolist()[:3] == [1, 1, 1]
        with pytest.raises(RunError, match="'step' or 'rank'"):
            two.series("a", "mean", by="layer")  # type: ignore[call-overload]

    def test_one_rank_can_be_read_alone(self, two: read.Run) -> None:
        one = two.rank(1)
        assert one.last_step == 2
        assert one.status == "failed"
        assert one.series("loss").tolist() == [1, 1, 1]
        assert one.tensor("a").shape == (3, 2, 3)
        assert set(one.stats["rank"]) == {1}
        assert one.sql("select distinct rank from stats")["rank"].tolist() == [1]
        assert one.refresh().last_step == 2
        with pytest.raises(RunError, match="rank"):
            two.rank(2)

    def test_the_status_of_each_rank_is_listed(self, two: read.Run) -> None:
        frame = two.ranks
        assert frame["status"].tolist() == ["complete", "failed"]
        assert frame["step"].tolist() == [3, 2]
        assert frame["pid"].tolist() == [os.getpid()] * 2
        assert told(frame).startswith("2 ranks, rank 1 failed at step 2, last seen 20")
        assert told(two.rank(1).ranks) == ""

    def test_a_rank_that_never_started_is_listed(self) -> None:
        store = Memory()
        RunWriter.share(store, "r", {}, attempt=0, start_step=0, world=2, rank=1).close()
        assert read.open(store).ranks["status"].tolist() == ["not started", "complete"]

    def test_shards_are_parts_of_one_tensor(self, make: Make) -> None:
        weights = np.arange(8, dtype=np.float32)
        for shards, mean, count in ((True, 3.5, 8), (False, 1.5, 4)):
            store = Memory()
            for rank in (0, 1):
                info = {"shards": shards}
                writer = RunWriter.share(store, "r", info, attempt=0, start_step=0, world=2, rank=rank)
                part = weights[4 * rank : 4 * rank + 4]
                writer.write([make("w", 0, part, keep="stats", batched=False, shape=(8,))])
                writer.close()
            frame = read.open(store).frame("w")
            assert (frame["mean"].item(), frame["count"].item()) == (mean, count)
            merged = weights if shards else weights[:4]
            np.testing.assert_allclose(frame["std"].item(), merged.std())


CHILD = """
import sys, time
import numpy as np
from fitscope.record import Moment, Record
from fitscope.reduce import host
from fitscope.sites import Site
from fitscope.store import RunWriter
rank = int(sys.argv[2])
writer = RunWriter.share(sys.argv[1], "r", {"launch": "x"}, attempt=0, start_step=0, world=2, rank=rank)
for step in range(10_000):
    tensor = np.full((2, 3), step, np.float32)
    at = Moment(step, 0, step, time.time())
    writer.write([Record(Site("taps", "a"), at, tensor.shape, "float32", host.reduce(tensor), tensor)])
    writer.flush()
    print(step, flush=True)
"""


def test_a_killed_rank_is_detected(tmp_path: Path) -> None:
    """What both flushed is there, and the run says which of them died."""
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]  # fmt: skip
    flushed = []
    try:
        for child, until in zip(children, (20, 7), strict=True):
            assert child.stdout is not None
            steps = (int(line) for line in child.stdout)
            flushed.append(next(step for step in steps if step >= until))
        children[1].send_signal(signal.SIGKILL)
        children[1].wait(30)
        run = read.open(tmp_path)
        assert run.ranks["status"].tolist() == ["running", "interrupted"]
        assert "rank 1 interrupted at step" in told(run.ranks)
    finally:
        for child in children:
            child.kill()
            child.wait(30)
    deadline = time.monotonic() + 30
    while run.ranks["status"].tolist() != ["interrupted", "interrupted"]:
        assert time.monotonic() < deadline
    for rank, step in enumerate(flushed):
        one = run.rank(rank)
        seen = one.series("taps/a", "mean")
        assert seen.index[-1] >= step
        np.testing.assert_array_equal(seen, seen.index)
        np.testing.assert_array_equal(one.array("taps/a", step), np.full((2, 3), step))
