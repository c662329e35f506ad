"""Faults of the start and of depth: initial weights, dead units, saturation, vanishing and exploding signals."""

from __future__ import annotations

import keras
from keras import initializers, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import binary, blobs, curve, images, tokens
from diagnosis.models import LOGITS, SPARSE, Call, convnet, mlp


@fault("dense", expect("vanishing_gradient", *(f"h{i}" for i in range(1, 7))))
def tanh_stack_of_small_weights(broken: bool) -> Training:
    data = curve(seed=21)
    start = initializers.RandomNormal(stddev=0.01) if broken else initializers.GlorotNormal()
    model = mlp(6, 1, widths=(24,) * 8, activation="tanh", head=None, kernel_initializer=start)
    model.compile(optimizers.SGD(0.05), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault("conv", expect("vanishing_gradient", *(f"conv{i}" for i in range(1, 6))), expect("saturated"))
def deep_sigmoid_convnet(broken: bool) -> Training:
    data = images(seed=22)
    inside = [
        layers.Conv2D(6, 3, padding="same", activation="sigmoid" if broken else "elu", name=f"conv{i}")
        for i in range(1, 9)
    ]
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            *inside,
            layers.Flatten(name="flatten"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.SGD(0.02), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault(
    "dense",
    expect("exploding_gradient"),
    expect("bad_initial_loss"),
    expect("updates_too_large"),
    expect("loss_diverging"),
)
def deep_start_far_too_large(broken: bool) -> Training:
    data = blobs(seed=25)
    start = initializers.RandomNormal(stddev=1.5) if broken else initializers.HeNormal()
    model = mlp(8, 3, widths=(32,) * 6, head=None, kernel_initializer=start)
    model.compile(optimizers.SGD(0.02), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "dense",
    expect("layer_not_learning", "h1", "h2", "h3"),
    expect("vanishing_gradient", "h1", "h2", "h3"),
    expect("dead_relu", "h1", "h2", "h3"),
    step=0,
)
def zero_kernels(broken: bool) -> Training:
    data = blobs(seed=27)
    model = mlp(8, 3, widths=(32, 32, 32), kernel_initializer="zeros" if broken else "glorot_uniform")
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "attention",
    expect("layer_not_learning", "attn", "mix"),
    expect("vanishing_gradient", "attn", "mix"),
    step=0,
)
def zero_start_in_attention(broken: bool) -> Training:
    """Both the values and the projection behind them start at zero: neither ever gets a gradient."""
    data = tokens(seed=28)
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    start = "zeros" if broken else "glorot_uniform"
    attention = layers.MultiHeadAttention(2, 8, kernel_initializer=start, name="attn")
    x = layers.GlobalAveragePooling1D(name="pool")(attention(x, x))
    x = layers.Dense(16, "tanh", kernel_initializer=start, name="mix")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault("dense", expect("dead_relu", "h2"), step=0)
def dead_by_bias(broken: bool) -> Training:
    data = blobs(seed=29)
    start = initializers.Constant(-12.0 if broken else 0.0)
    model = mlp(8, 3, widths=(32, 32, 32), change={"h2": {"bias_initializer": start}})
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("conv", expect("dead_relu", "conv2"), step=0)
def dead_channels(broken: bool) -> Training:
    data = images(seed=30)
    start = initializers.Constant(-15.0 if broken else 0.0)
    model = convnet(3, change={"conv2": {"bias_initializer": start}})
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault(
    "dense",
    expect("bad_initial_loss", "head"),
    expect("bad_initial_loss"),
    expect("exploding_gradient"),
    step=0,
)
def head_starts_too_sure(broken: bool) -> Training:
    data = blobs(seed=35)
    start = initializers.RandomNormal(stddev=30.0) if broken else initializers.GlorotNormal()
    model = mlp(8, 3, head=None, change={"head": {"kernel_initializer": start}})
    model.compile(optimizers.SGD(0.01), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("bad_initial_loss", "head"), expect("bad_initial_loss"), step=0)
def head_bias_of_another_task(broken: bool) -> Training:
    """The bias of the head was left from a task where positives were one in a million."""
    data = binary(seed=36, spread=1.5)
    start = initializers.Constant(-14.0 if broken else 0.0)
    model = mlp(8, 1, head="sigmoid", change={"head": {"bias_initializer": start}})
    model.compile(optimizers.SGD(0.02), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=5)


@fault(
    "conv",
    expect("exploding_weights"),
    expect("exploding_weights", "conv1", "conv2"),
    expect("loss_diverging"),
)
def penalty_with_the_wrong_sign(broken: bool) -> Training:
    """A regulariser that rewards large weights."""
    data = images(seed=37)
    sign = -0.02 if broken else 1e-4

    def penalty(weight):
        return sign * ops.sum(ops.square(weight))

    change = {"conv1": {"kernel_regularizer": penalty}, "conv2": {"kernel_regularizer": penalty}}
    model = convnet(3, change=change)
    model.compile(optimizers.Adam(1e-2), SPARSE)
    return Training(model, **data.parts(), epochs=9)


@fault("attention", expect("saturated", "mix"), expect("vanishing_gradient", "mix", "embedding"), step=0)
def sum_of_words_saturates_tanh(broken: bool) -> Training:
    """Embeddings of twenty times the usual size are summed, not averaged, and go through a tanh."""
    data = tokens(seed=38)
    words = layers.Input((10,), dtype="int32")
    start = initializers.RandomNormal(stddev=20.0 if broken else 0.3)
    x = layers.Embedding(20, 16, embeddings_initializer=start, name="embedding")(words)
    x = layers.Add(name="add")([x, layers.MultiHeadAttention(2, 8, name="attn")(x, x)])
    x = Call(lambda x: ops.sum(x, 1) if broken else ops.mean(x, 1), name="sum")(x)
    x = layers.Dense(16, "tanh", name="mix")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "conv",
    expect("exploding_gradient"),
    expect("bad_initial_loss"),
    expect("updates_too_large"),
    expect("loss_diverging"),
)
def exploding_by_depth(broken: bool) -> Training:
    """Every one of seven convolutions triples the signal."""
    data = images(seed=39)
    start = initializers.VarianceScaling(20.0 if broken else 2.0, "fan_in", "truncated_normal")
    inside = [
        layers.Conv2D(6, 3, padding="same", activation="relu", kernel_initializer=start, name=f"conv{i}")
        for i in range(1, 8)
    ]
    model = keras.Sequential(
        [layers.Input((8, 8, 1)), *inside, layers.Flatten(name="flatten"), layers.Dense(3, name="head")]
    )
    model.compile(optimizers.SGD(0.01), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)
