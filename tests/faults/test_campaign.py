"""A sample of every attack of `make campaign`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from campaign import ground, long, trainings
from campaign.__main__ import next_seed, table
from campaign.attacks import ATTACKS
from campaign.ground import Round

SEED = 12345


def fine(done: Round) -> None:
    assert done.failures == []
    assert done.tried == done.survived > 0
    assert done.lost == 0


@pytest.fixture(autouse=True)
def _any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests may take its time."""
    monkeypatch.setattr(ground, "SLOW", math.inf)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.quick])
def test_an_attack_does_no_harm(name: str) -> None:
    fine(ATTACKS[name].run(SEED))


def test_a_killed_training_keeps_what_was_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "KILLS", 2)
    monkeypatch.setattr(trainings, "RUNS", 1)
    fine(trainings.kills(4 * SEED))  # on JAX


def test_a_long_training_and_many(tmp_path: Path) -> None:
    for attack, number in ((long.soak, 1000), (long.fits, 3)):
        done = Round()
        attack(str(tmp_path / attack.__name__), done, number)
        fine(done)
        assert done.tried == number


def test_memory_that_grows_is_a_failure() -> None:
    done = Round()
    long.grown([100 << 20, 300 << 20, *[310 << 20] * 18], done)
    assert done.failures == []
    long.grown([size << 20 for size in range(300, 500, 10)], done)
    assert len(done.failures) == 1


def test_a_round_counts_what_went_wrong() -> None:
    done = Round()
    with done.trial("a wrong number"):
        raise AssertionError("wrong")
    with done.trial("fine"):
        pass
    assert (done.tried, done.survived, done.failures) == (2, 1, ["a wrong number: AssertionError: wrong"])


def test_a_campaign_goes_on_where_it_was() -> None:
    def done(seed: int, *failures: str) -> dict[str, Any]:
        return {
            "seed": seed,
            "tried": 400,
            "survived": 400,
            "lost": 0,
            "slowest": 0.1,
            "memory": 1 << 20,
            "failures": failures,
        }

    again: set[tuple[str, int]] = set()
    assert next_seed("disk faults", {0: done(0), 1: done(1)}, 0, again) == 2
    assert (
        next_seed("disk faults", {0: done(0, "x"), 1: done(1)}, 0, again) == 0
    )  # what failed is tried again, once
    assert next_seed("disk faults", {0: done(0, "x"), 1: done(1)}, 0, again) == 2
    assert next_seed("disk faults", {n: done(n) for n in range(3)}, 0, again) is None  # 1,000 were asked for
    assert "| 1,000 | 1,200 | 1,200 | 0 | 0.10 s | 1 MB |" in table(
        {"disk faults": {n: done(n) for n in range(3)}}
    )
