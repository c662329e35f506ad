"""Healthy programs that were added later, after the kinds of models in the guides and examples of Keras.

Held out, and scored as a part of their own: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.data import blobs, images, waves
from diagnosis.models import SPARSE, convnet, mlp


@healthy("dense")
def numbers_beside_categories() -> Training:
    """A table: columns of numbers in their own units, normalised in the model, beside the number of a category."""
    rng = np.random.default_rng(501)
    n = 576
    numbers = (rng.normal(size=(n, 3)) * [12.0, 40_000.0, 0.1] + [45.0, 60_000.0, 0.3]).astype("float32")
    kind = rng.integers(0, 8, (n, 1)).astype("int32")
    effect = rng.normal(size=8)
    y = (effect[kind[:, 0]] + (numbers[:, 0] - 45) / 12 > 0).astype("float32")[:, None]
    norm = layers.Normalization(name="normalise")
    norm.adapt(numbers)
    a, b = layers.Input((3,), name="numbers"), layers.Input((1,), dtype="int32", name="kind")
    x = layers.Concatenate(name="join")(
        [norm(a), layers.Flatten()(layers.Embedding(8, 4, name="embedding")(b))]
    )
    x = layers.Dense(32, "relu", name="h1")(x)
    model = keras.Model({"numbers": a, "kind": b}, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    held = ({"numbers": numbers[480:], "kind": kind[480:]}, y[480:])
    return Training(model, {"numbers": numbers[:480], "kind": kind[:480]}, y[:480], held, epochs=6)


@healthy("conv")
def unet_with_dice_loss() -> Training:
    """Down, up and across; the loss is the negative overlap, so it falls from about -0.3 towards -1."""
    data = images(seed=502, noise=0.3)
    bar = (data.x > 1.2).astype("float32")
    held = (data.validation[0], (data.validation[0] > 1.2).astype("float32"))

    def dice(y, p):
        shared = ops.sum(y * p, axis=(1, 2, 3))
        return -(2 * shared + 1) / (ops.sum(y, axis=(1, 2, 3)) + ops.sum(p, axis=(1, 2, 3)) + 1)

    inputs = layers.Input((8, 8, 1))
    fine = layers.Conv2D(8, 3, padding="same", activation="relu", name="fine")(inputs)
    x = layers.MaxPooling2D(name="pool")(fine)
    x = layers.Conv2D(12, 3, padding="same", activation="relu", name="coarse")(x)
    x = layers.Concatenate(name="across")([layers.UpSampling2D(name="up")(x), fine])
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid", name="head")(x))
    model.compile(optimizers.Adam(5e-3), dice)
    return Training(model, data.x, bar, held, epochs=6)


@healthy("custom")
def encoder_shared_by_two_inputs() -> Training:
    """Siamese: the same encoder sees both rows; the label says whether they are of one class."""
    data = blobs(n=720, seed=503)
    rng = np.random.default_rng(503)
    left, right = rng.integers(0, 720, 480), rng.integers(0, 720, 480)
    right[::2] = [rng.choice(np.flatnonzero(data.y == data.y[i])) for i in left[::2]]
    same = (data.y[left] == data.y[right]).astype("float32")[:, None]
    encoder = keras.Sequential(
        [layers.Input((8,)), layers.Dense(32, "relu", name="e1"), layers.Dense(16, name="e2")], name="encoder"
    )
    a, b = layers.Input((8,), name="left"), layers.Input((8,), name="right")
    apart = layers.Subtract(name="apart")([encoder(a), encoder(b)])
    x = layers.Dense(16, "relu", name="h1")(apart)
    model = keras.Model([a, b], layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    pair = [data.x[left], data.x[right]]
    return Training(model, pair, same, ([one[:96] for one in pair], same[:96]), epochs=7)


@healthy("custom")
def soft_targets_of_a_teacher() -> Training:
    """Distillation: a small model learns the probabilities that a larger one gave, at a temperature of 2."""
    data = blobs(seed=504)
    rng = np.random.default_rng(504)
    logits = 3 * np.eye(3)[data.y] + rng.normal(size=(480, 3)) * 0.5
    soft = np.exp(logits / 2) / np.exp(logits / 2).sum(1, keepdims=True)
    model = mlp(8, 3, widths=(12,))
    model.compile(optimizers.Adam(5e-3), "kl_divergence")
    soft = soft.astype("float32")
    return Training(model, data.x, soft, (data.x[:96], soft[:96]), epochs=7)


@healthy("conv")
def cyclic_rate() -> Training:
    """The learning rate swings between 0.002 and 0.05, as in training with restarts."""
    data = images(seed=505)
    rate = schedules.CosineDecayRestarts(0.05, first_decay_steps=30, t_mul=1.0, alpha=0.04)
    model = convnet(3)
    model.compile(optimizers.SGD(rate, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8)


@healthy("recurrent")
def accumulation_and_average() -> Training:
    """Gradients of four batches make one update, and weights are averaged over time."""
    data = waves(seed=506)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.GRU(16, name="gru"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(1e-2, gradient_accumulation_steps=4, use_ema=True), SPARSE)
    return Training(model, **data.parts(), epochs=8)


@healthy("recurrent")
def encoder_and_decoder() -> Training:
    """Sequence to sequence: the decoder starts from the state of the encoder, and is taught with the right answers."""
    rng = np.random.default_rng(507)
    x = rng.integers(1, 8, (384, 6)).astype("int32")
    y = x[:, ::-1]
    before = np.concatenate([np.zeros((384, 1), "int32"), y[:, :-1]], axis=1)
    source, taught = (
        layers.Input((6,), dtype="int32", name="source"),
        layers.Input((6,), dtype="int32", name="taught"),
    )
    embedding = layers.Embedding(8, 12, name="embedding")
    _, state = layers.GRU(32, return_state=True, name="encoder")(embedding(source))
    x1 = layers.GRU(32, return_sequences=True, name="decoder")(embedding(taught), initial_state=state)
    model = keras.Model([source, taught], layers.Dense(8, "softmax", name="head")(x1))
    model.compile(optimizers.Adam(1e-2), SPARSE)
    return Training(model, [x, before], y, ([x[:64], before[:64]], y[:64]), epochs=8)


@healthy("attention")
def mlp_mixer() -> Training:
    """Patches are mixed across places and across channels, with layer normalisation and residuals."""
    data = images(seed=508)
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(16, 2, strides=2, name="patches")(inputs)
    x = layers.Reshape((16, 16), name="rows")(x)
    for i in (1, 2):
        places = layers.Permute((2, 1), name=f"turn{i}")(layers.LayerNormalization(name=f"norm{i}a")(x))
        places = layers.Dense(16, name=f"places{i}b")(layers.Dense(24, "gelu", name=f"places{i}a")(places))
        x = layers.Add(name=f"add{i}a")([x, layers.Permute((2, 1), name=f"back{i}")(places)])
        inner = layers.Dense(24, "gelu", name=f"channels{i}a")(layers.LayerNormalization(name=f"norm{i}b")(x))
        x = layers.Add(name=f"add{i}b")([x, layers.Dense(16, name=f"channels{i}b")(inner)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)
