"""The pulse of a rank: bounded, the same steps on every rank, and all that a light rank needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fitscope.diagnose.pulses import Pulses, medians
from fitscope.pipeline.handover import JOINED, Shown
from fitscope.pipeline.pulse import MOST, Pulse
from fitscope.plan.wants import LOSS, Want, Wants
from fitscope.record import Block, Moment, Record
from fitscope.reduce import host
from fitscope.sites import Site

MODEL = {
    "layers": [
        {
            "path": "a",
            "weights": {
                "a/kernel": {"trainable": True},
                "a/moving_mean": {"trainable": False},
            },
        },
        {"path": "b", "weights": {"b/kernel": {"trainable": True}}},
    ]
}


def records(step: int, loss: float = 1.0, **weights: Any) -> list[Record]:
    at = Moment(step, 0, step, 100.0 + step)
    found = {Site("loss"): np.float32(loss)}
    found |= {Site("weights", *name.split("__")): np.asarray(value) for name, value in weights.items()}
    return [Record(site, at, v.shape, "float32", host.reduce(v), batched=False) for site, v in found.items()]


def taken(pulse: Pulse, some: list[Record]) -> None:
    blocks = list(Block.of(some))
    pulse.take(some[0].at, blocks)


def test_a_pulse_has_one_number_for_all_trainable_weights() -> None:
    pulse = Pulse.of(MODEL, shards=False)
    kernels = {"a__kernel": np.float32([3.0, 4.0]), "b__kernel": np.float32([12.0])}
    taken(pulse, records(0, 2.5, **kernels, a__moving_mean=np.float32([99.0])))
    said = pulse.describe()
    assert said["step"] == [0]
    assert said["loss"] == [2.5]
    assert said["time"] == [100.0]
    np.testing.assert_allclose(said["weights"], [np.sqrt((9 + 16 + 144) / 3)])


def test_a_pulse_uses_statistics_computed_inside_the_step() -> None:
    host_side, in_step = Pulse.of(MODEL, shards=False), Pulse.of(MODEL, shards=False)
    some = records(0, a__kernel=np.float32([3.0, 4.0]))
    host_side.take(some[0].at, Block.of(some))
    in_step.take(some[0].at, Block.of(some[:1]), some[1:])
    assert in_step.describe()["weights"] == host_side.describe()["weights"] != [None]


def test_shards_are_not_compared_as_replicas() -> None:
    pulse = Pulse.of(MODEL, shards=True)
    taken(pulse, records(0, a__kernel=np.float32([3.0])))
    assert pulse.describe()["weights"] == [None]


def test_a_pulse_leaves_out_values_that_are_not_finite() -> None:
    pulse = Pulse.of(MODEL, shards=False)
    taken(pulse, records(0, float("nan"), a__kernel=np.float32([1.0])))
    assert pulse.describe()["loss"] == [None]


@pytest.mark.parametrize("start", [0, 700])
def test_a_pulse_is_bounded_and_ranks_keep_the_same_steps(start: int) -> None:
    """Also a rank that began late."""
    first, late = Pulse.of(MODEL, shards=False), Pulse.of(MODEL, shards=False)
    for step in range(0, 30_000, 10):
        taken(first, records(step))
        if step >= start:
            taken(late, records(step))
    steps, others = first.describe()["step"], late.describe()["step"]
    assert MOST // 4 <= len(steps) <= MOST
    assert steps[0] == 0
    assert {step for step in steps if step >= start} <= set(others)


def test_a_light_rank_needs_the_loss_and_the_weights() -> None:
    wants = Wants()
    for place in (LOSS, ("weights", "a/kernel"), ("weights", "a/moving_mean"), ("activations", "a")):
        wants.add(place, Want(stats=True, tensor=True))
    sites = {str(s): s for s in (Site("loss"), Site("weights", "a", "kernel"), Site("activations", "a"))}
    shown = Shown({**dict.fromkeys(sites, 1.0), JOINED: []}, sites, wants)
    pulse = Pulse.of(MODEL, shards=False)
    light = pulse.lightened(shown)
    assert set(light.tensors) == {"loss", "weights/a/kernel", JOINED}
    assert light.wants == {LOSS: Want(stats=True), ("weights", "a/kernel"): Want(stats=True)}
    assert pulse.lightened(shown).wants is light.wants, "layouts of joined tensors are known by it"


def said(times: list[float], steps: list[int] | None = None, loss: float = 1.0) -> dict[str, Any]:
    n = len(times)
    return {"step": steps or list(range(0, 10 * n, 10)), "time": times, "cpu": times, "loss": [loss] * n,
            "weights": [None] * n}  # fmt: skip


class TestSideBySide:
    def test_differing_clocks_are_not_a_skew(self) -> None:
        pulses = Pulses.of(
            {0: said([0.0, 1.0, 2.0]), 1: said([500.0, 501.0, 502.0]), 2: said([7.0, 8.0, 11.0])}
        )
        assert pulses is not None
        np.testing.assert_allclose(pulses.skew, [[0, 0, 0], [0, 0, 0], [0, 0, 2]])
        np.testing.assert_allclose(pulses.step_seconds[:, 1:], [[0.1, 0.1], [0.1, 0.1], [0.1, 0.3]])

    def test_only_steps_that_half_of_the_ranks_have_are_compared(self) -> None:
        pulses = Pulses.of({0: said([0.0, 1.0]), 1: said([0.0, 1.0]), 2: said([0.0, 0.5, 1.0], [0, 5, 10])})
        assert pulses is not None
        assert pulses.steps.tolist() == [0, 10]
        assert np.isfinite(pulses.time).all()

    def test_a_single_rank_is_not_compared(self) -> None:
        assert Pulses.of({0: said([0.0])}) is None
        assert Pulses.of({0: said([0.0]), 1: {}}) is None

    def test_medians_leave_out_missing_values(self) -> None:
        table = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [2.0, 9.0, np.nan]])
        np.testing.assert_array_equal(medians(table, axis=0), [[2.0, 7.0, np.nan]])
