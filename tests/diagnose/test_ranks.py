"""`rank_differs`: a diverged replica, a bad shard and a slow host, and ranks that differ only as ranks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fitscope.diagnose import Evidence, Finding, diagnose
from fitscope.diagnose.pulses import Pulses

STEPS = np.arange(0, 320, 10)
Array = np.ndarray[Any, Any]


class Ranks:
    """A healthy training: the same weights everywhere, other batches, clocks that differ, steps that vary by a tenth."""

    def __init__(self, world: int) -> None:
        rng = np.random.default_rng(world)
        shape = (world, len(STEPS))
        self.weights = np.tile(0.1 + STEPS / 1e5, (world, 1))
        self.loss = 2 * np.exp(-STEPS / 200) * (1 + 0.2 * rng.standard_normal(shape))
        self.took = 0.5 * (1 + 0.1 * rng.random(shape))  # seconds of a step
        self.clock = rng.uniform(-1e4, 1e4, (world, 1))
        self.cpu = 0.3 * (1 + 0.1 * rng.random(shape))

    def findings(self) -> list[Finding]:
        evidence = Evidence()
        times = 1.7e9 + self.clock + np.cumsum(10 * self.took, axis=1)
        tables = {
            "time": times,
            "cpu": np.cumsum(10 * self.cpu, axis=1),
            "loss": self.loss,
            "weights": self.weights,
        }
        evidence.pulses = Pulses.of(
            {
                rank: {
                    "step": STEPS.tolist(),
                    **{name: table[rank].tolist() for name, table in tables.items()},
                }
                for rank in range(len(self.loss))
            }
        )
        return list(diagnose(evidence, rules=["rank_differs"]))


@pytest.mark.parametrize("world", [2, 3, 8, 64])
def test_healthy_ranks_are_not_named(world: int) -> None:
    assert Ranks(world).findings() == []


def test_a_run_of_one_process_has_no_rank_that_differs() -> None:
    found = diagnose(Evidence(), rules=["rank_differs"])
    assert list(found) == []
    assert not found.not_judged


@pytest.mark.parametrize("world", [3, 8])
def test_a_diverged_replica_is_found(world: int) -> None:
    ranks = Ranks(world)
    ranks.weights[2, 12:] *= 1 + 1e-5
    (found,) = ranks.findings()
    assert found.severity == "error"
    assert found.evidence == {"rank": 2, "what": "weights"}
    assert found.first_step == 120
    assert f"rank 2 differ from those of the other {world - 1} ranks" in found.message


def test_neither_of_two_differing_replicas_is_blamed() -> None:
    ranks = Ranks(2)
    ranks.weights[1] *= 1.5
    (found,) = ranks.findings()
    assert "The 2 ranks do not hold the same weights" in found.message


def test_replicas_that_agree_again_give_no_finding() -> None:
    """A rank that was restored: what counts is the newest step."""
    ranks = Ranks(4)
    ranks.weights[3, 5:8] *= 2
    assert ranks.findings() == []


def test_rounding_is_not_a_divergence() -> None:
    ranks = Ranks(4)
    ranks.weights[3] *= 1 + 1e-9
    assert ranks.findings() == []


@pytest.mark.parametrize("world", [2, 8])
def test_a_bad_shard_is_found(world: int) -> None:
    ranks = Ranks(world)
    ranks.loss[1] *= 4
    (found,) = ranks.findings()
    assert found.severity == "warning"
    assert found.evidence == {"rank": 1, "what": "loss"}
    assert "run.rank(1)" in found.cure


def test_a_single_bad_batch_is_not_a_bad_shard() -> None:
    ranks = Ranks(8)
    ranks.loss[1, 20] *= 50
    assert ranks.findings() == []


def test_a_slow_host_is_found() -> None:
    ranks = Ranks(4)
    ranks.took[3] *= 2
    (found,) = ranks.findings()
    assert found.evidence == {"rank": 3, "what": "time"}
    assert "times as much as on the other ranks" in found.message


def test_a_host_that_the_others_wait_for_is_a_note() -> None:
    """All steps take as long; its process is busy meanwhile, the others wait."""
    ranks = Ranks(4)
    ranks.took[:] *= 2
    ranks.cpu[3] *= 3
    (found,) = ranks.findings()
    assert found.severity == "note"
    assert found.evidence == {"rank": 3, "what": "CPU time"}


def test_ranks_that_share_no_step_are_not_judged() -> None:
    evidence = Evidence()
    points = {"time": [1.0], "cpu": [1.0], "loss": [1.0], "weights": [None]}
    evidence.pulses = Pulses.of({rank: {"step": [rank], **points} for rank in range(3)})
    found = diagnose(evidence, rules=["rank_differs"])
    assert [each.rule for each in found.not_judged] == ["rank_differs"]


def test_a_thousand_ranks_are_compared_at_once() -> None:
    """As each rank by itself would be: by the medians and maxima of the others, without the ranks that have no number."""
    from fitscope.diagnose.rules.rank_differs import _ratios

    rng = np.random.default_rng(0)
    for world in (1, 2, 3, 4, 7, 8):
        usual = rng.choice([0.0, 1.0, 2.0, 5.0, np.nan], world)
        for row, ratio in enumerate(_ratios(usual)):
            others = np.delete(usual, row)
            others = others[np.isfinite(others)]
            known = np.isfinite(usual[row]) and len(others) and np.median(others) > 0
            np.testing.assert_equal(ratio, usual[row] / np.median(others) if known else np.nan)


def test_ranks_that_capture_different_steps() -> None:
    """A step counts that half of them have; repeated and unordered steps count once."""
    pulse = {"cpu": [None] * 3, "loss": [1.0, None, 3.0], "weights": [4.0, 5.0, 6.0]}
    found = Pulses.of(
        {
            0: {"step": [0, 10, 20], "time": [1.0, 2.0, 3.0], **pulse},
            1: {"step": [20, 10, 10], "time": [7.0, 8.0, 9.0], **pulse},
            2: {"step": [5, 10, 30], "time": [1.0, 2.0, 3.0], **pulse},
        }
    )
    assert found is not None
    assert found.steps.tolist() == [10, 20]
    np.testing.assert_array_equal(found.time, [[2, 3], [8, 7], [2, np.nan]])
    np.testing.assert_array_equal(found.loss, [[np.nan, 3], [np.nan, 1], [np.nan, np.nan]])
