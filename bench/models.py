"""The models that the benchmarks train, and data for them. Imports Keras: the backend is chosen before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

WORDS = 1_000  #: that the transformer knows


@dataclass(frozen=True, slots=True)
class Task:
    """A model, and what it is trained with."""

    build: Callable[[], keras.Model]
    batch: int
    shape: tuple[int, ...]  #: of one sample
    about: str
    least: int = 10  #: steps a round, in fives: the row that captures each tenth trains twice as long

    def model(self, jit: Any = "auto") -> keras.Model:
        keras.utils.set_random_seed(0)
        model = self.build()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
        return model

    def data(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        samples = steps * self.batch
        if self.build is transformer:
            x: np.ndarray = rng.integers(0, WORDS, (samples, *self.shape)).astype("int32")
        else:
            x = rng.standard_normal((samples, *self.shape), np.float32)
        return x, rng.integers(0, 10, samples)


def cnn() -> keras.Model:
    """Three blocks of conv, batch norm, ReLU, conv, pool; dropout; two dense layers."""
    stack: list[Any] = [layers.Input((32, 32, 3))]
    for width in (32, 64, 128):
        stack += [
            layers.Conv2D(width, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
            layers.Conv2D(width, 3, padding="same"), layers.MaxPooling2D(),
        ]  # fmt: skip
    stack += [
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
    return keras.Sequential(stack)


def dense(depth: int, width: int = 16) -> keras.Model:
    """So many dense layers, one after the other; the last one is the answer."""
    stack: list[Any] = [layers.Input((32,))]
    stack += [layers.Dense(width, activation="relu") for _ in range(depth - 1)]
    return keras.Sequential([*stack, layers.Dense(10, activation="softmax")])


def mlp() -> keras.Model:
    """Twenty-one tiny layers: nothing but fixed costs."""
    return dense(21)


def transformer() -> keras.Model:
    """Two blocks of attention and a dense part, before each a layer norm; the mean over the words is classified."""
    words = layers.Input((48,), dtype="int32")
    h = layers.Embedding(WORDS, 64)(words)
    for _ in range(2):
        normed = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.MultiHeadAttention(4, 16)(normed, normed)])
        inner = layers.Dense(256, activation="gelu")(layers.LayerNormalization()(h))
        h = layers.Add()([h, layers.Dropout(0.1)(layers.Dense(64)(inner))])
    h = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(h))
    return keras.Model(words, layers.Dense(10, activation="softmax")(h))


def resnet() -> keras.Model:
    """ResNet-50, untrained, for pictures of 64 × 64."""
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)


def small_cnn() -> keras.Model:
    """Two convolutions, for batches of every size."""
    return keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(16, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )


TASKS = {
    "cnn": Task(cnn, 64, (32, 32, 3), "a CNN of 19 layers, batches of 64 pictures of 32 × 32"),
    "mlp": Task(mlp, 32, (32,), "21 dense layers of width 16, batches of 32", least=2000),
    "transformer": Task(transformer, 32, (48,), "2 blocks, width 64, batches of 32 texts of 48 words"),
    "resnet": Task(resnet, 32, (64, 64, 3), "ResNet-50, batches of 32 pictures of 64 × 64", least=5),
}
