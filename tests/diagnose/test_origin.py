"""Where a NaN or Inf was born: forward, in the loss, backward, in the optimizer, or in the data."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.made import LAYERS, Made
from fitscope.diagnose import Finding, diagnose


def origin(made: Made) -> Finding:
    (found,) = made.findings("nonfinite")
    return found


def after(made: Made, step: int, *sites: str, **counts: int) -> Made:
    for site in sites:
        made.broken(site, step, **(counts or {"nans": 1}))
    return made


ALL_WEIGHT_GRADIENTS = [f"weight_gradients/{layer}/kernel" for layer in LAYERS]


def test_the_first_layer_in_the_forward_pass_is_the_origin() -> None:
    made = after(
        Made(), 50, "activations/dense_1", "activations/dense_2", "activations/out", *ALL_WEIGHT_GRADIENTS
    )
    found = origin(after(made, 50, *(f"gradients/{layer}" for layer in LAYERS)))
    assert (found.layer, found.site, found.first_step) == ("dense_1", "activations/dense_1", 50)
    assert "forward pass of dense_1" in found.message
    assert found.evidence["last_healthy_step"] == 45


def test_an_inf_that_becomes_nan_is_the_cause() -> None:
    made = after(Made(), 50, "activations/dense", infs=2)
    found = origin(after(made, 50, "activations/dense_1", "activations/dense_2", "activations/out"))
    assert found.layer == "dense"
    assert "first Inf" in found.message


@pytest.mark.parametrize("layer", ["dense_1", "dense_2", "out"])
def test_a_gradient_at_an_output_was_made_by_the_layer_that_consumes_it(layer: str) -> None:
    before = LAYERS[: LAYERS.index(layer)]
    made = after(Made(), 50, f"weight_gradients/{layer}/kernel", infs=1)
    made = after(
        made,
        50,
        *(f"gradients/{each}" for each in before),
        *(f"weight_gradients/{each}/kernel" for each in before),
    )
    found = origin(made)
    assert found.layer == layer
    assert f"backward pass of {layer}" in found.message


def test_a_layer_without_weights_can_break_the_backward_pass() -> None:
    made = Made(dense_1__parameters=0)
    made.drop(
        *(
            f"{kind}/dense_1/{w}"
            for kind in ("weights", "weight_gradients", "updates")
            for w in ("kernel", "bias")
        )
    )
    found = origin(after(made, 50, "gradients/dense", "weight_gradients/dense/kernel"))
    assert found.layer == "dense_1"


def test_a_gradient_broken_at_the_last_layer_comes_from_the_loss() -> None:
    made = after(Made(), 50, *(f"gradients/{layer}" for layer in LAYERS), *ALL_WEIGHT_GRADIENTS)
    found = origin(made)
    assert "gradient of the loss" in found.message
    assert found.layer == "out"


def test_a_loss_that_breaks_with_finite_predictions_is_the_origin() -> None:
    made = Made()
    losses = made.sites["loss"]["value"].copy()
    losses[50:] = float("nan")
    found = origin(after(made.loss(losses), 50, *(f"gradients/{layer}" for layer in LAYERS)))
    assert found.site == "loss"
    assert found.layer == "out"


@pytest.mark.parametrize("kind", ["inputs", "targets"])
def test_nan_in_the_data_is_found_there(kind: str) -> None:
    made = after(
        Made(), 50, kind, "activations/dense", "activations/dense_1", "activations/dense_2", "activations/out"
    )
    found = origin(made)
    assert found.site == kind
    assert found.layer is None
    assert "the data" in found.message


def test_an_update_that_breaks_with_finite_gradients_comes_from_the_optimizer() -> None:
    found = origin(after(Made(), 50, "updates/dense_1/kernel"))
    assert "optimizer" in found.message
    assert found.layer == "dense_1"


def test_overflows_that_loss_scaling_skips_are_ignored() -> None:
    made = after(Made(optimizer={"loss_scale": 32768.0}), 0, *ALL_WEIGHT_GRADIENTS, infs=1)
    assert not made.findings("nonfinite")


def test_an_inf_that_never_reaches_the_loss_is_a_note() -> None:
    assert origin(after(Made(), 0, "activations/dense_1", infs=9)).severity == "note"


def test_weights_broken_in_an_unrecorded_step_are_reported_as_such() -> None:
    made = after(
        Made(),
        50,
        *(f"weights/{layer}/kernel" for layer in LAYERS),
        *(f"activations/{layer}" for layer in LAYERS),
    )
    found = origin(made)
    assert "not recorded" in found.message
    assert found.layer is None
    assert found.confidence < 0.5


def test_two_branches_blame_the_broken_one() -> None:
    made = Made(dense_2__inbound=["dense"], out__inbound=["dense_1", "dense_2"])
    found = origin(after(made, 50, "activations/dense_2", "activations/out"))
    assert found.layer == "dense_2"


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        (
            {"step": 50, "samples": [4], "number": 1, "of": 32},
            "not finite, in sample 4 of the batch (the first is 0).",
        ),
        ({"step": 50, "samples": [1, 2], "number": 9, "of": 32}, "in samples 1, 2 and 7 more of the batch"),
        ({"step": 50, "samples": [0, 1], "number": 32, "of": 32}, "in all 32 samples of the batch"),
        ({"step": 45, "samples": [4], "number": 1, "of": 32}, "are not finite. "),
    ],
)
def test_bad_samples_are_named_at_their_step_only(placed: dict[str, Any], words: str) -> None:
    evidence = after(Made(), 50, "inputs").evidence()
    evidence.bad_samples = {"inputs": placed}
    (found,) = diagnose(evidence, rules=["nonfinite"])
    assert words in found.message
    assert found.evidence.get("samples") == (placed["samples"] if placed["step"] == 50 else None)
