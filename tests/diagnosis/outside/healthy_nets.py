"""Healthy trainings on pictures and words: convolutions with each norm, transformers, transfer, adversaries, half precision."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, losses, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.models import LOGITS, SPARSE, OwnStep
from diagnosis.outside.data import beats, commands, displays, faces, needles, textures, topics


@healthy("conv")
def displays_by_a_plain_net() -> Training:
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", SPARSE, metrics=["accuracy"])
    return Training(model, **displays(640, seed=930).parts(), epochs=8, batch_size=32, validates=True)


def normed(norm: Any, seed: int, optimizer: Any, epochs: int = 6) -> Training:
    """Two stages of convolution, norm and ReLU with a skip around the second."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False, name="conv1")(inputs)
    x = layers.ReLU(name="relu1")(norm("norm1")(x))
    y = layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv2")(x)
    x = layers.Add(name="skip")([x, norm("norm2")(y)])
    x = layers.GlobalAveragePooling2D(name="pool")(layers.ReLU(name="relu2")(x))
    model = keras.Model(inputs, layers.Dense(4, name="direction")(x))
    model.compile(optimizer, LOGITS, metrics=["accuracy"])
    return Training(model, **textures(seed=seed).parts(), epochs=epochs, batch_size=24, validates=True)


@healthy("conv")
def textures_with_batch_norm() -> Training:
    """Enough steps for the running averages, at Keras's own momentum of 0.9 made for short runs."""
    return normed(lambda name: layers.BatchNormalization(momentum=0.9, name=name), 931, optimizers.Adam(3e-3))


@healthy("conv")
def textures_with_group_norm() -> Training:
    return normed(
        lambda name: layers.GroupNormalization(4, name=name), 932, optimizers.SGD(0.05, momentum=0.9)
    )


@healthy("conv")
def textures_with_layer_norm() -> Training:
    return normed(lambda name: layers.LayerNormalization(name=name), 933, optimizers.AdamW(3e-3))


@healthy("conv")
def textures_in_mixed_half_precision() -> Training:
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1", dtype="mixed_float16"),
            layers.Conv2D(24, 3, strides=2, activation="relu", name="conv2", dtype="mixed_float16"),
            layers.Flatten(name="flat"),
            layers.Dense(4, name="direction", dtype="float32"),
        ]
    )
    model.compile(optimizers.LossScaleOptimizer(optimizers.Adam(2e-3)), LOGITS)
    return Training(model, **textures(seed=934).parts(), epochs=6, batch_size=24)


@healthy("conv")
def bytes_rescaled_inside() -> Training:
    """Pictures from 0 to 255 and a Rescaling layer."""
    data = displays(seed=935).map_x(lambda x: np.round(x * 255).astype("float32"))
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Rescaling(1 / 255, name="rescale"),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv"),
            layers.Flatten(name="flat"),
            layers.Dense(48, "relu", name="fc"),
            layers.Dense(10, "softmax", name="digit"),
        ]
    )
    model.compile(optimizers.RMSprop(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=7, batch_size=25)


@healthy("conv")
def new_head_on_a_frozen_base() -> Training:
    """The base was trained on five digits; its weights and norms are frozen, and the head learns the other five."""
    data = displays(800, seed=936)
    base = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, activation="relu", name="base_conv"),
            layers.BatchNormalization(name="base_norm", momentum=0.9),
            layers.Flatten(name="base_flat"),
            layers.Dense(48, "relu", name="base_fc"),
        ],
        name="base",
    )
    low = data.y < 5
    first = keras.Sequential([base, layers.Dense(5, "softmax")])
    first.compile(optimizers.Adam(3e-3), SPARSE)
    first.fit(data.x[low], data.y[low], epochs=3, batch_size=32, verbose=0)
    base.trainable = False
    inputs = keras.Input((12, 10, 1))
    model = keras.Model(inputs, layers.Dense(5, "softmax", name="digit")(base(inputs, training=False)))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, data.x[~low], data.y[~low] - 5, epochs=8, batch_size=32)


@healthy("conv")
def pictures_without_their_noise() -> Training:
    """A convolutional autoencoder with transposed convolutions; most pixels of the target are dark."""
    clean, loud = displays(400, noise=0.02, seed=937), displays(400, noise=0.02, seed=937)
    rng = np.random.default_rng(5)
    noisy = np.clip(loud.x + 0.3 * rng.normal(size=loud.x.shape), 0, 1).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="down"),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="middle"),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu", name="up"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid", name="clean"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, noisy, clean.x, epochs=6, batch_size=20)


@healthy("conv")
def beats_by_depthwise_convolution() -> Training:
    model = keras.Sequential(
        [
            keras.Input((32, 2)),
            layers.SeparableConv1D(24, 5, activation="swish", name="sep1"),
            layers.SeparableConv1D(24, 5, strides=2, activation="swish", name="sep2"),
            layers.GlobalMaxPooling1D(name="pool"),
            layers.Dense(3, "softmax", name="shape"),
        ]
    )
    model.compile(optimizers.Adamax(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **beats(seed=938).parts(), epochs=8, batch_size=24)


class Places(layers.Layer):
    """Adds a learned vector to each place."""

    def build(self, shape: Any) -> None:
        self.vectors = self.add_weight(shape=shape[1:], initializer=initializers.RandomNormal(stddev=0.3))

    def call(self, x: Any) -> Any:
        return x + self.vectors


def encoder(blocks: int, width: int, vocabulary: int, length: int, classes: int, dropout: float = 0.1) -> Any:
    words = keras.Input((length,), dtype="int32")
    x = Places(name="places")(layers.Embedding(vocabulary, width, name="words")(words))
    for i in range(blocks):
        y = layers.LayerNormalization(name=f"ln{i}a")(x)
        x = x + layers.MultiHeadAttention(4, width // 4, dropout=dropout, name=f"mha{i}")(y, y)
        y = layers.LayerNormalization(name=f"ln{i}b")(x)
        y = layers.Dense(width, name=f"mlp{i}b")(layers.Dense(2 * width, "gelu", name=f"mlp{i}a")(y))
        x = x + layers.Dropout(dropout, seed=i)(y)
    x = layers.GlobalAveragePooling1D(name="mean")(layers.LayerNormalization(name="ln")(x))
    return keras.Model(words, layers.Dense(classes, name="class")(x))


@healthy("attention")
def commands_by_a_transformer() -> Training:
    model = encoder(2, 32, 24, 14, 3)
    rate = schedules.PolynomialDecay(2e-3, 200)
    model.compile(optimizers.AdamW(rate, global_clipnorm=1.0), LOGITS, metrics=["accuracy"])
    return Training(model, **commands(600, seed=939).parts(), epochs=10, batch_size=32)


@healthy("attention")
def topics_in_one_block() -> Training:
    model = encoder(1, 16, 60, 18, 4, dropout=0.3)
    model.compile(optimizers.Adam(4e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **topics(seed=940).parts(), epochs=8, batch_size=16, validates=True)


@healthy("attention")
def needle_by_pooled_attention() -> Training:
    inputs = keras.Input((16, 6))
    keys = layers.Dense(24, "tanh", name="keys")(inputs)
    weights = layers.Softmax(axis=1, name="weights")(layers.Dense(1, name="score")(keys))
    x = ops.sum(weights * layers.Dense(24, name="values")(inputs), 1)
    model = keras.Model(
        inputs, layers.Dense(3, "softmax", name="kind")(layers.Dense(24, "relu", name="fc")(x))
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **needles(seed=941).parts(), epochs=10, batch_size=32)


@healthy("attention")
def next_marker_with_a_plateau() -> Training:
    """The order of two markers counts, so the loss stands still at ln 3 before it falls."""
    inputs = keras.Input((14,), dtype="int32")
    x = Places(name="places")(layers.Embedding(24, 24, name="words")(inputs))
    x = layers.MultiHeadAttention(2, 12, name="attention")(x, x)
    x = layers.Dense(32, "relu", name="fc")(layers.GlobalMaxPooling1D(name="pool")(x))
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="class")(x))
    model.compile(optimizers.SGD(0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **commands(800, seed=942).parts(), epochs=18, batch_size=32)


@healthy("recurrent")
def topics_with_masked_padding() -> Training:
    model = keras.Sequential(
        [
            keras.Input((18,), dtype="int32"),
            layers.Embedding(60, 16, mask_zero=True, name="words"),
            layers.Bidirectional(layers.LSTM(16), name="both_ways"),
            layers.Dense(4, "softmax", name="topic"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **topics(seed=943).parts(), epochs=6, batch_size=24)


@healthy("recurrent")
def commands_by_a_stack_of_grus() -> Training:
    model = keras.Sequential(
        [
            keras.Input((14,), dtype="int32"),
            layers.Embedding(24, 24, name="words"),
            layers.GRU(24, return_sequences=True, name="gru1"),
            layers.GRU(24, name="gru2"),
            layers.Dropout(0.5, seed=1, name="half"),
            layers.Dense(3, name="class"),
        ]
    )
    model.compile(optimizers.Adam(8e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **commands(640, seed=944).parts(), epochs=12, batch_size=32)


@healthy("custom")
def forger_and_judge() -> Training:
    """GAN-like: the judge's gradient reaches the forger reversed, and its loss stays near ln 2."""
    x = faces(512, features=12, seed=945)
    rng = np.random.default_rng(2)

    class Game(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            real, noise = x
            fake, judge = self.get_layer("forger")(noise), self.get_layer("judge")
            turned = 2 * ops.stop_gradient(fake) - fake  # the same value, the opposite gradient
            return ops.mean(ops.softplus(-judge(real))) + ops.mean(ops.softplus(judge(turned)))

    forger = keras.Sequential(
        [keras.Input((4,)), layers.Dense(24, "relu", name="f1"), layers.Dense(12, "sigmoid", name="f2")],
        name="forger",
    )
    judge = keras.Sequential(
        [keras.Input((12,)), layers.Dense(24, "leaky_relu", name="j1"), layers.Dense(1, name="j2")],
        name="judge",
    )
    data, noise = keras.Input((12,)), keras.Input((4,))
    model = Game([data, noise], [judge(data), forger(noise)])
    model.compile(optimizers.Adam(1e-3, beta_1=0.5))
    given = [x, rng.normal(size=(512, 4)).astype("float32")]
    return Training(model, given, np.zeros((512, 1), "float32"), epochs=8, batch_size=32)


@healthy("custom")
def sparse_features_by_penalty() -> Training:
    """A wide ReLU code with an L1 penalty: 60 to 80 % of it are zeros."""
    x = faces(640, seed=946)
    x = (x - x.mean(0)) / x.std(0)
    model = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(64, "relu", activity_regularizer=keras.regularizers.L1(2e-3), name="code"),
            layers.Dense(24, name="again"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, x.astype("float32"), x.astype("float32"), epochs=10, batch_size=32)


@healthy("custom")
def many_tags_of_a_display() -> Training:
    """Seven segments as seven independent tags."""
    data = displays(600, seed=947)
    lit = np.array(
        [
            [one in word for one in "abcdefg"]
            for word in (
                "abcdef",
                "bc",
                "abged",
                "abgcd",
                "fgbc",
                "afgcd",
                "afgedc",
                "abc",
                "abcdefg",
                "abcdfg",
            )
        ]
    )
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv"),
            layers.Flatten(name="flat"),
            layers.Dense(64, "relu", name="fc"),
            layers.Dense(7, name="tags"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    return Training(model, data.x, lit[data.y].astype("float32"), epochs=7, batch_size=32)
