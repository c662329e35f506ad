"""The origin of a NaN or Inf is exact: the layer, forward or backward, and the step, for every kind of layer on every backend.

A layer counts its own steps. At step 7 it adds a NaN or Inf to one sample of its output, or turns the gradient of that sample into
one on its way back, behind the place where the gradient at its output is seen.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from diagnosis.models import OwnStep
from fitscope.sites import Site

STEP, STEPS, BATCH = 7, 12, 8
FORWARD = ("activations", "taps", "predictions", "loss")


def poisoned(kind: type[Any]) -> type[Any]:
    """A layer of this kind whose output, or the gradient on its way into it, goes wrong at one step."""

    class Poisoned(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, poison: float, direction: str, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.poison, self.direction = poison, direction
            self.count = self.add_weight(
                (), "zeros", dtype="float32", trainable=False, autocast=False, name="count"
            )

        @functools.wraps(kind.call)  # Keras reads the signature
        def call(self, *given: Any, **settings: Any) -> Any:
            out = super().call(*given, **settings)
            now = ops.equal(self.count, STEP)
            self.count.assign(ops.add(self.count, 1.0))
            first = ops.equal(ops.arange(ops.shape(out)[0]), 0)
            first = ops.reshape(first, (-1, *(1 for _ in out.shape[1:])))
            spoilt = ops.broadcast_to(ops.logical_and(now, first), ops.shape(out))
            if self.direction == "forward":
                return ops.where(spoilt, self.poison, out)
            return spoil_gradient(out, spoilt, self.poison)

    return Poisoned


def spoil_gradient(x: Any, spoilt: Any, poison: float) -> Any:
    """The identity, whose gradient is `poison` where it is spoilt."""

    @ops.custom_gradient
    def identity(x: Any) -> Any:
        def backward(*given: Any, upstream: Any = None) -> Any:
            upstream = given[-1] if upstream is None else upstream
            return ops.where(spoilt, poison, upstream)

        return x * 1.0, backward

    return identity(x)


class Scale(layers.Layer):
    """A custom layer with a weight of its own."""

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight((shape[-1],), "ones", name="factor")

    def call(self, x: Any) -> Any:
        return ops.tanh(x * self.factor)


#: The guilty layer by kind, with the shape of the inputs.
KINDS: dict[str, tuple[type[Any], tuple[Any, ...], tuple[int, ...]]] = {
    "dense": (layers.Dense, (8,), (6,)),
    "conv": (layers.Conv2D, (4, 3), (6, 6, 2)),
    "conv over time": (layers.Conv1D, (4, 3), (6, 2)),
    "separable conv": (layers.SeparableConv2D, (4, 3), (6, 6, 2)),
    "lstm": (layers.LSTM, (6,), (5, 3)),
    "gru": (layers.GRU, (6,), (5, 3)),
    "attention": (layers.MultiHeadAttention, (2, 4), (5, 4)),
    "layer norm": (layers.LayerNormalization, (), (6,)),
    "batch norm": (layers.BatchNormalization, (), (6,)),
    "group norm": (layers.GroupNormalization, (2,), (6,)),
    "embedding": (layers.Embedding, (10, 4), (5,)),
    "in a branch": (layers.Dense, (6,), (6,)),
    "in a nested model": (layers.Dense, (8,), (6,)),
    "custom": (Scale, (), (6,)),
    "transposed conv": (layers.Conv2DTranspose, (4, 3), (6, 6, 2)),
    "simple rnn": (layers.SimpleRNN, (6,), (5, 3)),
    "dot attention": (layers.Attention, (), (5, 4)),
    "two models deep": (layers.Dense, (8,), (6,)),
    "in a custom step": (layers.Dense, (8,), (6,)),
    "run eagerly": (layers.Dense, (8,), (6,)),
    "mixed_bfloat16": (layers.Dense, (8,), (6,)),
    "mixed_float16": (layers.Conv1D, (4, 3), (6, 2)),
}
PATHS = {"in a nested model": "inner/guilty", "two models deep": "outer/inner/guilty"}


def model_of(kind: str, **settings: Any) -> Any:
    make, given, shape = KINDS[kind]
    guilty = poisoned(make)(*given, name="guilty", **settings)
    inputs = layers.Input(shape, dtype="int32" if kind == "embedding" else "float32")
    x = inputs if kind == "embedding" else layers.Dense(6, "tanh", name="before")(inputs)
    if kind == "attention":
        x = guilty(x, x)
    elif kind == "dot attention":
        x = guilty([x, x])
    elif kind == "in a branch":
        x = layers.Add(name="add")([layers.Dense(6, "tanh", name="other")(x), guilty(x)])
    elif kind == "in a nested model":
        x = keras.Sequential([layers.Input((6,)), guilty, layers.Dense(4, name="inside")], name="inner")(x)
    elif kind == "two models deep":
        inner = keras.Sequential([layers.Input((6,)), guilty, layers.Dense(4, name="inside")], name="inner")
        x = keras.Sequential([layers.Input((6,)), inner, layers.Dense(6, name="beside")], name="outer")(x)
    else:
        x = guilty(x)
    x = layers.Dense(5, "tanh", name="after")(x)
    x = layers.Flatten(name="flatten")(x) if x.ndim > 2 else x
    made = OwnStep if kind == "in a custom step" else keras.Model
    return made(inputs, layers.Dense(3, "softmax", name="head", dtype="float32")(x))


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """The types of new layers."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


CASES = [
    (kind, direction, poison)
    for i, kind in enumerate(KINDS)
    for j, direction in enumerate(("forward", "backward"))
    for poison in ("nan" if (i + j) % 2 else "inf",)
]


@pytest.mark.parametrize(("kind", "direction", "poison"), CASES)
def test_the_origin_names_the_layer_the_direction_and_the_step(
    kind: str, direction: str, poison: str, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(1)
    with policy(kind if kind.startswith("mixed") else "float32"):
        model = model_of(kind, poison=float(poison), direction=direction)
    # Without loss scaling, which would skip the step and go on.
    eager = {"run_eagerly": True} if kind == "run eagerly" else {}
    model.compile(
        keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", auto_scale_loss=False, **eager
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * STEPS, *model.input_shape[1:]))
    x = rng.integers(0, 10, x.shape) if kind == "embedding" else x.astype("float32")
    model.fit(
        x, rng.integers(0, 3, len(x)), batch_size=BATCH, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)]
    )

    found = fs.open(tmp_path).findings()[0]

    seen = "forward" if Site.parse(found.site).base in FORWARD else "backward"
    guilty = PATHS.get(kind, "guilty")
    assert (found.rule, found.layer, seen, found.first_step) == ("nonfinite", guilty, direction, STEP)
    assert found.severity == "error"
