"""Steps that show the same small tensors are taken together, and have the rows that they have one by one."""

from __future__ import annotations

import numpy as np
import pytest

from fitscope.pipeline import handover
from fitscope.pipeline.digest import Digest
from fitscope.pipeline.handover import JOINED, Shown
from fitscope.plan.wants import Want, Wants
from fitscope.record import Moment
from fitscope.sites import Site

CROSSENTROPY = {"losses": [{"class": "SparseCategoricalCrossentropy", "classification": "labels"}]}
ONE_HOT = {"losses": [{"class": "CategoricalCrossentropy", "classification": "one-hot"}]}
SQUARES = {"losses": [{"class": "MeanSquaredError", "classification": None}]}
SITES = [
    Site("inputs"),
    Site("activations", "a"),
    Site("activations", "b"),
    Site("gradients", "a"),
    Site("loss"),
]
DATA = [Site("targets"), Site("predictions")]


class Adapter:
    def to_numpy(self, tensor):
        return np.asarray(tensor)

    def nbytes(self, tensor):
        return tensor.nbytes


def joined(tensors):
    layout = [n for site, x in tensors.items() for n in (handover.number(site), x.ndim, *x.shape)]
    return np.concatenate([x.reshape(-1) for x in tensors.values()]), np.array(layout, np.int32)


def wants(**more):
    found = Wants()
    for site in (*SITES, *DATA):
        of_data = site.base in ("inputs", "targets", "predictions")
        found.add(site.place, Want(data=True) if of_data else Want(stats=True, **more))
    for name in "ab":
        found.add(("activations", name), Want(activity="relu"))
    return found


def batch(rng, size=8):
    """The tensors of one step; `a` has units that are off, and the second input is always the first."""
    x = rng.normal(size=(size, 4)).astype(np.float32)
    x[:, 1], x[:, 2] = x[:, 0], 7
    p = rng.random((size, 3)).astype(np.float32)
    values = [
        x,
        np.maximum(rng.normal(size=(size, 5)), 0).astype(np.float32),
        np.zeros((size, 2), np.float32),
        rng.normal(size=(size, 5)).astype(np.float32),
        np.float32(rng.random()),
    ]
    return dict(
        zip((*SITES, DATA[1]), [*map(np.asarray, values), p / p.sum(1, keepdims=True)], strict=True)
    ), {DATA[0]: rng.integers(0, 3, size).astype(np.int32)}


def shown(step, wanted):
    vectors = [joined(tensors) for tensors in step]
    return Shown({JOINED: vectors}, {site: site for tensors in step for site in tensors}, wanted)


def rows(digest, steps, *, at_once):
    captures = [(Moment(k, 0, k, float(k)), step) for k, step in enumerate(steps)]
    groups = [captures] if at_once else [[capture] for capture in captures]
    found = {}
    for group in groups:
        blocks, records, _ = digest.take(group)
        assert not records
        for block in blocks:
            for record in block.records():
                assert (record.at.step, record.site) not in found
                found[record.at.step, record.site] = record
    return found


def compared(steps, configuration=CROSSENTROPY, wanted=None):
    """The rows of the steps, after it is seen that they are the same both ways."""
    wanted = wanted or wants()
    both, reasons, bad = [], [], []
    for at_once in (True, False):
        told: dict[str, str | None] = {}
        errors: list[str] = []
        digest = Digest(Adapter(), errors.append, unseen=told.__setitem__, configuration=configuration)
        both.append(rows(digest, [shown(step, wanted) for step in steps], at_once=at_once))
        assert not errors
        reasons.append(told)
        bad.append(digest.bad_samples.found)
    together, alone = both
    assert together.keys() == alone.keys()
    for key, one in together.items():
        other = alone[key]
        assert (one.shape, one.dtype, one.batched) == (other.shape, other.dtype, other.batched), key
        for name in ("count", "zeros", "negatives", "nans", "infs", "mean", "std", "min", "max", "rms"):
            np.testing.assert_equal(
                getattr(one.stats, name), getattr(other.stats, name), err_msg=f"{key} {name}"
            )
        np.testing.assert_array_equal(one.stats.hist, other.stats.hist)
    assert reasons[0] == reasons[1]
    assert bad[0] == bad[1]
    return together


@pytest.mark.parametrize("seed", range(5))
def test_steps_taken_together_have_the_rows_of_steps_taken_alone(seed):
    rng = np.random.default_rng(seed)
    found = compared([batch(rng) for _ in range(30)])
    sites = {site for step, site in found if step == 29}
    assert sites >= {
        "activity/a",
        "classes/targets",
        "classes/log_loss",
        "features/duplicates",
        "loss",
        "gradients/a",
    }
    assert found[29, "features/duplicates"].stats.max == 2


def test_batches_of_several_sizes_are_taken_together_size_by_size():
    rng = np.random.default_rng(0)
    compared([batch(rng, 8 if k % 7 else 3) for k in range(30)])


@pytest.mark.parametrize("odd", [-1, 3])
def test_a_step_with_an_unknown_label_is_taken_alone(odd):
    rng = np.random.default_rng(0)
    steps = [batch(rng) for _ in range(10)]
    steps[4][1][DATA[0]][2] = odd
    found = compared(steps)
    assert found[4, "classes/log_loss"].stats.count == 7
    assert found[5, "classes/log_loss"].stats.count == 8


def test_a_step_with_nan_is_taken_alone():
    rng = np.random.default_rng(0)
    steps = [batch(rng) for _ in range(10)]
    for site in (SITES[0], SITES[1], SITES[3], DATA[1]):
        steps[4][0][site].reshape(-1)[3] = np.nan
    found = compared(steps)
    assert found[4, "gradients/a"].stats.nans == 1


def test_values_that_cannot_be_derived_have_the_same_reason():
    rng = np.random.default_rng(0)
    found = compared([batch(rng) for _ in range(5)], SQUARES)
    assert "classes/targets" not in {site for _, site in found}
    steps = [batch(rng) for _ in range(5)]
    for step in steps:  # one-hot in some steps and not in others
        step[0][DATA[0]] = np.eye(3, dtype=np.float32)[step[1].pop(DATA[0])]
    compared([steps[0][:1], steps[1][:1]], ONE_HOT)


def test_a_tensor_that_is_kept_is_taken_step_by_step():
    rng = np.random.default_rng(0)
    digest = Digest(Adapter(), pytest.fail, configuration=CROSSENTROPY)
    wanted = wants(tensor=True)
    steps = [shown(batch(rng), wanted) for _ in range(4)]
    _, records, _ = digest.take((Moment(k, 0, k, 0.0), step) for k, step in enumerate(steps))
    assert {record.at.step for record in records} == {0, 1, 2, 3}


def test_heads_are_the_same_object_in_every_block():
    rng = np.random.default_rng(0)
    digest, wanted = Digest(Adapter(), pytest.fail, configuration=CROSSENTROPY), wants()
    seen = set()
    for first in (0, 5, 10):
        steps = [shown(batch(rng), wanted) for _ in range(5)]
        blocks, _, _ = digest.take((Moment(first + k, 0, k, 0.0), step) for k, step in enumerate(steps))
        assert all(len(block.ats) == 5 for block in blocks)
        seen.add(tuple(id(block.heads) for block in blocks))
    assert len(seen) == 1


def test_samples_with_nan_are_named_in_steps_taken_together():
    rng = np.random.default_rng(0)
    steps = [batch(rng) for _ in range(10)]
    steps[6][0][Site("activations", "a")][[2, 5], 1] = np.nan
    wanted = wants()
    compared(steps, wanted=wanted)
    digest = Digest(Adapter(), [].append, configuration=CROSSENTROPY)
    rows(digest, [shown(step, wanted) for step in steps], at_once=True)
    assert digest.bad_samples.found == {"activations/a": {"step": 6, "samples": [2, 5], "number": 2, "of": 8}}
