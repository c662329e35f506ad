"""`fs.lint`: what a compiled model tells before its first step."""

from __future__ import annotations

from typing import Any

import pytest

import fitscope as fs

keras = pytest.importorskip("keras")
layers = keras.layers


def classifier(
    last: Any = None, loss: Any = "sparse_categorical_crossentropy", optimizer: Any = "adam", *hidden: Any
) -> Any:
    model = keras.Sequential([keras.Input((8,)), *(hidden or (layers.Dense(16, "relu", name="hidden"),))])
    model.add(last or layers.Dense(5, "softmax", name="out"))
    model.compile(optimizer, loss)
    return model


def loss(from_logits: bool) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)


def dense(units: int, activation: str | None) -> Any:
    return layers.Dense(units, activation, name="out")


FAULTS = {
    "softmax twice": (lambda: classifier(loss=loss(True)), "output_loss_mismatch", "out"),
    "no softmax": (lambda: classifier(dense(5, None)), "output_loss_mismatch", "out"),
    "one unit for classes": (lambda: classifier(dense(1, "sigmoid")), "output_loss_mismatch", "out"),
    "softmax over one unit": (lambda: classifier(dense(1, "softmax"), "binary_crossentropy"), "output_loss_mismatch", "out"),
    "relu before the loss": (lambda: classifier(dense(5, "relu")), "output_loss_mismatch", "out"),
    "no sigmoid": (lambda: classifier(dense(1, None), "binary_crossentropy"), "output_loss_mismatch", "out"),
    "clipped to nothing": (lambda: classifier(optimizer=keras.optimizers.SGD(0.1, clipnorm=1e-6)), "clipped_gradient", None),
    "epsilon of 10": (lambda: classifier(optimizer=keras.optimizers.Adam(epsilon=10.0)), "optimizer_misconfigured", None),
    "learning rate 0": (lambda: classifier(optimizer=keras.optimizers.Adam(0.0)), "optimizer_misconfigured", None),
    "zero initializer": (
        lambda: classifier(None, loss(False), "adam", layers.Dense(16, "relu", kernel_initializer="zeros", name="hidden")),
        "layer_not_learning",
        "hidden",
    ),
    "dropout 0.95": (
        lambda: classifier(None, loss(False), "adam", layers.Dense(16, "relu"), layers.Dropout(0.95, name="drop")),
        "dropout_too_high",
        "drop",
    ),
    "softmax over the batch": (
        lambda: classifier(layers.Softmax(axis=0, name="out"), loss(False), "adam", layers.Dense(5)),
        "wrong_axis",
        "out",
    ),
}  # fmt: skip


@pytest.mark.per_backend
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_configuration_is_found_before_the_first_step(fault: str) -> None:
    build, rule, layer = FAULTS[fault]
    (found,) = fs.lint(build())
    assert (found.rule, found.layer) == (rule, layer)
    assert found.severity in ("error", "warning")
    assert found.first_step == 0


@pytest.mark.per_backend
@pytest.mark.parametrize(
    "model",
    [
        lambda: classifier(),
        lambda: classifier(dense(5, None), loss(True)),
        lambda: classifier(dense(1, "sigmoid"), "binary_crossentropy"),
        lambda: classifier(dense(1, None), "mse", keras.optimizers.SGD(0.1, clipnorm=1.0)),
        lambda: classifier(dense(5, "sigmoid"), "binary_crossentropy"),
    ],
    ids=["softmax", "logits", "binary", "regression", "multi-label"],
)
def test_a_model_that_is_set_up_well_has_no_findings(model: Any) -> None:
    found = fs.lint(model())
    assert list(found) == []
    assert "could not be judged" in found.summary


def test_a_frozen_base_is_a_note_and_can_be_expected() -> None:
    base = layers.Dense(16, "relu", name="base")
    model = classifier(None, loss(False), "adam", base)
    base.trainable = False
    (found,) = fs.lint(model)
    assert (found.rule, found.severity) == ("layer_not_learning", "note")
    assert not fs.lint(model, expect=fs.expect("frozen base", layers="base*"))


def test_lint_refuses_objects_that_are_not_models() -> None:
    with pytest.raises(fs.ModelError, match="a Keras model"):
        fs.lint("model")
