"""The steps that a black box keeps: as many as asked for, within its memory, and those around a loss that is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.pipeline.black_box import Kept
from fitscope.plan.black_box import BlackBox, black_box
from fitscope.store.black_box import KeptCall, Lap

STATE, BATCH = 1000, 100  #: bytes


def lap(step: int) -> Lap:
    return Lap(step, [np.zeros(STATE, np.uint8)], [("trainable", "w")])


def call(step: int, loss: float = 1.0) -> KeptCall:
    leaves = [np.zeros(BATCH, np.uint8)]
    return KeptCall(step, 0, step, [{"array": 0}], leaves, {}, {}, {}, {"loss": np.float32(loss)})


def fly(settings: BlackBox, steps: int, odd: int | None = None) -> tuple[Kept, int]:
    """Keeps so many steps, and returns the most memory that they took."""
    kept, most = Kept(settings), 0
    for step in range(steps):
        if kept.keeping:
            if kept.due:
                kept.begin(lap(step))
            kept.add(call(step, np.nan if odd is not None and step >= odd else 1.0))
        most = max(most, kept.nbytes)
    return kept, most


def steps_of(laps: list[Lap]) -> list[int]:
    return [one.step for each in laps for one in each.calls]


@pytest.mark.parametrize("steps", [1, 2, 7, 20])
@pytest.mark.parametrize("flown", [1, 19, 20, 57])
def test_at_least_the_asked_steps_are_kept(steps: int, flown: int) -> None:
    kept, _ = fly(BlackBox(steps), flown)
    found = steps_of(kept.laps)
    assert found == [*range(found[0], flown)]
    assert min(steps, flown) <= len(found) <= 2 * steps
    assert kept.dropped == 0


@pytest.mark.parametrize("memory", [1_100, 1_500, 2_500, 4_000, 7_000])
def test_the_oldest_steps_are_dropped_first(memory: int) -> None:
    kept, most = fly(BlackBox(40, memory=memory), 100)
    assert most <= memory
    assert steps_of(kept.laps)[-1] == 99
    assert kept.dropped > 0
    assert kept.trouble is None


def test_a_state_that_does_not_fit_ends_the_keeping() -> None:
    kept, _ = fly(BlackBox(memory=500), 5)
    assert kept.laps == []
    assert "Allow more" in str(kept.trouble)


def test_the_steps_around_an_unusual_loss_are_set_aside() -> None:
    kept, _ = fly(BlackBox(6), 300, odd=40)
    assert kept.odd_step == 40
    found = steps_of(kept.take(newest=False))
    assert {*range(35, 41)} <= {*found}
    assert max(found) < 50
    assert kept.aside == []
    assert steps_of(kept.take(newest=False))[-1] == 299  # afterwards the newest


def test_steps_set_aside_are_kept_when_memory_is_short() -> None:
    kept, most = fly(BlackBox(6, memory=2_000), 100, odd=40)
    assert most <= 2_000
    assert not kept.keeping
    assert 40 in steps_of(kept.take(newest=True))
    assert kept.keeping


@pytest.mark.parametrize(
    "given",
    [0, -1, 2.5, True, "20", lambda: BlackBox(3, memory="much"), lambda: BlackBox(3, severity="note")],
)
def test_a_wrong_setting_is_an_error_at_once(given: Any) -> None:
    with pytest.raises(fs.WatchError):
        black_box(given() if callable(given) else given)
