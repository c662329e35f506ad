"""Where a rule must look twice: several outputs, trained models, bad starts, losses below zero, data without a number in it."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from diagnose.made import LAYERS, STEPS, Made
from diagnose.test_rules import PRICES, dying, flat, prices
from fitscope.diagnose import diagnose
from fitscope.diagnose.network import Network

N = len(STEPS)
TWO = [
    {"layer": "amount", "name": "amount", "activation": "linear", "shape": [None, 1]},
    {"layer": "out", "name": "out", "activation": "softmax", "shape": [None, 5]},
]
LOSSES = [
    {"output": "out", "class": "SparseCategoricalCrossentropy", "from_logits": False},
    {"output": "amount", "class": "MeanSquaredError"},
]


def test_losses_are_matched_to_outputs_by_name() -> None:
    assert not Made(outputs=TWO, losses=LOSSES).findings("output_loss_mismatch")
    wrong = [{**LOSSES[0], "from_logits": True}, LOSSES[1]]
    (found,) = Made(outputs=TWO, losses=wrong).findings("output_loss_mismatch")
    assert found.layer == "out"


def test_losses_of_unknown_outputs_are_not_judged() -> None:
    losses = [{**loss, "output": f"another {i}"} for i, loss in enumerate(LOSSES)]
    found = Made(outputs=TWO, losses=losses).findings("output_loss_mismatch")
    assert list(found) == []
    assert len(found.not_judged) == 1


@pytest.mark.parametrize(("height", "severity"), [(0.8, "note"), (8.0, "warning")])
def test_a_spike_of_a_trained_model_is_measured_by_the_loss_of_guessing(height: float, severity: str) -> None:
    values = 0.02 + 0.002 * np.random.default_rng(0).standard_normal(200)
    values[150] = height
    (found,) = Made().loss(values).findings("loss_spike")
    assert found.severity == severity


def test_a_batch_with_a_rare_class_is_not_odd() -> None:
    values = Made().sites["loss"]["value"].copy()
    values[120] = 4.0
    made = Made().loss(values).put("targets", max=np.where(STEPS == 120, 4, 0), min=0, mean=0.01, std=0.02)
    (found,) = made.findings("loss_spike")
    assert found.evidence["odd"] == ""


def test_values_at_both_ends_of_a_tanh_are_saturated_though_no_unit_is_stuck() -> None:
    made = Made(dense_1__activation="tanh").put("activity/dense_1", zeros=0, mean=0.04)
    (found,) = made.findings("saturated")
    assert (found.layer, found.first_step) == ("dense_1", 0)
    assert (
        not Made(dense_1__activation="tanh").put("activity/dense_1", zeros=0, mean=0.4).findings("saturated")
    )


@pytest.mark.parametrize(("size", "layers"), [(2.0, []), (9.0, ["attn"])])
def test_attention_is_saturated_when_queries_and_keys_are_large(size: float, layers: list[str]) -> None:
    made = Made()
    for name in ("query", "key"):
        made.put(f"activations/attn/{name}", (32, 10, 2, 8), rms=made.near(size))
    assert [one.layer for one in made.findings("saturated")] == layers


def test_a_cross_entropy_that_falls_below_zero_diverges() -> None:
    made = Made().loss(1.6 - 0.2 * np.arange(200))
    (found,) = made.findings("loss_diverging")
    assert "never negative" in found.message
    assert 5 <= found.first_step <= 15
    made.put("weights/dense_1/kernel", rms=0.2 * np.linspace(1, 6, N))
    (grown,) = made.findings("exploding_weights")
    assert grown.layer == "dense_1"


def test_a_custom_loss_may_be_negative() -> None:
    losses = [{"output": "out", "class": "Dice"}]
    assert not Made(losses=losses).loss(-0.3 - 0.6 * np.arange(200) / 200).findings("loss_diverging")


def test_a_divergence_begins_where_the_loss_leaves_its_best_level() -> None:
    values = np.concatenate([np.linspace(1.6, 0.3, 120), np.linspace(0.3, 9.0, 80)])
    (found,) = Made().loss(values).findings("loss_diverging")
    assert 118 <= found.first_step <= 128


def test_large_initial_weights_are_the_cause_of_later_findings() -> None:
    made = Made()
    for i, layer in enumerate(LAYERS):
        made.put(f"activations/{layer}", rms=np.where(STEPS == 0, 0.5 * 8.0**i, 0.1))
    dying(made).loss(np.concatenate([[480.0], flat]))
    found = made.findings()
    assert found[0].rule == "bad_initial_loss"
    assert "from dense to out" in found[0].message
    assert "dead_relu" in {one.rule for one in found[0].consequences}


def test_weights_that_start_at_zero_come_before_the_layers_they_starve() -> None:
    made = Made(dense__activation="tanh", dense_2__activation="tanh")
    made.put("weights/dense_2/kernel", rms=0.0)
    for layer in ("dense", "dense_2"):
        made.put(f"weight_gradients/{layer}/kernel", rms=0.0).put(f"weight_gradients/{layer}/bias", rms=0.0)
    (found,) = made.findings("layer_not_learning")
    assert (found.layer, found.evidence["initializer"]) == ("dense_2", "Zeros")
    assert [one.layer for one in found.consequences] == ["dense"]


def test_a_note_explains_a_warning_about_the_same_layer() -> None:
    made = Made(dense_1__class="Softmax", dense_1__axis=1)
    made.shapes["activations/dense_1"] = (32, 6, 6)
    alone = made.findings()
    assert [(one.rule, one.severity) for one in alone] == [("wrong_axis", "note")]
    made.put("weight_gradients/dense_1/kernel", rms=made.near(1e-12)).put(
        "updates/dense_1/kernel", rms=made.near(1e-13)
    )
    (found,) = made.findings()
    assert (found.rule, found.severity, found.layer) == ("wrong_axis", "warning", "dense_1")


def test_a_layer_that_was_about_to_overflow_is_named_though_the_step_was_not_recorded() -> None:
    made = Made()
    made.put("activations/dense_1", max=np.where(STEPS >= 140, 1e20, 2.0), min=0.0)
    values = made.sites["loss"]["value"].copy()
    values[152:] = math.nan
    found = made.loss(values).findings("nonfinite")[0]
    assert (found.layer, found.first_step) == ("dense_1", 152)
    assert "step 150" in found.message


def test_mislabelled_samples_show_without_a_loss_per_sample() -> None:
    made = Made().put("classes/log_loss", shape=(32,), mean=0.3, std=1.2, max=5.0)
    (found,) = made.findings("label_problem")
    assert 0.04 < found.evidence["share"] < 0.08
    assert made.put("classes/targets", max=0.97).findings("label_problem")[0].severity != "warning"


def test_no_rule_emits_a_warning_about_data_that_is_all_nan() -> None:
    made = Made()
    for stats in made.sites.values():
        for name in {"mean", "std", "min", "max", "rms"} & set(stats):
            stats[name] = np.full(len(stats["steps"]), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = made.findings()
    assert [one.rule for one in found.not_judged if "failed" in one.reason] == []


@pytest.mark.parametrize(("shape", "severity"), [((32,), "warning"), ((32, 1), "warning"), ((32, 9), "note")])
def test_a_class_that_never_occurs_may_be_padding_in_a_sequence(
    shape: tuple[int, ...], severity: str
) -> None:
    (found,) = Made().put("targets", shape, min=1, max=4).findings("label_problem")
    assert found.severity == severity


@pytest.mark.parametrize(("kind", "count"), [("Dense", 1), ("Normalization", 0)])
def test_statistics_of_data_are_not_meant_to_learn(kind: str, count: int) -> None:
    made = Made(dense__class=kind)
    for weight in ("kernel", "bias"):
        made.drop(f"weight_gradients/dense/{weight}").put(f"updates/dense/{weight}", rms=0, max=0, min=0)
    assert len([one for one in made.findings("layer_not_learning") if one.layer == "dense"]) == count


def test_data_flows_through_nested_models() -> None:
    edges = {
        "before": [], "outer": ["before"], "outer/first": [], "outer/inner": ["outer/first"], "outer/inner/a": [],
        "outer/inner/b": ["outer/inner/a"], "after": ["outer"],
    }  # fmt: skip
    network = Network({"layers": [{"path": path, "from": sources} for path, sources in edges.items()]})
    leaves = ["before", "outer/first", "outer/inner/a", "outer/inner/b", "after"]
    assert [name for name in network.order if name in leaves] == leaves
    for layer, source in zip(leaves[1:], leaves, strict=False):
        assert network.producers(layer, leaves) == [source]
        assert network.consumers(source, leaves) == [layer]


@pytest.mark.parametrize(("mean", "end"), [(40_000.0, 2e7), (9_000.0, 1.6e8)])
def test_targets_away_from_zero_are_no_fault_if_the_training_gets_there_or_they_are_near(
    mean: float, end: float
) -> None:
    values = np.linspace(mean**2 + 9000.0**2, end, 200)
    values[-30:] = end
    assert not prices(Made(**PRICES), mean).loss(values).findings("bad_initial_loss")


def test_a_tanh_that_becomes_sure_is_not_saturated_though_one_that_begins_so_is() -> None:
    """A seventh of the values has a slope left at the end; at the start half of them had."""
    learned = Made(dense_1__activation="tanh")
    learned.put("activity/dense_1", zeros=0, mean=np.linspace(0.6, 0.14, N))
    assert not learned.findings("saturated")


@pytest.mark.parametrize(
    ("often", "found"), [(0.0, ["class_collapse"]), (0.006, ["class_collapse"]), (0.04, [])]
)
def test_rare_classes_have_collapsed_if_they_are_named_far_more_seldom_than_they_occur(
    often: float, found: list[str]
) -> None:
    """One of 20 samples is of another class; so often one of them is predicted."""
    made = Made().put("classes/targets", max=0.95)
    named = np.where(np.arange(N) % 4 == 0, 4 * often, 0.0)
    made.put("classes/predictions", max=1 - named)
    assert [one.rule for one in made.findings("class_collapse")] == found


@pytest.mark.parametrize(("rate", "found"), [(0.5, []), (0.75, ["note"]), (0.9, ["warning"])])
def test_dropout_inside_a_recurrent_layer_is_judged_like_a_dropout_layer(
    rate: float, found: list[str]
) -> None:
    made = Made(dense_1__class="LSTM", dense_1__dropout=0.0, dense_1__recurrent_dropout=rate)
    assert [one.severity for one in made.findings("dropout_too_high")] == found


@pytest.mark.parametrize("axis", [1, -2, 0, 2, -1])
def test_a_hidden_softmax_over_one_entry_is_always_one(axis: int) -> None:
    made = Made(dense_1__class="Softmax", dense_1__axis=axis)
    found = made.put("activations/dense_1", (32, 10, 1)).findings("wrong_axis")
    always = [one for one in found if "always 1" in one.message]
    assert len(always) == (axis in (2, -1))


def test_a_softmax_over_one_entry_is_why_the_scores_before_it_do_not_learn() -> None:
    made = Made(dense_1__class="Softmax", dense_1__axis=-1).put("activations/dense_1", (32, 10, 1))
    for weight in ("kernel", "bias"):
        made.put(f"weight_gradients/dense/{weight}", rms=0.0)
    (found,) = made.findings("wrong_axis", "layer_not_learning")
    assert found.rule == "wrong_axis"
    assert [(one.rule, one.layer) for one in found.consequences] == [("layer_not_learning", "dense")]


def test_tiny_inputs_that_are_learned_all_the_same_are_a_note() -> None:
    (found,) = Made().put("inputs", rms=0.002, max=0.004, min=0.0).findings("input_not_normalised")
    assert found.severity == "note"


@pytest.mark.parametrize(("end", "severity"), [(0.1, "note"), (1.5, "warning")])
def test_a_large_learning_rate_is_only_a_note_if_the_loss_falls(end: float, severity: str) -> None:
    made = Made(optimizer={"class": "SGD", "learning_rate": 2000.0, "epsilon": None})
    made.loss(np.linspace(1.6, end, 200))
    (found,) = made.findings("optimizer_misconfigured")
    assert found.severity == severity


def test_an_absolute_error_above_the_spread_of_the_targets_has_learned_nothing() -> None:
    made = Made(**{**PRICES, "losses": [{"output": "out", "class": "MeanAbsoluteError"}]})
    made.put("targets", (32, 1), mean=made.near(1.0), std=1.0, min=-2, max=4, rms=1.4)
    (found,) = made.loss(np.linspace(1.10, 1.05, 200)).findings("loss_not_decreasing")
    assert "mean of the targets" in found.message
    assert not made.loss(np.linspace(1.10, 0.6, 200)).findings("loss_not_decreasing")


def test_a_gradient_that_grows_across_one_layer_blames_that_layer() -> None:
    """What is large at the output of `dense_1` was made by `dense_2`."""
    made = Made()
    for layer, size in (("dense", 120.0), ("dense_1", 80.0), ("dense_2", 2e-3)):
        made.put(f"gradients/{layer}", rms=made.near(size))
    (found,) = made.findings("exploding_gradient")
    assert found.layer == "dense_2"


@pytest.mark.parametrize(
    ("kind", "axis", "named"),
    [
        ("LayerNormalization", 1, True),
        ("LayerNormalization", [1, 2], False),
        ("GroupNormalization", -1, False),
    ],
)
def test_a_norm_over_positions_is_along_the_wrong_axis(kind: str, axis: object, named: bool) -> None:
    made = Made(dense_1__class=kind, dense_1__axis=axis).put("activations/dense_1", (32, 10, 8))
    assert [one.layer for one in made.findings("wrong_axis")] == (["dense_1"] if named else [])


@pytest.mark.parametrize(
    ("before", "named"), [("channels_last", ["dense_2"]), ("channels_first", []), (None, [])]
)
def test_channels_that_change_places_between_layers_are_named(before: str | None, named: list[str]) -> None:
    made = Made(dense__data_format=before, dense_2__data_format="channels_first")
    assert [one.layer for one in made.findings("wrong_axis")] == named


def test_channels_that_a_permute_moves_are_where_they_belong() -> None:
    made = Made(
        dense__data_format="channels_last", dense_1__class="Permute", dense_2__data_format="channels_first"
    )
    assert not made.findings("wrong_axis")


@pytest.mark.parametrize(
    ("rms", "named"), [([0.31, 0.31], ["dense_1"]), ([0.12, 0.31], []), ([0.31, 0.12], [])]
)
def test_a_hidden_softmax_is_saturated_if_it_picks_one_entry_from_the_start(
    rms: list[float], named: list[str]
) -> None:
    """Of ten entries; uniform ones have an rms of 0.1, and a single 1 has 0.316."""
    made = Made(dense_1__class="Softmax", dense_1__activation="softmax", dense_1__axis=-1).drop(
        "activity/dense_1"
    )
    made.put("activations/dense_1", (32, 10), rms=np.linspace(*rms, N), mean=0.1)
    assert [one.layer for one in made.findings("saturated")] == named


@pytest.mark.parametrize(
    ("after", "named"), [(10.0, ["updates_too_large"]), (0.9, ["updates_too_large"]), (0.5, [])]
)
def test_a_few_steps_that_replace_the_weights_count_if_the_loss_never_comes_back(
    after: float, named: list[str]
) -> None:
    made = Made().put("updates/dense/kernel", rms=np.where((STEPS >= 60) & (STEPS < 70), 2.0, 1e-6))
    values = np.where(np.arange(200) > 60, after, 1.0) * (1 + 0.05 * made.random.standard_normal(200))
    found = made.loss(values).findings("updates_too_large")
    assert [one.rule for one in found] == named
    assert all(one.first_step == 60 for one in found)


@pytest.mark.parametrize(("end", "severity"), [(10.0, "warning"), (1.4, "note")])
def test_a_high_rate_of_adam_is_a_warning_if_the_loss_rose(end: float, severity: str) -> None:
    made = Made(optimizer={"learning_rate": 0.2}).loss(np.r_[1.6, np.full(199, end)])
    (found,) = made.findings("optimizer_misconfigured")
    assert found.severity == severity


@pytest.mark.parametrize(("learns", "severity"), [(True, "note"), (False, "warning")])
def test_frozen_layers_are_a_warning_if_the_others_learn_nothing(learns: bool, severity: str) -> None:
    made = Made(dense__trainable=False, dense_1__trainable=False)
    found = (made if learns else made.loss(flat)).findings("layer_not_learning", "loss_not_decreasing")
    assert [(one.rule, one.severity) for one in found] == [("layer_not_learning", severity)]


@pytest.mark.parametrize(("highs", "found"), [((5.0, 0.2), True), ((5.0, 1.9), False)])
def test_losses_of_every_size_are_those_of_a_net_that_still_learns(
    highs: tuple[float, float], found: bool
) -> None:
    """Every second batch has a sample with a high loss; the others have none, or some of middling size."""
    odd = np.arange(N) % 2 == 0
    made = Made().put(
        "sample_loss",
        (32,),
        mean=np.where(odd, 0.4, 0.1),
        std=np.where(odd, 1.2, 0.1),
        max=np.where(odd, *highs),
    )
    assert bool(made.findings("label_problem")) == found


def test_frozen_layers_are_a_warning_if_the_loss_falls_to_that_of_guessing() -> None:
    values = np.r_[np.linspace(2.4, 1.61, 40), np.full(160, 1.609)] * (
        1 + 0.001 * np.random.default_rng(2).standard_normal(200)
    )
    found = Made(dense__trainable=False).loss(values).findings("layer_not_learning", "loss_not_decreasing")
    (only,) = found
    assert (only.rule, only.severity) == ("layer_not_learning", "warning")


def test_a_large_step_of_weights_that_began_near_zero_ruins_nothing() -> None:
    made = Made().put("updates/dense/kernel", rms=np.where(STEPS < 10, 2.0, 1e-6)).loss(flat)
    made.put("weights/dense/kernel", rms=np.where(STEPS < 10, 1e-4, 2.0))
    assert not made.findings("updates_too_large")


def test_batches_without_a_wrong_label_tell_whether_the_others_are_learned() -> None:
    """A quarter of the batches is calm; in the others, of which half are not torn enough, the mean says little."""
    kind = np.arange(N) % 4
    made = Made().put(
        "sample_loss",
        (16,),
        mean=np.choose(kind, [0.07, 0.35, 0.75, 0.75]),
        std=np.choose(kind, [0.03, 0.95, 1.2, 1.2]),
        max=np.choose(kind, [0.15, 3.2, 3.2, 3.2]),
    )
    (found,) = made.findings("label_problem")
    assert found.evidence["others"] < 0.1


@pytest.mark.parametrize("level", [0.05, 0.69])
def test_frozen_layers_are_a_note_where_a_flat_loss_means_nothing(level: float) -> None:
    """A model that was trained before begins far below guessing; a GAN has targets of one class."""
    values = level * (1 + 0.02 * np.random.default_rng(3).standard_normal(200))
    made = Made(
        dense__trainable=False,
        outputs=[{"layer": "out", "name": "out", "activation": "sigmoid", "shape": [None, 1]}],
    )
    made = (
        made.put("targets", (32, 1), min=1, max=1, mean=1, std=0, rms=1)
        if level > 0.1
        else Made(dense__trainable=False)
    )
    (found,) = made.loss(values).findings("layer_not_learning")
    assert found.severity == "note"


def test_only_a_gradient_that_was_recorded_arrives() -> None:
    """No gradient was recorded for an output that the loss does not use. So the optimizer is not to blame alone."""
    for seen, said in ((True, "The gradient arrives"), (False, "Either the loss does not depend on dense_1")):
        made = Made()
        for weight in ("kernel", "bias"):
            made.put(f"updates/dense_1/{weight}", rms=0.0)
            if not seen:
                made.drop(f"weight_gradients/dense_1/{weight}")
        (found,) = made.findings("layer_not_learning")
        assert found.cure is not None
        assert found.cure.startswith(said)


def test_a_part_of_the_classes_is_not_their_sum() -> None:
    """A process of a model-parallel training holds some classes of every output."""
    evidence = Made().put("activations/out", mean=1 / 3).evidence()
    (found,) = diagnose(evidence, rules=["wrong_axis"])
    assert "instead of 1" in found.message
    evidence.shards = True
    found = diagnose(evidence, rules=["wrong_axis"])
    assert list(found) == []
    assert [each.rule for each in found.not_judged] == ["wrong_axis"]
