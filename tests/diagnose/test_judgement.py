"""Where a rule must look twice: several outputs, trained models, bad starts, losses below zero, data without a number in it."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from diagnose.made import LAYERS, STEPS, Made
from diagnose.test_rules import dying, flat
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


def test_no_rule_warns_about_data_without_a_number() -> None:
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
