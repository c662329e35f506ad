"""The loss of every batch from running means: simulated trainings, in float32 as Keras computes."""

from __future__ import annotations

import numpy as np
import pytest

from fitscope.pipeline.batch_loss import LATE, BatchLoss, End, Sizes
from fitscope.reduce import oracle

rng = np.random.default_rng(0)


def never(step: int) -> bool:
    return False


def means(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """What Keras logs: a sum and a count in float32, and their quotient."""
    sums = np.cumsum((losses.astype("f4") * sizes.astype("f4")).astype("f4"), dtype="f4")
    return sums / np.cumsum(sizes.astype("f4"), dtype="f4")


def ends(values, first: int = 0, epoch: int = 0, together: int = 1) -> list[End]:
    return [
        End(first, epoch, (i + 1) * together - 1, float(i), float(value)) for i, value in enumerate(values)
    ]


def losses(n: int) -> np.ndarray:
    return np.exp(rng.normal(0, 0.3, n)).astype("f4").astype("f8")


@pytest.mark.parametrize("n", [1, 7, 3_000])
@pytest.mark.parametrize("spike", [1.0, 1e4, -1e4])
def test_the_derived_loss_is_within_its_bound(n, spike):
    wanted = losses(n)
    wanted[n // 2] *= spike
    found = BatchLoss(sizes=Sizes(32)).take(ends(means(wanted, np.full(n, 32))), never, last=True)
    assert found.steps.tolist() == list(range(n))
    assert (np.abs(found.values - wanted) <= found.errors).all()
    assert np.abs(found.values[n // 2] - wanted[n // 2]) <= 1e-3 * np.abs(wanted[n // 2])
    assert np.median(found.errors / np.abs(wanted)) < (1e-3 if spike == 1 else 1)


def test_an_epoch_may_have_more_samples_than_float32_can_count():
    wanted, n = losses(3_000), 3_000
    logged = means(wanted, np.full(n, 30_001))
    found = BatchLoss(sizes=Sizes(30_001)).take(ends(logged), never, last=True)
    assert (np.abs(found.values - wanted) <= found.errors).all()


def test_batch_ends_may_arrive_in_any_order():
    wanted = losses(500)
    said = ends(means(wanted, np.full(500, 8)))
    batch_loss, found = BatchLoss(sizes=Sizes(8)), []
    shuffled = [said[i] for i in np.argsort(np.arange(500) + rng.uniform(0, 20, 500))]
    for i in range(0, 500, 50):
        found.append(batch_loss.take(shuffled[i : i + 50], never, last=i == 450))
    steps = np.concatenate([one.steps for one in found if one is not None])
    values = np.concatenate([one.values for one in found if one is not None])
    assert steps.tolist() == list(range(500))
    np.testing.assert_allclose(values, wanted, rtol=1e-3)


def test_lost_batch_ends_leave_the_mean_of_those_batches():
    wanted = losses(2 * LATE)
    said = ends(means(wanted, np.full(2 * LATE, 8)))
    found = BatchLoss(sizes=Sizes(8)).take(said[:10] + said[14:], never)
    assert found.steps.tolist()[:20] == list(range(20))
    assert found.over[8:18].tolist() == [1, 1, 5, 5, 5, 5, 5, 1, 1, 1]
    np.testing.assert_allclose(found.values[10:15], wanted[10:15].mean(), rtol=1e-4)


def test_a_smaller_batch_counts_by_its_size():
    wanted = losses(10)
    logged = means(wanted, np.array([8] * 9 + [3]))
    found = BatchLoss(sizes=Sizes(8, 3, 10)).take(ends(logged), never, last=True)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-5)
    assert (found.errors < 1e-4).all()


def test_an_epoch_may_begin_in_the_middle_of_the_data():
    sizes = np.array([8, 8, 8, 2] * 3)
    wanted = losses(9)
    said = [
        end
        for epoch in range(3)
        for end in ends(means(wanted[3 * epoch :][:3], sizes[3 * epoch :][:3]), first=3 * epoch, epoch=epoch)
    ]
    found = BatchLoss(sizes=Sizes(8, 2, 4, runs_on=True)).take(said, never, last=True)
    assert found.steps.tolist() == list(range(9))
    np.testing.assert_allclose(found.values, wanted, rtol=1e-5)


def test_unknown_batch_sizes_give_no_bound():
    wanted = losses(10)
    found = BatchLoss().take(ends(means(wanted, np.full(10, 8))), never, last=True)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-5)
    assert np.isinf(found.errors).all()


def test_a_derived_loss_waits_for_a_capture_that_is_still_queued():
    wanted = losses(10)
    said, batch_loss = ends(means(wanted, np.full(10, 8))), BatchLoss(sizes=Sizes(8))
    assert batch_loss.take(said, lambda step: step == 4).steps.tolist() == [0, 1, 2, 3]
    batch_loss.saw(4, wanted[4])
    assert batch_loss.take([], never).steps.tolist() == [5, 6, 7, 8, 9]


def test_a_captured_step_decides_the_meaning_of_the_logs():
    wanted = losses(10)
    raw = BatchLoss(custom=True, sizes=Sizes(8))
    assert raw.take(ends(wanted)[:6], never) is None, "not understood so far"
    raw.saw(7, wanted[7])
    found = raw.take(ends(wanted)[6:], never)
    assert found.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    np.testing.assert_allclose(found.values, np.delete(wanted, 7), rtol=1e-6)
    neither = BatchLoss(custom=True, sizes=Sizes(8))
    neither.saw(7, 3 * wanted[7])
    assert neither.take(ends(wanted), never, last=True) is None
    assert "step 7" in neither.refused


def test_an_undecided_loss_is_within_the_bound_of_both_meanings():
    wanted = losses(10)
    for logged in (wanted, means(wanted, np.full(10, 8))):
        found = BatchLoss(custom=True, sizes=Sizes(8)).take(ends(logged), never, last=True)
        assert found.steps.tolist() == list(range(10))
        assert (np.abs(found.values - wanted) <= found.errors + 1e-6).all()


def test_stats_of_derived_values_are_those_of_the_oracle():
    wanted = np.array([1.5, 0.0, -3.0, 2.0**-130, 1e38, np.inf, 0.7])
    found = BatchLoss(custom=True)
    found._readings = found._readings[2:]  # logs are the losses themselves
    stretch = found.take(ends(wanted), never, last=True)
    for record, value in zip(stretch.records(), wanted.astype("f4").astype("f8"), strict=True):
        by_oracle = oracle.reduce(np.asarray(value))
        np.testing.assert_array_equal(record.stats.hist, by_oracle.hist)
        for name in ("count", "mean", "std", "min", "max", "rms", "zeros", "negatives", "nans", "infs"):
            np.testing.assert_equal(getattr(record.stats, name), getattr(by_oracle, name), name)
