"""The configuration of a model as evidence: what is read of every kind of model, and that nothing raises."""

from __future__ import annotations

import functools
import json

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from fitscope.plan.configuration import configuration
from fitscope.plan.nonlinearity import name_of, nonlinearity


def by_path(model, **more):
    found = configuration(model, **more)
    json.dumps(found, allow_nan=False)  # plain
    return {layer["path"]: layer for layer in found["layers"]}, found


def clipped(x):
    return keras.ops.clip(x, 0, 1)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: layers.Dense(2, activation="relu"), "relu"),
        (lambda: layers.Dense(2), "linear"),
        (lambda: layers.Dense(2, activation=keras.activations.swish), "silu"),
        (lambda: layers.Dense(2, activation=keras.ops.tanh), "tanh"),
        (lambda: layers.Dense(2, activation=clipped), "clipped"),
        (lambda: layers.Dense(2, activation=layers.LeakyReLU(0.1)), "leaky_relu"),
        (lambda: layers.Dense(2, activation=functools.partial(keras.activations.relu, max_value=6)), "relu"),
        (lambda: layers.Activation("sigmoid"), "sigmoid"),
        (lambda: layers.ReLU(), "relu"),
        (lambda: layers.ReLU(negative_slope=0.2), "leaky_relu"),
        (lambda: layers.LeakyReLU(), "leaky_relu"),
        (lambda: layers.PReLU(), "prelu"),
        (lambda: layers.ELU(), "elu"),
        (lambda: layers.Softmax(axis=1), "softmax"),
        (lambda: layers.TimeDistributed(layers.Dense(2, activation="tanh")), "tanh"),
        (lambda: layers.Bidirectional(layers.SimpleRNN(2)), "tanh"),
        (lambda: layers.Bidirectional(layers.SimpleRNN(2), merge_mode="sum"), None),
        (lambda: layers.SpectralNormalization(layers.Dense(2, activation="elu")), "elu"),
        (lambda: layers.RNN(layers.SimpleRNNCell(2, activation="relu")), "relu"),
        (lambda: keras.Sequential([layers.Input((2,)), layers.Dense(2), layers.ReLU()]), "relu"),
        (lambda: layers.Flatten(), None),
        (lambda: layers.BatchNormalization(), None),
    ],
)
def test_a_layer_is_described_with_the_nonlinearity_of_its_output(layer, expected):
    assert nonlinearity(layer()) == expected


def test_an_activation_is_named_also_when_it_is_serialised():
    serialised = keras.saving.serialize_keras_object(keras.activations.gelu)
    assert name_of(serialised) == "gelu"
    assert name_of({"class_name": "ReLU", "config": {}}) == "relu"


def test_a_functional_model_lists_inputs_through_operations():
    x = keras.Input((8,))
    a = layers.Dense(4, activation="relu", name="a")(x)
    b = layers.ReLU(name="b_relu")(layers.Dense(4, name="b")(a))
    y = layers.Dense(3, name="head", kernel_initializer=keras.initializers.RandomNormal(stddev=7.0))(a + b)
    out = layers.Activation("linear", dtype="float32", name="cast")(layers.Softmax(name="probabilities")(y))
    model = keras.Model(x, out)
    model.compile(
        keras.optimizers.SGD(0.25, momentum=0.5, clipnorm=1e-9),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    )
    parts, found = by_path(model, fit={"batch_size": 16, "shuffle": False})
    assert parts["b"]["inbound"] == ["a"]
    assert parts["b"]["activation"] == "linear"
    assert parts["b_relu"]["activation"] == "relu"
    assert parts["head"]["inbound"] == ["a", "b_relu"]
    assert parts["head"]["kernel_initializer"] == {"class": "RandomNormal", "mean": 0.0, "stddev": 7.0}
    assert parts["head"]["weights"] == ["kernel", "bias"]
    assert parts["head"]["parameters"] == 15
    (output,) = found["outputs"]
    assert output == {"layer": "cast", "name": "cast", "activation": "softmax", "shape": [None, 3]}
    (loss,) = found["losses"]
    assert (loss["class"], loss["from_logits"], loss["output"]) == ("CategoricalCrossentropy", True, "cast")
    optimizer = found["optimizer"]
    assert (optimizer["class"], optimizer["learning_rate"], optimizer["momentum"]) == ("SGD", 0.25, 0.5)
    assert optimizer["clipnorm"] == 1e-9
    assert found["fit"] == {"batch_size": 16, "shuffle": False}


def test_a_sequential_model_is_a_chain_before_it_is_built_and_after():
    model = keras.Sequential(
        [
            layers.Dense(4, name="one"),
            layers.Dropout(0.4, name="drop"),
            layers.Dense(1, activation="sigmoid", name="two"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    for _ in range(2):
        parts, found = by_path(model)
        assert parts["drop"]["inbound"] == ["one"]
        assert parts["two"]["inbound"] == ["drop"]
        assert parts["drop"]["rate"] == 0.4
        assert found["outputs"][0]["activation"] == "sigmoid"
        assert found["losses"][0]["class"] == "BinaryCrossentropy"
        assert found["losses"][0]["from_logits"] is False
        assert found["metrics"] == ["accuracy", "auc"]
        assert found["optimizer"]["learning_rate"] == 0.001
        model.build((None, 8))


def test_each_output_has_its_own_loss():
    x = keras.Input((4,))
    model = keras.Model(x, {"kind": layers.Dense(3, name="kind")(x), "size": layers.Dense(1, name="size")(x)})
    model.compile("sgd", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    losses = {loss["output"]: loss["class"] for loss in configuration(model)["losses"]}
    assert losses == {"kind": "SparseCategoricalCrossentropy", "size": "MeanSquaredError"}


def test_a_nested_model_shows_its_layers_and_frozen_ones():
    base = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, name="inner", activation="relu")], name="base"
    )
    base.trainable = False
    model = keras.Sequential([layers.Input((4,)), base, layers.BatchNormalization(momentum=0.5, name="norm")])
    parts, _ = by_path(model)
    assert parts["base"]["container"] is True
    assert parts["base/inner"]["trainable"] is False
    assert parts["norm"]["inbound"] == ["base"]
    assert parts["norm"]["momentum"] == 0.5


def test_schedules_loss_scales_and_several_optimizers_are_named():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)
            self.second = keras.optimizers.SGD(1.0, name="second")

        def train_step(self, data):  # pragma: no cover - never run
            raise NotImplementedError

    model = Two()
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    inner = keras.optimizers.Adam(schedule, epsilon=10.0)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10), lambda y, p: p)
    found = configuration(model)
    assert found["custom"] == {"train_step": True, "compute_loss": False, "call": False}
    assert found["optimizer"]["learning_rate"]["class"] == "CosineDecay"
    assert found["optimizer"]["learning_rate"]["decay_steps"] == 100
    assert found["optimizer"]["epsilon"] == 10.0
    assert found["optimizer"]["loss_scale"] == 1024.0
    assert [each["class"] for each in found["optimizers"]] == ["Adam", "SGD"]
    assert found["losses"][0]["name"] == "<lambda>"


def test_describing_a_model_raises_no_error():
    class Odd(layers.Layer):
        @property
        def activation(self):
            raise RuntimeError("no")

        @property
        def rate(self):
            raise RuntimeError("no")

    assert configuration(object())["layers"] == []
    assert configuration(None)["optimizer"] is None
    model = keras.Sequential([Odd(name="odd")])
    (layer,) = configuration(model)["layers"]
    assert layer["activation"] is None


@pytest.mark.per_backend
def test_a_run_keeps_the_configuration_and_how_fit_was_called(tmp_path):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1, name="d")])
    model.compile("sgd", "mse")
    x = np.zeros((20, 4), "float32")
    scope = fs.Scope(to=tmp_path, every=1)
    model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[scope])
    found = fs.open(scope.path).configuration
    assert found["layers"][-1]["path"] == "d"
    assert found["fit"] == {
        "batch_size": 8, "steps_per_epoch": 3, "epochs": 2, "shuffle": False, "samples": 20,
        "class_weight": False, "sample_weight": False, "validation": False,
    }  # fmt: skip


def test_a_layer_that_only_a_lambda_calls_is_named():
    hidden, known = layers.Dense(3, name="hidden"), layers.Dense(4, name="known")
    hidden.build((None, 4))
    inputs = keras.Input((4,))
    x = layers.Lambda(lambda x: hidden(x), name="wrap")(known(inputs))
    x = layers.Lambda(lambda x: x + known.name.count("n"), name="harmless")(x)
    found = {each["path"]: each for each in configuration(keras.Model(inputs, x))["layers"]}
    assert found["wrap"]["untracked"] == ["hidden"]
    assert "untracked" not in found["harmless"]


def test_a_layer_that_adds_to_the_loss_is_marked():
    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    model = keras.Sequential([keras.Input((2,)), Penalty(name="penalty"), layers.Dense(1, name="head")])
    assert [each.get("adds_loss") for each in configuration(model)["layers"]][-2:] == [True, None]
