"""A finding names a model that ignores its inputs: its loss is that of the average target. A model that does any better has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diagnose.made import STEPS, Made
from fitscope.diagnose.baseline import baseline

N = len(STEPS)


def regression(share: float, *, middle: float = 0.0, **changed: Any) -> Made:
    """Noisy batches of targets with spread 1; the model explains all but this share of their squares around their mean."""
    made = Made(losses=[{"output": "out", "class": "MeanSquaredError", "from_logits": None}], **changed)
    random = np.random.default_rng(1)
    targets = middle + random.standard_normal((N, 16))
    made.put("targets", (16,), mean=targets.mean(1), std=targets.std(1), rms=np.sqrt((targets**2).mean(1)))
    made.drop("classes/targets", "classes/predictions")
    squares = (targets - targets.mean()) ** 2
    losses = 1 + 0.3 * random.standard_normal(200)
    losses[STEPS] = squares.mean(1) * share
    return made.loss(losses)


@pytest.mark.parametrize(("share", "found"), [(1.0, True), (1.02, True), (0.9, False), (0.3, False)])
def test_a_regression_that_predicts_the_mean_has_learned_nothing(share: float, found: bool) -> None:
    findings = regression(share).findings("loss_not_decreasing")
    assert [f.rule for f in findings if "always predicting the mean" in f.message] == [
        "loss_not_decreasing"
    ] * found


@pytest.mark.parametrize(("end", "found"), [(900.0, True), (300.0, False)])
def test_targets_far_from_the_output_excuse_a_high_loss_only_if_it_falls(end: float, found: bool) -> None:
    made = regression(1.0, middle=30.0).loss(np.linspace(900.0, end, 200))
    assert bool(made.findings("loss_not_decreasing")) == found


def test_a_penalty_in_the_loss_is_not_compared() -> None:
    made = regression(1.0, dense__kernel_regularizer={"class": "L2", "l2": 0.01})
    assert baseline(made.evidence()) is None


def test_rare_positives_are_compared_with_their_share() -> None:
    made = Made(losses=[{"output": "out", "class": "BinaryCrossentropy", "from_logits": False}])
    share = np.random.default_rng(2).binomial(2000, 0.01, N) / 2000
    made.put("targets", (2000,), mean=share, std=np.sqrt(share * (1 - share)))
    usual = share.mean()
    losses = np.full(200, 0.2)
    losses[STEPS] = -(share * np.log(usual) + (1 - share) * np.log(1 - usual))
    found = baseline(made.loss(losses).evidence())
    assert found is not None
    assert found.share == pytest.approx(1, abs=1e-6)
    soft = made.put("targets", (2000,), mean=share, std=0.1 * np.sqrt(share))  # not labels of 0 and 1
    assert baseline(soft.evidence()) is None
