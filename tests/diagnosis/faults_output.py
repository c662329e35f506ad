"""Faults where the model meets its loss: missing, doubled or wrong output activations, wrong axes, wrong reductions."""

from __future__ import annotations

import keras
from keras import layers, losses, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import binary, blobs, curve, images, tokens, waves
from diagnosis.models import SPARSE, convnet, mlp, transformer


@fault("dense", expect("output_loss_mismatch", "head"), step=0)
def softmax_twice(broken: bool) -> Training:
    data = blobs(seed=70)
    model = mlp(8, 3, head="softmax" if broken else None)
    model.compile(
        optimizers.Adam(5e-3), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return Training(model, **data.parts(), epochs=5)


@fault("attention", expect("output_loss_mismatch", "head"), step=0)
def transformer_softmax_twice(broken: bool) -> Training:
    data = tokens(seed=72)
    model = transformer()
    loss = losses.SparseCategoricalCrossentropy(from_logits=broken)
    model.compile(optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("output_loss_mismatch", "head"), step=0)
def binary_logits_taken_for_probabilities(broken: bool) -> Training:
    data = binary(seed=73)
    model = mlp(8, 1, head=None if broken else "sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("output_loss_mismatch", "head"), expect("label_problem"), step=0)
def one_sigmoid_for_a_categorical_loss(broken: bool) -> Training:
    data = binary(seed=75)
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), "categorical_crossentropy" if broken else "binary_crossentropy")
    return Training(model, **data.parts(), epochs=5)


@fault("conv", expect("output_loss_mismatch", "head"), expect("dead_relu", "head"), step=0)
def relu_on_a_logit(broken: bool) -> Training:
    """A logit that cannot be negative: no picture is ever less likely than one half."""
    data = images(seed=77, classes=2).map_y(lambda y: y.astype("float32")[:, None])
    model = convnet(1, head="relu" if broken else None)
    model.compile(optimizers.Adam(3e-3), losses.BinaryCrossentropy(from_logits=True))
    return Training(model, **data.parts(), epochs=5)


@fault("recurrent", expect("output_loss_mismatch", "head"), expect("saturated", "head"), step=0)
def sigmoid_for_large_targets(broken: bool) -> Training:
    """Ratings of 2 and 5 stars, out of a sigmoid."""
    data = waves(seed=78).map_y(lambda y: (3.0 * y + 2).astype("float32")[:, None])
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.GRU(12, name="gru"),
            layers.Dense(1, "sigmoid" if broken else None, name="head"),
        ]
    )
    model.compile(optimizers.Adam(2e-2), "mse")
    return Training(model, **data.parts(), epochs=7)


@fault("dense", expect("wrong_axis", "classes"), expect("output_loss_mismatch", "classes"), step=0)
def softmax_over_the_batch(broken: bool) -> Training:
    data = blobs(seed=80)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(32, "relu", name="h1"),
            layers.Dense(3, name="head"),
            layers.Activation(lambda x: ops.softmax(x, axis=0 if broken else -1), name="classes"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("attention", expect("wrong_axis", "attn"), step=0, note=True)
def attention_over_the_queries(broken: bool) -> Training:
    """The scores are normalised over the queries, so the weights of a query do not sum to one."""
    data = tokens(seed=82)
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    scores = layers.Dot(axes=2, name="scores")(
        [layers.Dense(16, name="query")(x), layers.Dense(16, name="key")(x)]
    )
    attend = layers.Softmax(axis=1 if broken else -1, name="attn")(scores)
    x = layers.Dot(axes=(2, 1), name="mix")([attend, layers.Dense(16, name="value")(x)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "custom",
    expect("bad_initial_loss"),
    expect("updates_too_large"),
    expect("exploding_gradient"),
    expect("loss_diverging"),
    step=0,
)
def loss_is_a_sum(broken: bool) -> Training:
    """The custom loss sums over outputs and batch, and the rate was chosen for a mean."""
    data = curve(seed=84)

    def squares(y, predicted):
        each = ops.square(y - predicted)
        return ops.sum(each) if broken else ops.mean(each)

    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(0.08), squares)
    return Training(model, **data.parts(), epochs=8, batch_size=48)
