"""Every rule on a training that is healthy, and on the same one with a fault in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diagnose.made import STEPS, Made
from fitscope.diagnose import RULES

N = len(STEPS)


def dying(made: Made) -> Made:
    return made.put("activity/dense_1", zeros=np.where(STEPS > 60, 30, 1))


def vanishing(made: Made) -> Made:
    for i, layer in enumerate(("dense", "dense_1", "dense_2")):
        made.put(f"weight_gradients/{layer}/kernel", rms=made.near(1e-12 * 1e3**i))
        made.put(f"updates/{layer}/kernel", rms=made.near(1e-13 * 1e3**i))
        made.put(f"gradients/{layer}", rms=made.near(1e-12 * 1e3**i))
    return made


def exploding(made: Made) -> Made:
    for i, layer in enumerate(("dense", "dense_1", "dense_2")):
        made.put(f"gradients/{layer}", rms=made.near(1e4 / 1e2**i))
    return made


def growing(made: Made) -> Made:
    size = 2e-3 * np.where(STEPS > 150, 500.0, 1.0)
    made.loss(
        np.where(np.arange(200) > 150, 1.4, made.sites["loss"]["value"])
    )  # while the loss falls it is a note
    return made.put("weight_gradients/dense_2/kernel", rms=size)


def still(made: Made) -> Made:
    return made.put("weight_gradients/dense_1/kernel", rms=0.0).put("weight_gradients/dense_1/bias", rms=0.0)


def sorted_labels(made: Made) -> Made:
    labels = np.arange(N) * 5 // N
    return made.put("targets", mean=labels, std=0.0, min=labels, max=labels)


def small_updates(made: Made) -> Made:
    for layer in ("dense", "dense_1", "dense_2", "out"):
        made.put(f"updates/{layer}/kernel", rms=made.near(1e-8))
    return made.loss(1.6 + 0.02 * made.random.standard_normal(200))


def wide_feature(made: Made) -> Made:
    """One feature is wide, in every batch; a few large numbers of it, so the rms of all inputs is not large."""
    return made.put("features/range", max=500.0, mean=63.0).put("inputs", max=250.0, min=-250.0)


def half(made: Made) -> Made:
    for layer in ("dense", "dense_1", "dense_2"):
        made.dtypes[f"gradients/{layer}"] = "float16"
    return made.put("gradients/dense", small=900)


def spiking(made: Made) -> Made:
    values = made.sites["loss"]["value"].copy()
    values[120] = 9.0
    return made.loss(values).put("inputs", max=np.where(STEPS == 120, 4000.0, 3.0))


PRICES: dict[str, Any] = {
    "outputs": [{"layer": "out", "name": "out", "activation": "linear", "shape": [None, 1]}],
    "losses": [{"output": "out", "class": "MeanSquaredError"}],
}


def prices(made: Made, mean: float = 40_000.0) -> Made:
    """Targets of a regression around this mean, with a standard deviation of 9,000."""
    return made.put(
        "targets", (32, 1), mean=made.near(mean), std=9000.0, min=mean - 20_000, max=mean + 20_000, rms=mean
    )


flat = 1.6 + 0.02 * np.random.default_rng(1).standard_normal(200)
rising = 1.6 + np.arange(200) / 40

Change = Callable[[Made], Made]

#: By rule: how to break it, and the layer to blame.
FAULTS: list[tuple[str, dict[str, Any], Change, str | None]] = [
    ("nonfinite", {}, lambda m: m.broken("activations/dense_1", 100, nans=3).broken("activations/out", 100, nans=5), "dense_1"),
    ("exploding_gradient", {}, exploding, "dense"),
    ("exploding_gradient", {}, growing, "dense_2"),
    ("vanishing_gradient", {}, vanishing, "dense"),
    ("dead_relu", {}, dying, "dense_1"),
    ("dead_relu", {}, lambda m: m.drop("activity/dense_1").put("activations/dense_1", zeros=1020), "dense_1"),
    ("saturated", {"dense_1__activation": "tanh"}, lambda m: m.put("activity/dense_1", zeros=30), "dense_1"),
    ("saturated", {"dense_1__activation": "tanh"}, lambda m: m.drop("activity/dense_1").put("activations/dense_1", rms=0.998), "dense_1"),
    ("saturated", {"dense_1__activation": "tanh"}, lambda m: m.put("activity/dense_1", zeros=0, mean=0.14), "dense_1"),
    ("layer_not_learning", {}, still, "dense_1"),
    (
        "layer_not_learning",
        {"dense_1__kernel_initializer": {"class": "Zeros"}},
        lambda m: m.put("weights/dense_1/kernel", std=0.0),
        "dense_1",
    ),
    ("updates_too_large", {}, lambda m: m.put("updates/dense_2/kernel", rms=0.5), "dense_2"),
    ("updates_too_large", {}, lambda m: m.put("updates/dense_2/kernel", rms=0.05).loss(flat), "dense_2"),
    ("updates_too_small", {}, small_updates, None),
    ("loss_not_decreasing", {}, lambda m: m.loss(flat), None),
    ("loss_spike", {}, spiking, None),
    ("odd_batch", {}, lambda m: m.put("inputs", rms=np.where(STEPS == 60, 250.0, 1.0)), "dense"),
    ("odd_batch", {}, lambda m: m.put("targets", rms=np.where(STEPS % 50 == 10, 90.0, 2.0)), None),
    ("loss_diverging", {}, lambda m: m.loss(rising), None),
    ("overfitting", {}, lambda m: m.scalar("logs/val_loss", np.arange(50, 201, 50), [1.0, 1.1, 1.4, 1.9]), None),
    ("class_collapse", {}, lambda m: m.put("classes/predictions", max=1.0, zeros=4), "out"),
    ("bad_initial_loss", {}, lambda m: m.loss(10 * m.sites["loss"]["value"]), "out"),
    ("bad_initial_loss", PRICES, lambda m: prices(m).loss(np.linspace(1.7e9, 1.2e9, 200)), "out"),
    ("bad_initial_loss", PRICES | {"losses": [{"class": "MeanAbsoluteError"}]}, lambda m: prices(m).loss(np.full(200, 4e4)), "out"),
    ("input_not_normalised", {}, lambda m: m.put("inputs", rms=130.0, mean=90.0, max=255.0), "dense"),
    ("input_not_normalised", {}, wide_feature, "dense"),
    ("input_not_normalised", {}, lambda m: m.put("inputs", rms=0.002, max=0.004, min=0.0).loss(flat), "dense"),
    ("constant_or_duplicate_features", {}, lambda m: m.put("features/inputs", zeros=1), None),
    ("constant_or_duplicate_features", {}, lambda m: m.scalar("features/duplicates", STEPS, np.full(N, 2)), None),
    ("label_problem", {}, lambda m: m.put("targets", min=1, max=5), "out"),
    ("label_problem", {}, lambda m: m.put("targets", min=2, max=2, mean=2, std=0), None),
    ("label_problem", {}, lambda m: m.put("sample_loss", shape=(32,), mean=0.3, std=1.2, max=5.0), None),
    ("output_loss_mismatch", {"losses": [{"class": "SparseCategoricalCrossentropy", "from_logits": True}]}, lambda m: m, "out"),
    (
        "output_loss_mismatch",
        {"outputs": [{"layer": "out", "activation": "relu", "shape": [None, 1]}], "losses": [{"class": "MeanSquaredError"}]},
        lambda m: m.put("targets", min=-3.0, max=3.0),
        "out",
    ),
    ("batchnorm", {"dense_1__class": "BatchNormalization", "dense_1__momentum": 0.9999}, lambda m: m, "dense_1"),
    ("precision_underflow", {}, half, "dense"),
    ("unshuffled", {}, sorted_labels, None),
    ("dropout_too_high", {"dense_1__class": "Dropout", "dense_1__rate": 0.95}, lambda m: m, "dense_1"),
    ("dropout_too_high", {"dense_1__class": "LSTM", "dense_1__dropout": 0.95}, lambda m: m, "dense_1"),
    ("dropout_too_high", {"dense_1__class": "GRU", "dense_1__recurrent_dropout": 0.9}, lambda m: m, "dense_1"),
    ("wrong_axis", {}, lambda m: m.put("activations/out", mean=1 / 32), "out"),
    ("wrong_axis", {"out__class": "Softmax", "out__axis": 0}, lambda m: m, "out"),
    ("wrong_axis", {"dense_1__class": "Softmax", "dense_1__axis": -1}, lambda m: m.put("activations/dense_1", (32, 10, 1)), "dense_1"),
    ("wrong_axis", {"dense_1__activation": "softmax"}, lambda m: m.put("activations/dense_1", (32, 10, 1)), "dense_1"),
    ("exploding_weights", {}, lambda m: m.put("weights/dense/kernel", rms=0.2 * np.linspace(1, 50, N)), "dense"),
    ("clipped_gradient", {"optimizer": {"global_clipnorm": 1e-5}}, lambda m: m, None),
    ("optimizer_misconfigured", {"optimizer": {"epsilon": 10.0}}, lambda m: m, None),
    ("optimizer_misconfigured", {"optimizer": {"learning_rate": -1e-3}}, lambda m: m, None),
    ("optimizer_misconfigured", {}, lambda m: m.scalar("learning_rate", STEPS, np.where(STEPS == 60, 1.0, 0.01)), None),
]  # fmt: skip


def test_a_healthy_training_has_no_findings_and_every_rule_can_judge_it() -> None:
    found = Made().findings()
    assert list(found) == []
    assert found.not_judged == ()
    assert found.summary == "28 rules checked, nothing found"


@pytest.mark.parametrize(("rule", "changed", "change", "layer"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_rule_finds_its_fault_in_the_right_layer(
    rule: str, changed: dict[str, Any], change: Change, layer: str | None
) -> None:
    made = change(Made(**changed))
    (found,) = made.findings(rule)
    assert found.rule == rule
    assert found.layer == layer
    assert found.severity in ("error", "warning")
    assert found.message.endswith(".")
    assert found.cure.endswith(".")
    assert 0 < found.confidence <= 1
    assert found.first_step <= found.last_step
    whole = change(Made(**changed)).findings()
    assert rule in {each.rule for one in whole for each in (one, *one.consequences)}


@pytest.mark.parametrize(
    "losses",
    [
        {"mean": 0.01, "std": 0.02, "max": 0.1},
        {"mean": 0.4, "std": 0.45, "max": 2.0},
        {"mean": 0.5, "std": 1.2, "max": 5.0},
    ],
    ids=["all learned", "hard by nature", "one in seven wrong"],
)
def test_labels_are_reported_only_if_a_few_samples_have_a_high_loss(losses: dict[str, float]) -> None:
    found = Made().put("sample_loss", shape=(32,), **losses).findings("label_problem")
    assert [one.rule for one in found] == (["label_problem"] if losses["max"] > 4 else [])


def test_a_label_that_the_loss_ignores_is_not_a_problem() -> None:
    for left_out, problems in ((-1, 0), (-100, 1), (None, 1)):
        loss = {"output": "out", "class": "SparseCategoricalCrossentropy", "from_logits": False}
        made = Made(losses=[{**loss, "ignore_class": left_out}]).put("targets", min=-1, max=4)
        assert len(made.findings("label_problem")) == problems, left_out


def test_a_learning_rate_a_little_below_zero_counts_as_zero() -> None:
    falling = np.where(STEPS < 10, 3e-3, -4e-11)  # PolynomialDecay, in float32
    (found,) = (
        Made(optimizer={"learning_rate": {"class": "PolynomialDecay"}})
        .scalar("learning_rate", STEPS, falling)
        .findings("optimizer_misconfigured")
    )
    assert found.severity == "warning"
    assert "falls from 0.003 to 0 by step 10" in found.message


def test_a_validation_loss_that_starts_far_off_points_to_the_data() -> None:
    epochs = np.arange(50, 201, 50)
    (found,) = Made().scalar("logs/val_loss", epochs, [30.0, 40.0, 90.0, 200.0]).findings("overfitting")
    assert "In the first epoch it was already 25 times the training loss." in found.message
    assert "scaled" in found.cure
    (usual,) = Made().scalar("logs/val_loss", epochs, [1.0, 1.1, 1.4, 1.9]).findings("overfitting")
    assert "EarlyStopping" in usual.cure


@pytest.mark.parametrize(
    ("steps", "severity"), [(range(30, 200, 50), "warning"), (range(30, 200, 13), "note")]
)
def test_many_spikes_are_a_warning_only_if_they_are_one_batch_of_each_epoch(
    steps: range, severity: str
) -> None:
    values = np.full(200, 0.05)
    values[:5], values[list(steps)] = 1.6, 9.0
    found = [one for one in Made().loss(values).findings("loss_spike") if one.rule == "loss_spike"]
    assert [one.severity for one in found] == [severity]


def test_a_slightly_high_first_loss_is_a_note_once_the_loss_fell() -> None:
    for first, end, severity in ((5.5, 0.1, "note"), (5.5, 2.0, "warning"), (50.0, 0.1, "warning")):
        (found,) = Made().loss(np.geomspace(first, end, 200)).findings("bad_initial_loss")
        assert found.severity == severity, (first, end)


def test_a_pretrained_model_may_learn_little() -> None:
    (found,) = Made().loss(np.full(200, 0.006)).findings("loss_not_decreasing")
    assert found.severity == "note"


def test_gradients_that_grow_while_the_loss_falls_are_a_note() -> None:
    made = Made().put("weight_gradients/dense/kernel", rms=np.where(STEPS < 100, 2e-5, 8e-3))
    (found,) = made.loss(np.where(np.arange(200) < 100, 1.6, 0.4)).findings("exploding_gradient")
    assert found.severity == "note"
    (found,) = made.loss(np.where(np.arange(200) < 100, 1.6, 1.7)).findings("exploding_gradient")
    assert found.severity == "warning"


def test_an_overflowing_loss_names_the_step_at_which_it_left_its_level() -> None:
    values = np.concatenate([np.full(60, 1.1), [30.0, 1e6, 1e18], np.full(137, np.nan)])
    (found,) = Made().loss(values).findings("loss_diverging")
    assert found.first_step == 59
    assert "grew from 1.1 to 1e+18 between steps 59 and 62" in found.message


def test_several_labels_for_one_sample_do_not_fit_a_softmax() -> None:
    for loss in ("BinaryCrossentropy", "CategoricalCrossentropy"):
        made = Made(losses=[{"output": "out", "class": loss, "from_logits": False}])
        for share, severity in ((0.45, "error"), (0.2, "note" if loss.startswith("Binary") else None)):
            found = made.put("targets", (32, 5), mean=share, min=0, max=1).findings("output_loss_mismatch")
            assert [one.severity for one in found] == ([severity] if severity else [])


def test_a_layer_that_only_a_lambda_calls_is_never_trained() -> None:
    (found,) = Made(dense_1__class="Lambda", dense_1__untracked=["hidden"]).findings("layer_not_learning")
    assert (found.severity, found.layer) == ("warning", "dense_1")
    assert "calls hidden" in found.message


@pytest.mark.parametrize(("end", "severity"), [(160.0, "warning"), (10.0, "note")])
def test_a_summed_loss_that_falls_is_only_a_note(end: float, severity: str) -> None:
    loss = {
        "output": "out",
        "class": "SparseCategoricalCrossentropy",
        "from_logits": False,
        "reduction": "sum",
    }
    (found,) = Made(losses=[loss]).loss(np.linspace(150, end, 200)).findings("bad_initial_loss")
    assert found.severity == severity
    assert "summed over the batch" in found.message


def test_an_exploding_loss_is_reported_from_the_step_at_which_it_leaves_its_level() -> None:
    grows = 1.3 * np.exp(np.maximum(np.arange(200) - 20, 0) / 20)
    (found,) = Made().loss(grows).findings()
    assert found.rule == "loss_diverging"
    assert [each.rule for each in found.consequences] == ["loss_not_decreasing"]
    assert 20 < found.first_step < 60
    assert "was 1.3 at best" in found.message


def test_units_that_are_zero_only_in_the_last_capture_are_not_dead() -> None:
    last = np.where(np.arange(N) == N - 1, 30, 1)
    assert not Made().put("activity/dense_1", zeros=last).findings("dead_relu")
    assert dying(Made()).findings("dead_relu")


def test_a_warm_up_is_not_a_jump() -> None:
    rising = np.minimum(0.01, 1e-6 * 3.0 ** (STEPS / 5))
    assert list(Made().scalar("learning_rate", STEPS, rising).findings("optimizer_misconfigured")) == []


def test_every_rule_has_a_fault_in_this_file() -> None:
    alone = {"rank_differs"}  # of several processes: test_ranks.py
    assert {fault[0] for fault in FAULTS} | alone == {rule.name for rule in RULES}
    assert len(RULES) == 28


@pytest.mark.parametrize(
    "rule", [rule.name for rule in RULES if rule.name != "rank_differs"]
)  # for it one process is fine
def test_a_rule_gives_the_reason_why_it_cannot_judge_an_empty_run(rule: str) -> None:
    from fitscope.diagnose import Evidence, diagnose

    found = diagnose(Evidence(), rules=[rule])
    assert list(found) == []
    assert [one.rule for one in found.not_judged] == [rule]
    assert "failed" not in found.not_judged[0].reason


def test_growth_over_many_unrecorded_steps_is_not_a_jump() -> None:
    made = Made()
    made.put("weight_gradients/dense_2/kernel", rms=2e-3 * np.geomspace(1, 50, N))
    assert not made.findings("exploding_gradient")


def test_a_small_rise_of_a_tiny_loss_is_not_a_spike() -> None:
    values = 2.3 * np.exp(-np.arange(200) / 10) + 1e-4
    values[180] = 6e-4
    assert not Made().loss(values).findings("loss_spike")


def test_a_rise_after_a_few_steps_of_fast_learning_is_not_a_spike() -> None:
    values = 1.2 * np.exp(-np.arange(400) / 1.5) + 1e-5
    values[104] = 0.04
    assert not Made().loss(values).findings("loss_spike")


@pytest.mark.parametrize(
    "rms",
    [
        np.random.default_rng(0).pareto(1.2, N) + 0.1,
        np.where(STEPS < 150, 1.0, 40.0),
        np.where(np.arange(N) % 5 == 0, 40.0, 1.0),
        np.where(np.arange(N) == 20, 8.0, 1.0),
        np.zeros(N),
    ],
    ids=["a long tail", "other data from a step on", "every fifth batch", "not so much", "nothing but zeros"],
)
def test_batches_are_odd_only_if_single_ones_stand_out(rms: np.ndarray[Any, Any]) -> None:
    assert not Made().put("inputs", rms=rms).findings("odd_batch")


def test_an_odd_batch_names_its_steps_and_its_place_in_the_epoch() -> None:
    made = Made().put("inputs", rms=np.where(STEPS % 50 == 35, 250.0, 1.0))
    (found,) = made.findings("odd_batch")
    assert "one of 4 such batches (steps 35, 85, 135, 185): batch 35 of each epoch." in found.message
    assert (found.first_step, found.last_step) == (35, 185)
    assert "250 times the usual 1" in found.message


def test_an_odd_batch_that_the_loss_shows_is_one_finding() -> None:
    made = spiking(Made()).put("inputs", rms=np.where(STEPS == 120, 4000.0, 1.0))
    (found,) = made.findings()
    assert found.rule == "loss_spike"
    assert "odd_batch" in {each.rule for each in found.consequences}


def test_naturally_sparse_relu_layers_are_not_dead() -> None:
    made = Made().drop("activity/dense_1").put("activations/dense_1", zeros=0.8 * 1024)
    assert not made.findings("dead_relu")


def test_frozen_layers_are_a_note_that_can_be_silenced() -> None:
    from fitscope import expect

    made = Made(dense__trainable=False)
    made.drop(
        *(site for site in list(made.sites) if site.startswith(("weight_gradients/dense/", "updates/dense/")))
    )
    (found,) = made.findings()
    assert (found.rule, found.severity, found.layer) == ("layer_not_learning", "note", "dense")
    silent = made.findings(expect=expect("frozen base", layers="dense"))
    assert list(silent) == []
    assert silent.expected == 1
    assert list(made.findings(expect=expect("frozen base", layers="head*")))


def test_vanishing_does_not_fire_on_nan() -> None:
    made = Made()
    for layer in ("dense", "dense_1", "dense_2"):
        made.put(f"weight_gradients/{layer}/kernel", rms=np.nan, nans=1024)
    assert not made.findings("vanishing_gradient")
