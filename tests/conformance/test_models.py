"""Every kind of Keras model: its sites have the names that are promised, its values are those NumPy finds, its training is unchanged."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import captured

from .small_models import compiled, floats, sites, with_passes


@pytest.fixture
def watch_fit(watch_fit, tmp_path):
    return with_passes(watch_fit, tmp_path)


def test_a_functional_model_with_nested_and_shared_layers_is_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        inner_in = layers.Input((3,))
        inner = keras.Model(inner_in, layers.Dense(4, name="dense")(inner_in), name="encoder")
        shared = layers.Dense(4, name="dense")
        x = layers.Input((3,), name="x")
        h = inner(x)
        h = shared(shared(h))
        return compiled(keras.Model(x, layers.Dense(2, name="head")(h)))

    x, y = floats(10, 3), floats(10, 2)
    seen = watch_fit(make, x, y)
    at = seen.at
    assert sites(seen.run, "activations") == ["dense", "dense#2", "encoder/dense", "head"]
    assert sites(seen.run, "gradients") == ["dense", "dense#2", "encoder/dense", "head"]
    assert sites(seen.run, "weights") == [
        "dense/bias", "dense/kernel", "encoder/dense/bias", "encoder/dense/kernel", "head/bias", "head/kernel",
    ]  # fmt: skip
    h = x[:8]
    for site, layer in [("encoder/dense",) * 2, ("dense", "dense"), ("dense#2", "dense"), ("head", "head")]:
        h = tools.dense(at, layer, h)
        tools.close(at(f"activations/{site}"), h)
    tools.close(at("loss"), np.mean((h - y[:8]) ** 2))
    g = 2 * (h - y[:8]) / h.size
    tools.close(at("gradients/head"), g)
    g = g @ at("weights/head/kernel").T
    tools.close(at("gradients/dense#2"), g)
    kernel = at("activations/dense").T @ g
    g = g @ at("weights/dense/kernel").T
    tools.close(at("gradients/dense"), g)
    kernel += at("activations/encoder/dense").T @ g
    tools.close(at("weight_gradients/dense/kernel"), kernel)  # of both calls together
    tools.close(at("updates/dense/kernel"), -0.01 * kernel)
    tools.close(at("gradients/encoder/dense"), g @ at("weights/dense/kernel").T)


class Subclassed(keras.Model):
    """Not built before fit; calls a layer in a loop; a tuple and a dict as outputs of layers."""

    def __init__(self):
        super().__init__()
        self.step = layers.Dense(3, name="step")
        self.two = Two(name="two")
        self.named = Named(name="named")
        self.unused = layers.Dense(7, name="unused")
        self.blocks = [layers.Dense(3, name="block_a"), layers.Dense(3, name="block_b")]

    def call(self, x):
        for _ in range(3):
            x = self.step(x)
        a, b = self.two(x)
        out = self.named(a + b)
        return self.blocks[1](self.blocks[0](out["left"] * out["right"]))


class Two(layers.Layer):
    def call(self, x):
        return x * 2.0, x * 3.0


class Named(layers.Layer):
    def call(self, x):
        return {"left": x + 1.0, "right": x - 1.0}


def test_a_subclassed_model_that_fit_builds_is_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        return compiled(Subclassed())

    x, y = floats(10, 3), floats(10, 3)
    seen = watch_fit(make, x, y)
    at = seen.at
    assert sites(seen.run, "activations") == [
        "block_a", "block_b", "named/left", "named/right", "step", "step#2", "step#3", "two[0]", "two[1]",
    ]  # fmt: skip
    h = x[:8]
    for n in ("step", "step#2", "step#3"):
        h = tools.dense(at, "step", h)
        tools.close(at(f"activations/{n}"), h)
    tools.close(at("activations/two[1]"), 3 * h)
    tools.close(at("activations/named/left"), 5 * h + 1)
    g = at("gradients/block_a") @ at("weights/block_a/kernel").T
    tools.close(at("gradients/named/left"), g * (5 * h - 1))
    tools.close(at("gradients/two[0]"), g * (5 * h - 1) + g * (5 * h + 1))
    tools.close(at("predictions"), at("activations/block_b"))
    # What was asked for and never came is named.
    unseen = {k: v for status in seen.run._statuses() for k, v in status["unseen"].items()}
    assert "activations/unused" in unseen


def test_a_model_whose_second_call_also_ends_in_a_bit_identical_run(watch_fit):
    """The smaller last batch, several epochs, and an unbuilt Sequential."""

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Dense(3, activation="relu"), layers.Dropout(0.5), layers.Dense(2)])
        return compiled(model, optimizer="adam", metrics=["mae"])

    seen = watch_fit(make, floats(22, 4), floats(22, 2), epochs=2)
    assert captured(seen.run) == [0, 1, 2, 3, 4, 5]
    assert list(seen.run.frame("metrics/mae").epoch) == [0, 0, 0, 1, 1, 1]
    site = next(s for s in seen.run.sites if s.startswith("activations/dense"))
    assert list(seen.run.tensor(site)["batch_size"].values) == [8, 8, 6, 8, 8, 6]


def test_many_inputs_and_outputs_are_named(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        a, b = layers.Input((3,), name="a"), layers.Input((3,), name="b")
        left = layers.Dense(2, name="left")(a)
        right = layers.Dense(1, name="right")(layers.Concatenate(name="join")([a, b]))
        return compiled(
            keras.Model({"a": a, "b": b}, {"left": left, "right": right}),
            loss={"left": "mse", "right": "mae"},
            metrics={"left": ["mae"], "right": ["mse", "mae"]},
        )

    x = {"a": floats(12, 3), "b": floats(12, 3)}
    y = {"left": floats(12, 2), "right": floats(12, 1)}
    seen = watch_fit(make, x, y)
    at = seen.at
    for group, given in (("inputs", x), ("targets", y)):
        assert sites(seen.run, group) == sorted(given)
        for name, value in given.items():
            assert np.array_equal(at(f"{group}/{name}", 1), value[8:])
    assert sites(seen.run, "predictions") == ["left", "right"]
    logged = set(seen.model.history.history)
    assert {"left_loss", "right_loss", "left_mae", "right_mse", "right_mae"} <= logged
    assert {f"metrics/{name}" for name in logged - {"loss"}} == {
        s for s in seen.run.sites if s.startswith("metrics/")
    }
    left, right = (
        tools.dense(at, "left", x["a"][8:], 1),
        tools.dense(at, "right", np.hstack([x["a"], x["b"]])[8:], 1),
    )
    tools.close(at("metrics/left_loss", 1), np.mean((left - y["left"][8:]) ** 2))
    tools.close(at("metrics/right_mae", 1), np.mean(np.abs(right - y["right"][8:])))
    tools.close(at("loss", 1), at("metrics/left_loss", 1) + at("metrics/right_loss", 1))


def test_lists_of_inputs_and_outputs_have_the_names_in_the_model(watch_fit):
    def make():
        keras.utils.set_random_seed(0)
        a, b = layers.Input((3,), name="a"), layers.Input((3,), name="b")
        return compiled(
            keras.Model([a, b], [layers.Dense(2, name="p")(a), layers.Dense(2, name="q")(b)]), ["mse", "mse"]
        )

    x, y = [floats(8, 3), floats(8, 3)], [floats(8, 2), floats(8, 2)]
    seen = watch_fit(make, x, y, watch=[fs.inputs(keep="both"), fs.targets(), fs.predictions(), fs.metrics()])
    assert np.array_equal(seen.at("inputs/b"), x[1])
    assert np.array_equal(seen.at("targets/q"), y[1])
    assert seen.at("predictions/p").shape == (8, 2)
    assert {"metrics/p_loss", "metrics/q_loss"} <= set(seen.run.sites)


class WithLoss(layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


def test_models_with_regularizers_constraints_frozen_and_tied_weights_are_recorded(watch_fit, tools):
    class Tied(layers.Layer):
        """The transpose of another layer's kernel."""

        def __init__(self, other, **kwargs):
            super().__init__(**kwargs)
            self.other = other

        def call(self, x):
            return ops.matmul(x, ops.transpose(self.other.kernel))

    def make():
        keras.utils.set_random_seed(0)
        i = layers.Input((3,))
        first = layers.Dense(4, name="dense", kernel_constraint="unit_norm")
        h = first(i)
        h = layers.Dense(4, name="dense_1", trainable=False, activity_regularizer="l2")(h)
        h = layers.BatchNormalization(name="frozen", trainable=False)(h)
        h = WithLoss(name="extra")(h)
        return compiled(keras.Model(i, Tied(first, name="tied")(h)), optimizer=keras.optimizers.SGD(0.5))

    x, y = floats(12, 3), floats(12, 3)
    seen = watch_fit(make, x, y)
    at = seen.at
    h = tools.dense(at, "dense", x[:8])
    tools.close(at("activations/dense"), h)
    regular = tools.dense(at, "dense_1", h)
    frozen = regular / np.sqrt(1 + 1e-3)
    tools.close(at("activations/frozen"), frozen)
    out = frozen @ at("weights/dense/kernel").T
    tools.close(at("activations/tied"), out)
    tools.close(
        at("loss"),
        np.mean((out - y[:8]) ** 2) + np.mean(frozen**2) + 0.01 * np.sum(regular**2) / 8,
        rtol=1e-3,
    )
    assert "weight_gradients/dense_1/kernel" not in seen.run.sites
    assert np.array_equal(at("updates/dense_1/kernel"), np.zeros((4, 4)))
    moved = at("weights/dense/kernel") + at("updates/dense/kernel")
    tools.close(np.linalg.norm(moved, axis=0), np.ones(4))  # the constraint is a part of the update
    tools.close(moved, at("weights/dense/kernel", 1))
    assert [
        s for s in seen.run.sites if s.startswith("weights/tied")
    ] == []  # a weight has one place: its owner's


def test_rematerialised_layers_are_recorded(watch_fit, tools, backend):
    if backend == "tensorflow":
        pytest.skip(
            "Keras 3.15 itself cannot: a TensorFlow graph rematerialises no call with keyword arguments"
        )

    def make():
        keras.utils.set_random_seed(0)
        with keras.RematScope(mode="full"):
            model = keras.Sequential(
                [layers.Input((3,)), layers.Dense(4, name="a", activation="tanh"), layers.Dense(2, name="b")]
            )
        return compiled(model)

    x, y = floats(12, 3), floats(12, 2)
    watch = [
        fs.activations("b", keep="both"),
        fs.weights(keep="both"),
        fs.weight_gradients(keep="both"),
        fs.loss(),
    ]
    seen = watch_fit(make, x, y, watch=watch)
    h = tools.dense(seen.at, "b", np.tanh(tools.dense(seen.at, "a", x[:8])))
    tools.close(seen.at("loss"), np.mean((h - y[:8]) ** 2))
    if "activations/b" in seen.run.sites:
        tools.close(seen.at("activations/b"), h)
    else:
        unseen = {k: v for status in seen.run._statuses() for k, v in status["unseen"].items()}
        assert "activations/b" in unseen


class OddOutputs(layers.Layer):
    """Outputs that are no tensors, and a tensor of no float type."""

    def call(self, x):
        return {"tensor": x, "whole": ops.cast(x > 0, "int32"), "nothing": None, "number": 3}


def test_outputs_that_are_not_tensors_are_ignored(watch_fit):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.odd, self.head = OddOutputs(name="odd"), layers.Dense(2, name="head")

        def call(self, x):
            out = self.odd(x)
            assert out["number"] == 3
            return self.head(out["tensor"])

    def make():
        keras.utils.set_random_seed(0)
        return compiled(Model())

    x = floats(8, 3)
    seen = watch_fit(make, x, floats(8, 2), watch=[fs.activations(keep="both"), fs.gradients()])
    assert np.array_equal(seen.at("activations/odd/tensor"), x)
    assert np.array_equal(seen.at("activations/odd/whole"), x > 0)
    assert "gradients/head" in seen.run.sites
