"""The five trainings of the gallery: one healthy, four with a mistake that people make. Each ends within a minute on a CPU.

They draw their own data, so nothing is downloaded, and start from fixed seeds. `Training.verdict` is what the first finding of the
run has to say; docs/make_gallery.py stops if it says something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from fitscope.cli.demo_training import digits

BATCH = 32
BATCHES = 40
BAD = 23  #: the batch of each epoch that was never scaled
SPIKE = 200  #: the step at which the learning rate jumps, for three steps
EMPTY = 31  #: the batch that holds a sentence of nothing but padding


@dataclass(frozen=True)
class Training:
    """A training under a scope."""

    name: str
    train: Callable[[Any], None]  #: takes the callback
    verdict: tuple[str, str | None] | None  #: rule and layer of the first finding; None if there must be none


def healthy(scope: Any) -> None:
    images, labels = digits(BATCH * BATCHES)
    _fit(_reader_of_digits(), images, labels, scope, epochs=6)


def vanishing(scope: Any) -> None:
    keras.utils.set_random_seed(1)
    images, labels = digits(BATCH * BATCHES)
    hidden = [layers.Dense(48, "sigmoid", name=f"hidden{i:02}") for i in range(1, 13)]
    flat = [layers.Input((16, 16, 1)), layers.Flatten(name="flatten")]
    model = keras.Sequential([*flat, *hidden, _head()], name="twelve_sigmoids")
    model.compile(keras.optimizers.SGD(0.1), _loss())
    _fit(model, images, labels, scope, epochs=6)


def dying(scope: Any) -> None:
    keras.utils.set_random_seed(1)
    images, labels = digits(BATCH * BATCHES)
    hidden = [layers.Dense(64, "relu", kernel_initializer="he_normal", name=f"hidden{i}") for i in (1, 2, 3)]
    flat = [layers.Input((16, 16, 1)), layers.Flatten(name="flatten")]
    model = keras.Sequential([*flat, *hidden, _head()], name="three_relus")
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([SPIKE - 1, SPIKE + 2], [0.1, 4.0, 0.1])
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), _loss())
    _fit(model, images, labels, scope, epochs=9)


class Attention(layers.Layer):
    """Self-attention that hides padding behind -inf, as many tutorials do."""

    def call(self, x: Any, words: Any) -> Any:
        scores = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        scores = ops.where(ops.expand_dims(words, 1) > 0, scores, -np.inf)
        return ops.matmul(ops.softmax(scores), x)


def attention(scope: Any) -> None:
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    words = rng.integers(1, 40, (BATCH * BATCHES, 12))
    about = ((words < 20).sum(1) > 6).astype("float32")[:, None]
    words[EMPTY * BATCH + 5] = 0
    inputs = layers.Input((12,), dtype="int32", name="words")
    x = layers.Embedding(40, 16, name="embedding")(inputs)
    x = layers.Dense(16, name="project")(x)
    x = Attention(name="attention")(x, inputs)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    x = layers.Dense(16, "relu", name="hidden")(x)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(x), name="sentences")
    model.compile(keras.optimizers.Adam(3e-3), "binary_crossentropy")
    _fit(model, words, about, scope, epochs=2)


def bad_batch(scope: Any) -> None:
    images, labels = digits(BATCH * BATCHES)
    images[BAD * BATCH : (BAD + 1) * BATCH] *= 255.0
    _fit(_reader_of_digits(), images, labels, scope, epochs=6)


#: In the order of docs/gallery.md.
TRAININGS = (
    Training("healthy", healthy, None),
    Training("vanishing", vanishing, ("vanishing_gradient", None)),
    Training("dying", dying, ("optimizer_misconfigured", None)),
    Training("attention", attention, ("nonfinite", "attention")),
    Training("bad_batch", bad_batch, ("loss_spike", None)),
)


def _reader_of_digits() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            layers.Input((16, 16, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(name="pool1"),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(64, "relu", name="hidden"),
            _head(),
        ],
        name="digits",
    )
    model.compile(keras.optimizers.Adam(2e-3), _loss())
    return model


def _head() -> Any:
    return layers.Dense(10, name="head")


def _loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _fit(model: Any, x: Any, y: Any, scope: Any, epochs: int) -> None:
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[scope])
