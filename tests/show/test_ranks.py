"""The lane of ranks: one slow rank is seen among any number, and a run of one process has none."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.diagnose.pulses import Pulses
from fitscope.record import Moment, Record
from fitscope.reduce import host
from fitscope.show.data import page_facts
from fitscope.show.data.gather import Gathered
from fitscope.show.data.ranks import ROWS, lane
from fitscope.sites import Site
from fitscope.store import Memory, RunWriter

STEPS = np.arange(0, 200, 10)


def pulses(world: int, slow: int | None = None) -> Pulses:
    def said(rank: int) -> dict[str, Any]:
        took = np.where((STEPS > 100) & (rank == slow), 20.0, 5.0)
        n = len(STEPS)
        return {
            "step": STEPS.tolist(), "time": (1e9 + rank + np.cumsum(took)).tolist(), "cpu": [None] * n, "loss": [None] * n,
            "weights": [None] * n,
        }  # fmt: skip

    found = Pulses.of({rank: said(rank) for rank in range(world)})
    assert found is not None
    return found


def cells(found: dict[str, Any]) -> np.ndarray[Any, Any]:
    codes = np.frombuffer(base64.b64decode(found["cells"]), np.uint8)
    return codes.reshape(len(found["rows"]), len(found["steps"]))


@pytest.mark.parametrize("world", [3, 32, 1024])
def test_one_slow_rank_is_visible(world: int) -> None:
    slow = world // 2
    found = lane(pulses(world, slow), {})
    assert found is not None
    assert len(found["rows"]) == min(world, ROWS)
    row = next(i for i, (first, last) in enumerate(found["rows"]) if first <= slow <= last)
    codes = cells(found)
    assert (codes[row, STEPS > 100] == 255).all(), "four times the median, and no more fits"
    assert (codes[:, 1][codes[:, 1] > 0] == 128).all()
    assert (np.delete(codes, row, axis=0)[:, STEPS > 100] == 128).all()
    assert codes[:, 0].max() == 0, "the first step has no step before it"
    assert found["skew"][row] == pytest.approx(15 * (STEPS > 100).sum(), rel=1e-2)
    assert found["seconds"] == 0.5


def test_ranks_that_stopped_are_named() -> None:
    found = lane(pulses(3), {0: "running", 1: "interrupted", 2: "running"})
    assert found is not None
    assert found["stopped"] == [[], [1], []]


def test_one_process_has_no_lane_of_ranks() -> None:
    assert lane(None, {}) is None


def test_the_page_has_the_lane_of_ranks() -> None:
    store = Memory()
    for rank in (0, 1):
        writer = RunWriter.share(store, "r", {}, attempt=0, start_step=0, world=2, rank=rank)
        tensor = np.ones((2, 3), np.float32)
        writer.write(
            [Record(Site("activations", "d"), Moment(0, 0, 0, 1e9), (2, 3), "float32", host.reduce(tensor))]
        )
        n = len(STEPS)
        times = (1e9 + np.cumsum(np.full(n, 5.0 + 5 * rank))).tolist()
        writer.note(
            pulse={
                "step": STEPS.tolist(),
                "time": times,
                **{k: [None] * n for k in ("cpu", "loss", "weights")},
            }
        )
        writer.close("complete" if rank else "failed")
    g = Gathered(fs.open(store))
    g.update()
    found = page_facts.head(g)["ranks"]
    assert found["count"] == 2
    assert found["stopped"] == [[0], []]
    assert "A rank differs" in [finding["title"] for finding in page_facts.now(g)["findings"]]
