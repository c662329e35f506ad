"""One cause, one finding: what is listed under what, and what must not hide the cause."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.made import LAYERS, STEPS, Made
from diagnose.test_rules import flat
from fitscope.diagnose import Finding, Findings


def nothing_moves(made: Made) -> Made:
    """Every gradient is exactly zero, and so is every update: the weights stay as they are."""
    for layer in LAYERS:
        for weight in ("kernel", "bias"):
            made.put(f"weights/{layer}/{weight}", rms=0.2)
            made.put(f"weight_gradients/{layer}/{weight}", rms=0.0).put(f"updates/{layer}/{weight}", rms=0.0)
    return made.loss(flat)


def below(found: Findings | Finding) -> set[str]:
    """The rules of the consequences."""
    causes = [found] if isinstance(found, Finding) else list(found)
    return {one.rule for cause in causes for one in cause.consequences}


def test_a_softmax_over_one_unit_is_one_finding() -> None:
    outputs = [{"layer": "out", "name": "out", "activation": "softmax", "shape": [None, 1]}]
    losses = [{"output": "out", "class": "BinaryCrossentropy", "from_logits": False}]
    (found,) = nothing_moves(Made(outputs=outputs, losses=losses)).findings()
    assert found.rule == "output_loss_mismatch"
    assert "updates_too_small" in below(found)


def test_inputs_that_saturate_the_output_are_one_finding() -> None:
    (found,) = nothing_moves(Made().put("inputs", rms=200.0, mean=75.0, max=900.0)).findings()
    assert found.rule == "input_not_normalised"
    assert "updates_too_small" in below(found)


def test_updates_of_zero_do_not_ask_for_a_larger_learning_rate() -> None:
    made = nothing_moves(Made())
    (found,) = made.findings("updates_too_small")
    assert found.message == "All gradients are exactly zero at every recorded step, so no weight moves."
    assert "learning rate does not help" in found.cure
    made.put("weight_gradients/out/kernel", rms=1e-3)
    (found,) = made.findings("updates_too_small")
    assert found.message == "No step changes any weight at all, though there are gradients."
    assert "0.0e+00" not in found.message


@pytest.mark.parametrize(("batch", "causes"), [(1, {"batchnorm"}), (2, {"batchnorm", "dead_relu"})])
def test_normalisation_over_single_samples_explains_the_dead_units_behind_it(
    batch: int, causes: set[str]
) -> None:
    """With one sample every unit is its own mean, so the norm returns zero; with two it does not."""
    made = Made(dense_1__class="BatchNormalization", dense_1__momentum=0.9, fit={"batch_size": batch})
    made.put("activations/dense_1", (batch, 32)).put("activity/dense_2", zeros=32)
    for layer in ("dense", "dense_1"):
        for weight in ("kernel", "bias"):
            made.put(f"weight_gradients/{layer}/{weight}", rms=0.0)
    found = made.loss(flat).findings()
    assert {one.rule for one in found} == causes
    assert {"layer_not_learning", "loss_not_decreasing"} <= below(found)


@pytest.mark.parametrize(
    ("clip", "causes"), [(1.0, ["bad_initial_loss"]), (1e-5, ["clipped_gradient", "bad_initial_loss"])]
)
def test_an_ordinary_clip_that_cuts_every_gradient_is_not_the_cause(clip: float, causes: list[str]) -> None:
    made = Made(optimizer={"clipnorm": clip})
    for layer in LAYERS:
        made.put(f"weight_gradients/{layer}/kernel", rms=made.near(1e6))
    found = made.loss(1e6 * made.sites["loss"]["value"]).findings()
    assert sorted(one.rule for one in found) == sorted(causes)
    assert ("clipped_gradient" in below(found)) == (clip == 1.0)


def test_one_odd_batch_does_not_make_inputs_unnormalised() -> None:
    since, at = STEPS >= 100, STEPS == 100
    made = Made().put("features/range", max=np.where(since, 4000.0, 7.0), mean=np.where(since, 505.0, 6.0))
    made.put("inputs", rms=np.where(at, 480.0, 1.0), max=np.where(at, 2000.0, 3.0))
    assert [one.rule for one in made.findings()] == ["odd_batch"]


@pytest.mark.parametrize(
    ("common", "cause"), [(0.9, "class_collapse"), (0.3, "loss_not_decreasing")], ids=["rare classes", "even"]
)
def test_rare_classes_explain_a_loss_that_stays(common: float, cause: str) -> None:
    """Under imbalance always naming the common class is what the loss settles for; otherwise it follows from not learning."""
    made = Made().loss(flat).put("classes/predictions", max=1.0, zeros=4).put("classes/targets", max=common)
    (found,) = made.findings()
    assert found.rule == cause
    assert below(found) == {"class_collapse", "loss_not_decreasing"} - {cause}


@pytest.mark.parametrize(
    ("momentum", "every", "epoch"),
    [(0.9, 50, 1), (0.99, 50, None), (0.99, 200, 2), (0.99, 400, 1)],
    ids=["fast", "young all the time", "young in the first epoch", "old enough"],
)
def test_validation_with_young_moving_statistics_is_not_overfitting(
    momentum: float, every: int, epoch: int | None
) -> None:
    """What a batch norm uses in validation is still near its initial value in the first 3 / (1 - momentum) steps."""
    made = Made(dense_1__class="BatchNormalization", dense_1__momentum=momentum)
    at = every * np.arange(1, 7)
    made.scalar("logs/loss", at, [1.2, 0.8, 0.5, 0.3, 0.2, 0.1])
    made.scalar("logs/val_loss", at, [1.0, 1.1, 1.4, 1.9, 2.2, 2.5])
    found = made.findings("overfitting")
    assert [one.evidence["best_epoch"] for one in found] == ([epoch] if epoch else [])
    reasons = [one.reason for one in found.not_judged]
    assert all("dense_1 need about 300 steps" in reason for reason in reasons)
    assert len(reasons) == (epoch is None)
    if epoch is None:  # a model that was trained before has old ones
        made.put("weights/dense_1/moving_mean", (32,), rms=made.near(0.7))
        assert [one.evidence["best_epoch"] for one in made.findings("overfitting")] == [1]


@pytest.mark.parametrize(
    ("size", "learns", "layers"),
    [(1e-9, True, ["dense"]), (1e-6, True, []), (1e-6, False, ["dense"])],
    ids=["below epsilon", "above it", "above it, in vain"],
)
def test_a_gradient_below_the_epsilon_of_adam_counts_as_vanishing(
    size: float, learns: bool, layers: list[str]
) -> None:
    """Adam divides by the size of the gradient plus its epsilon of 1e-7: updates shrink from there on.

    Above it they have the usual size. Where the loss stays at guessing, that did not help.
    """
    made = Made()
    for i, layer in enumerate(LAYERS):
        made.put(f"weight_gradients/{layer}/kernel", rms=made.near(size if layer == "dense" else 0.05))
        made.put(f"gradients/{layer}", rms=made.near(size * 100**i))
    made.put("updates/dense/kernel", rms=made.near(6e-6))
    made = made if learns else made.loss(flat)
    assert [one.layer for one in made.findings("vanishing_gradient")] == layers


@pytest.mark.parametrize("deep", [True, False])
def test_layers_that_blow_up_the_gradient_come_before_the_first_loss(deep: bool) -> None:
    """In depth the layers are the cause, of the loss as well; gradients that grow later are a consequence of the bad start."""
    made = Made()
    for i, layer in enumerate(LAYERS):
        made.put(f"activations/{layer}", rms=made.near(10.0**i))
        if deep and layer != "out":
            made.put(f"gradients/{layer}", rms=made.near(1e5 / 10.0**i))
    found = made.loss(50 * made.sites["loss"]["value"]).findings("bad_initial_loss", "exploding_gradient")
    assert [one.rule for one in found] == (["exploding_gradient"] if deep else ["bad_initial_loss"])
    assert below(found) == ({"bad_initial_loss"} if deep else set())
