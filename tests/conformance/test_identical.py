"""Watching changes nothing: weights, optimizer state and history with a scope minus without are exactly zero.

The models are chosen to give a compiler something to fuse: batch norm behind convolutions, residual sums, layer norm, attention,
dropout, loops. An extra output of a program is enough to change how XLA and TensorFlow fuse, and so how they round;
the first version of these tests found just that.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import captured
from fitscope.plan import sampling
from watching import EACH_MODE

BACKEND = keras.backend.backend()


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3, activation="softmax"),
        ]
    )


def resnet() -> keras.Model:
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    for _ in range(2):
        skip = x
        x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(layers.Add()([x, skip]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def transformer() -> keras.Model:
    inputs = layers.Input((8, 8, 1))
    x = layers.Dense(16)(layers.Reshape((8, 8))(inputs))
    for _ in range(2):
        x = layers.Add()([x, layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x)])
        x = layers.LayerNormalization()(x)
        mlp = layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(mlp)]))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def fused() -> keras.Model:
    """Everything that TensorFlow fuses when nobody looks: product, bias and activation, and sums of sums."""
    inputs = layers.Input((8, 8, 1))
    x = layers.ReLU()(layers.Conv2D(8, 3, padding="same")(inputs))
    x = layers.Activation("elu")(layers.Conv2D(8, 3, padding="same")(x))
    a, b = layers.Activation("tanh")(x), layers.BatchNormalization()(x)
    x = layers.Add()([layers.Add()([a, b]), layers.Multiply()([x, b])])
    x = layers.Dense(16)(layers.Flatten()(x))
    for activation in ("gelu", "tanh", "sigmoid"):
        x = layers.Add()([x, layers.Dense(16)(layers.Activation(activation)(x))])
        x = layers.Dense(16)(layers.Activation(activation)(layers.Dense(16)(x)))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def recurrent() -> keras.Model:
    inputs = layers.Input((8, 8, 1))
    x = layers.LSTM(8, return_sequences=True)(layers.Reshape((8, 8))(inputs))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GRU(8, dropout=0.2)(x)))


def everything(keep: str) -> list:
    kept = [
        kind(keep=keep)
        for kind in (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates)
    ]
    return [*kept, fs.loss(), fs.metrics(), fs.inputs(keep=keep), fs.targets(), fs.predictions()]


def train(build, mode: dict[str, bool], scope: fs.Scope | None) -> list[np.ndarray]:
    """All that 21 steps leave behind."""
    keras.utils.set_random_seed(1)
    model = build()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **mode)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(52, 8, 8, 1)).astype("float32"), rng.integers(0, 3, 52)
    history = model.fit(
        x, y, batch_size=8, epochs=3, validation_split=0.0, verbose=0, callbacks=[scope] if scope else []
    ).history
    state = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
    return [*state, np.array(history["loss"]), np.array(history["accuracy"])]


#: What is kept, how often, and from how many numbers on a tensor is a large one: at 64, nearly every one is.
WAYS = {
    "sampled": ("stats", 2, 64),
    "stats": ("stats", 1, sampling.ENOUGH),
    "whole": ("both", 3, sampling.ENOUGH),
}
#: Every model in one way, and the one with everything that TensorFlow fuses in all of them.
PAIRS = [
    (cnn, "stats"), (resnet, "sampled"), (transformer, "whole"), (recurrent, "stats"),
    (fused, "sampled"), (fused, "stats"), (fused, "whole"),
]  # fmt: skip
#: XLA takes half a minute for each of the others there.
ON_XLA_OF_TENSORFLOW = [(cnn, "stats"), (transformer, "whole"), (fused, "sampled")]


@EACH_MODE
@pytest.mark.parametrize(("build", "way"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_training_is_bit_identical(build, way, mode, tmp_path, monkeypatch):
    if mode.get("run_eagerly") and build is not cnn:
        pytest.skip("eager steps share nothing that a larger model would add")
    if BACKEND == "tensorflow" and mode.get("jit_compile") and (build, way) not in ON_XLA_OF_TENSORFLOW:
        pytest.skip("XLA compiles these on JAX")
    keep, every, enough = WAYS[way]
    monkeypatch.setattr(sampling, "ENOUGH", enough)
    monkeypatch.setattr(sampling, "SHORT", min(enough, sampling.SHORT))
    without = train(build, mode, None)
    with_scope = train(build, mode, fs.Scope(tmp_path, watch=everything(keep), every=every))
    for a, b in zip(without, with_scope, strict=True):
        np.testing.assert_array_equal(a, b)
    run = fs.open(tmp_path)
    assert captured(run) == list(range(0, 21, every))
    assert run.errors == []
    assert len(run.sites) > 20
    eager = mode.get("run_eagerly") and BACKEND == "jax"
    assert run.identity in (("not provable",) if eager else ("proven", "twin"))
