"""A sample of every attack of `make campaign`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from campaign import ground, long, trainings
from campaign.__main__ import COUNTS, next_seed, summed, table, total
from campaign.attacks import ATTACKS
from campaign.ground import Round
from ledger import stretches

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
def test_each_attack_of_the_campaign_does_no_harm(name: str) -> None:
    fine(ATTACKS[name].run(SEED))


def test_a_killed_training_keeps_what_was_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "KILLS", 2)
    monkeypatch.setattr(trainings, "RUNS", 1)
    fine(trainings.kills(4 * SEED))  # on JAX


def test_a_long_training_and_many_short_ones_pass(tmp_path: Path) -> None:
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


def test_an_interrupted_campaign_continues() -> None:
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


def test_a_round_is_counted_once(tmp_path: Path) -> None:
    counts, results = tmp_path / "counts.json", tmp_path / "campaign.jsonl"
    one = {"tried": 10, "survived": 10, "lost": 0, "slowest": 0.5, "memory": 3 << 20, "failures": []}
    lines = [
        {"attack": "kills", "seed": 3, **one},
        {"attack": "kills", "seed": 4, **one, "slowest": 0.7},
        {"attack": "kills", "seed": 9, **one, "survived": 9, "failures": ["x"]},
    ]
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first = summed(total(results, counts))
    expected = {"tried": 20, "survived": 20, "lost": 0, "slowest": 0.7, "memory": 3 << 20, "seeds": [[3, 4]]}
    assert first == {"kills": expected}, "a round with a failure is no part of it: it is tried again"
    counts.write_text(json.dumps(first))
    found = total(results, counts)
    assert summed(found) == first, "the same lines count once"
    assert "| 1,000 | 30 | 29 | 0 | 0.70 s | 3 MB |" in table({"kills": found["kills"]})
    assert next_seed("kills", found["kills"], 0, {("kills", 9)}) == 0
    assert next_seed("kills", found["kills"], 3, {("kills", 9)}) == 5
    assert stretches([(5, 7), (1, 2), (3, 3), (6, 6)]) == [[1, 3], [5, 7]]


def test_the_page_shows_the_kept_counts() -> None:
    kept = json.loads(COUNTS.read_text(encoding="utf-8"))
    page = (COUNTS.parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    for name, one in kept.items():
        assert f"| {ATTACKS[name].what} | {ATTACKS[name].goal:,} | {one['tried']:,} |" in page
