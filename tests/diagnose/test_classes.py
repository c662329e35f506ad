"""Classes of faults and of healthy trainings that a rule took for one another: each was wrong once, on a program of the corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diagnose.made import LAYERS, STEPS, Made
from diagnose.test_rules import exploding

N = len(STEPS)


def losses(name: str, **settings: Any) -> list[dict[str, Any]]:
    return [{"output": "out", "class": name, "from_logits": False, **settings}]


def two_values(made: Made, low: float, high: float) -> Made:
    """Targets of which about a fifth have the higher value."""
    share = made.near(0.2)
    middle, spread = low + share * (high - low), np.sqrt(share * (1 - share)) * (high - low)
    return made.put(
        "targets", (32, 1), mean=middle, std=spread, min=low, max=high, rms=np.hypot(middle, spread)
    )


@pytest.mark.parametrize(
    ("low", "high", "found"), [(0, 1 / 255, True), (0.996, 1, True), (0, 1, False), (0.05, 0.95, False)]
)
def test_two_values_on_one_side_of_a_half_are_no_labels(low: float, high: float, found: bool) -> None:
    made = two_values(Made(losses=losses("BinaryCrossentropy")), low, high)
    assert [one.severity for one in made.findings("label_problem")] == ["warning"] * found


@pytest.mark.parametrize(("high", "found"), [(0.004, True), (0.2, False), (0.9, False)])
def test_shares_may_be_targets_of_a_binary_cross_entropy(high: float, found: bool) -> None:
    made = Made(losses=losses("BinaryCrossentropy"))
    made.put("targets", (32, 1), mean=made.near(0.4 * high), std=0.1 * high, min=0.0, max=high)
    assert bool(made.findings("label_problem")) == found


def test_class_numbers_are_whole() -> None:
    (found,) = Made().put("targets", min=0.0, max=0.0157, mean=0.008, std=0.004).findings("label_problem")
    assert "not whole numbers" in found.message


@pytest.mark.parametrize(("total", "found"), [(1 / 255, True), (1.0, False)])
def test_the_targets_of_a_softmax_add_up_to_one(total: float, found: bool) -> None:
    made = Made(losses=losses("CategoricalCrossentropy"))
    made.put("targets", (32, 5), mean=total / 5, std=0.4 * total, min=0.0, max=total)
    assert bool(made.findings("label_problem")) == found


def test_samples_between_two_classes_are_not_mislabelled() -> None:
    """3 % wrong labels have a loss of 3.5 or more; that of samples which the net knows to be unsure is lower."""
    for height, severities in ((2.6, []), (5.0, ["warning"])):
        torn, share = np.arange(N) % 2 == 0, 0.06
        made = Made().put(
            "classes/log_loss",
            (32,),
            mean=np.where(torn, share * height, 0.02),
            std=np.where(torn, height * np.sqrt(share * (1 - share)), 0.02),
            max=np.where(torn, height, 0.1),
        )
        assert [one.severity for one in made.findings("label_problem")] == severities, height


def test_words_that_nothing_tells_are_a_note() -> None:
    made = Made().put("targets", (32, 12)).put("classes/log_loss", (384,), mean=0.9, std=2.3, max=9.0)
    (found,) = made.findings("label_problem")
    assert found.severity == "note"
    assert "nothing in the inputs tells them" in found.message


@pytest.mark.parametrize(("classes", "severity"), [(5, "note"), (40, "warning")])
def test_a_start_far_off_is_a_warning_though_the_loss_falls(classes: int, severity: str) -> None:
    """4.5 times the loss of guessing: the right class has e^-5 of its chance among five classes, and e^-13 among forty."""
    output = {"layer": "out", "name": "out", "activation": "softmax", "shape": [None, classes]}
    made = Made(outputs=[output]).loss(np.geomspace(4.5 * np.log(classes), 0.3, 200))
    (found,) = made.findings("bad_initial_loss")
    assert found.severity == severity


@pytest.mark.parametrize(
    ("bias", "first", "found"), [(2.94, 3.1, True), (-2.94, 0.3, False), (0.0, 0.7, False)]
)
def test_a_bias_with_the_sign_of_the_common_class_is_a_wrong_prior(
    bias: float, first: float, found: bool
) -> None:
    output = {"layer": "out", "name": "out", "activation": "sigmoid", "shape": [None, 1]}
    made = Made(outputs=[output], losses=losses("BinaryCrossentropy")).loss(np.geomspace(first, 0.04, 200))
    made.put("targets", (32, 1), mean=made.near(0.04), std=0.2, min=0.0, max=1.0, rms=0.2)
    made.put("classes/targets", (2,), max=0.96).put(
        "weights/out/bias", (1,), mean=np.where(STEPS == 0, bias, -3)
    )
    loud = [one for one in made.findings() if one.severity == "warning"]
    assert [(one.rule, one.layer) for one in loud] == ([("bad_initial_loss", "out")] if found else [])


def frozen(made: Made, mean: float, variance: float, rms: float) -> Made:
    """Raw pixels into a batch norm with these statistics."""
    for name, value in (("mean", mean), ("variance", variance)):
        made.put(f"weights/dense/moving_{name}", (8,), mean=value, min=value, max=value, rms=value)
    made.put("inputs", rms=95.0, mean=80.0, max=255.0, min=0.0)
    return made.put("activations/dense", rms=made.near(rms))


def test_a_norm_frozen_before_it_saw_data_is_reported_as_the_cause() -> None:
    norm = {"dense__class": "BatchNormalization", "dense__trainable": False, "dense__parameters": 0}
    learned = frozen(Made(**norm), mean=80.0, variance=2500.0, rms=1.0)
    assert list(learned.findings()) == []
    fresh = frozen(Made(**norm), mean=0.0, variance=1.0, rms=95.0).loss(np.full(200, 9.0))
    (found,) = fresh.findings()
    assert (found.rule, found.layer) == ("batchnorm", "dense")
    under = {one.rule for one in found.consequences}
    assert {"input_not_normalised", "bad_initial_loss", "loss_not_decreasing"} <= under


@pytest.mark.parametrize(("rms", "found"), [(95.0, True), (1.0, False)])
def test_a_layer_that_should_normalise_the_inputs_must_do_so(rms: float, found: bool) -> None:
    made = frozen(Made(dense__class="Normalization"), mean=0.0, variance=1.0, rms=rms)
    assert bool(made.findings("input_not_normalised")) == found


def test_a_loss_that_only_comes_back_to_that_of_guessing_has_learned_nothing() -> None:
    noise = 0.03 * np.random.default_rng(0).standard_normal(200)
    guess = np.log(5)
    for begins, ends, found in ((1.8, 0.965, True), (1.1, 0.965, False), (1.8, 0.8, False)):
        values = guess * (ends + (begins - ends) * np.exp(-np.arange(200) / 15)) + noise
        assert bool(Made().loss(values).findings("loss_not_decreasing")) == found, (begins, ends)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"optimizer": {"class": "Ftrl", "l1_regularization_strength": 100.0}},
            "l1_regularization_strength is 100",
        ),
        (
            {"dense_1__kernel_regularizer": {"class": "L2", "l2": 10.0}},
            "kernel_regularizer of dense_1 has a factor of 10",
        ),
    ],
)
def test_penalties_that_hold_the_weights_at_zero_are_the_cause(changed: dict[str, Any], said: str) -> None:
    made = Made(**changed).loss(np.full(200, np.log(5)) + 0.001 * np.sin(np.arange(200)))
    made.put("updates/dense_1/kernel", rms=0.2)
    (found,) = made.findings()
    assert (found.rule, found.severity) == ("optimizer_misconfigured", "warning")
    assert said in found.message
    assert {"loss_not_decreasing", "updates_too_large"} <= {one.rule for one in found.consequences}
    (learns,) = Made(**changed).findings("optimizer_misconfigured")
    assert learns.severity == "note"


@pytest.mark.parametrize(
    ("clip", "rules"), [(5.0, {"exploding_gradient"}), (1e-5, {"exploding_gradient", "clipped_gradient"})]
)
def test_a_common_clip_of_exploding_gradients_is_no_cause(clip: float, rules: set[str]) -> None:
    made = exploding(Made(optimizer={"clipnorm": clip}))
    for layer in ("dense", "dense_1"):
        made.put(f"weight_gradients/{layer}/kernel", rms=made.near(1e3))
    found = made.findings("exploding_gradient", "clipped_gradient")
    assert {one.rule for one in found} == rules


def test_a_spike_begins_at_the_first_batch_that_was_odd_in_the_same_way() -> None:
    values = 1.6 * np.exp(-np.arange(200) / 40)
    values[80::50] += 6.0
    made = Made().loss(values).put("inputs", mean=np.where(STEPS % 50 == 30, 1.0, Made().near(0.0)))
    (found,) = made.findings("loss_spike")
    assert (found.evidence["step"] in (80, 130, 180), found.first_step) == (True, 30)
    assert "So it was in that of step 30" in found.message
    usual = Made().loss(values).findings("loss_spike")[0]
    assert usual.first_step == 80


@pytest.mark.parametrize(("parameters", "found"), [(0, False), (100, True)])
def test_what_only_a_layer_without_weights_follows_is_an_output(parameters: int, found: bool) -> None:
    made = Made(dense_2__activation="sigmoid", out__class="Lambda", out__parameters=parameters)
    made.put("activity/dense_2", zeros=0, mean=0.02)
    assert bool(made.findings("saturated")) == found
    assert made.loss(np.full(200, 1.6)).findings("saturated")


def test_a_loss_below_zero_that_vanishes_neither_diverges_nor_stays() -> None:
    """The loss of a policy: the probability of what it does times how much better that is than usual."""
    scale, noise = np.exp(-np.arange(200) / 20), np.random.default_rng(0).standard_normal(200)
    own = {"custom": {"train_step": True}}
    made = Made(**own).loss(scale * (-0.14 + 0.1 * noise))
    assert not made.findings("loss_diverging", "loss_not_decreasing")
    stays = Made(**own).loss(-0.14 + 0.02 * noise)
    assert [one.rule for one in stays.findings("loss_not_decreasing", "loss_diverging")] == [
        "loss_not_decreasing"
    ]
    climbs = Made(**own).loss(-0.9 + 1.2 * np.arange(200) / 200 + 0.02 * noise)
    assert climbs.findings("loss_diverging")
    nearer = Made(**own).loss(-0.9 + 0.5 * np.arange(200) / 200 + 0.02 * noise)
    assert nearer.findings("loss_not_decreasing")


@pytest.mark.parametrize(("grows", "found"), [(0.0, True), (0.02, False)])
def test_weights_that_move_at_other_steps_do_move(grows: float, found: bool) -> None:
    made = Made()
    for layer in LAYERS:
        made.put(f"updates/{layer}/kernel", rms=0.0).put(f"updates/{layer}/bias", rms=0.0)
        made.put(f"weights/{layer}/kernel", rms=0.2 * (1 + grows * np.arange(N) / N))
    assert bool(made.findings("updates_too_small")) == found


def test_the_long_tail_of_small_batches_is_no_spike() -> None:
    tail = 0.1 * np.random.default_rng(3).chisquare(1, 400)
    tail[350] = 1.6
    assert not Made().loss(tail + np.exp(-np.arange(400) / 10)).findings("loss_spike")
    quiet = 0.2 + np.exp(-np.arange(400) / 10) + 0.01 * np.random.default_rng(3).standard_normal(400)
    quiet[300] += 0.8
    assert [one.severity for one in Made().loss(quiet).findings("loss_spike")] == ["note"]


def test_wrong_labels_stand_out_where_the_others_still_have_a_small_loss() -> None:
    """Every second batch of 16 has one wrong label; the loss of the other samples must not hide how high its loss is."""
    torn, high, low = np.arange(N) % 2 == 0, 2.9, 0.06
    spread = (high - low) * np.sqrt(1 / 16 * 15 / 16)
    made = Made().put(
        "sample_loss",
        (16,),
        mean=np.where(torn, low + (high - low) / 16, low),
        std=np.where(torn, spread, 0.04),
        max=np.where(torn, high, 0.15),
    )
    (found,) = made.findings("label_problem")
    assert found.severity == "warning"
    assert found.evidence["loss"] == pytest.approx(high, abs=0.01)
    assert found.evidence["share"] == pytest.approx(1 / 32, rel=0.05)


def test_batches_whose_samples_have_one_loss_are_judged_without_a_numpy_warning() -> None:
    """The highest loss of such a batch is its mean, and that of the batches without a high loss."""
    loss = np.where(np.arange(N) % 2 == 0, 5.0, 0.06)
    made = Made().put("sample_loss", (16,), mean=loss, std=0.0, max=loss)
    with np.errstate(all="raise"):
        found = made.findings("label_problem")
    assert (list(found), list(found.not_judged)) == ([], [])
