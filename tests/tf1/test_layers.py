"""Layers of a graph that has none: by the scopes of variables, however the graph was put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1


def activations(tools: Any, path: Any, x: Any, y: Any, out: Any) -> tuple[set[str], dict[str, str]]:
    """The layers that a step shows, and what it does not."""
    train = tf1.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(out - y)))
    scope = fs.Scope(path, [fs.activations(), fs.gradients()], every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            sess.run(train, {x: np.ones((4, 5)), y: np.ones((4, 1))})
    run = fs.open(path)
    return {site.removeprefix("activations/") for site in run.sites if site.startswith("act")}, dict(
        run.unseen
    )


@pytest.fixture
def xy() -> tuple[Any, Any]:
    return tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(tf.float32, [None, 1], name="y")


def test_a_network_built_twice_on_the_same_variables_is_recorded(tools, tmp_path, xy):
    x, y = xy

    def net(given: Any) -> Any:
        with tf1.variable_scope("net", reuse=tf1.AUTO_REUSE):
            return tools.dense(tools.dense(given, 4, "first", tf.nn.relu), 1, "second")

    out = tf.subtract(net(x), net(-x), name="difference")
    found, unseen = activations(tools, tmp_path, x, y, out)
    assert {"net/first", "net/second", "net_1/first", "net_1/second", "difference"} <= found
    assert set(unseen) <= {"gradients/Neg"}  # data, which is not trained


def test_a_network_inside_a_scope_is_recorded(tools, tmp_path, xy):
    x, y = xy
    with tf1.name_scope("all"), tf1.variable_scope("model"):
        hidden = tools.dense(x, 4, "first", tf.nn.relu)
        out = tools.dense(tf1.nn.dropout(hidden, rate=0.5, name="drop"), 1, "second")
    found, _ = activations(tools, tmp_path, x, y, out)
    assert {"all/model/first", "all/model/second"} <= found
    assert any(name.startswith("all/model/drop/") for name in found)


def test_weights_in_separate_scopes_belong_to_their_layer(tools, tmp_path, xy):
    """As in the tutorial with summaries: layer1/weights, layer1/biases, layer1/activation, inside of a model."""
    x, y = xy

    def layer(given: Any, n: int, name: str, activation: Any) -> Any:
        with tf1.name_scope(name):
            with tf1.name_scope("weights"):
                w = tf1.Variable(tf1.truncated_normal([int(given.shape[-1]), n], stddev=0.1))
            with tf1.name_scope("biases"):
                b = tf1.Variable(tf.constant(0.1, shape=[n]))
            with tf1.name_scope("Wx_plus_b"):
                before = tf.matmul(given, w) + b
            return activation(before, name="activation")

    with tf1.name_scope("model"):
        out = layer(layer(x, 4, "layer1", tf.nn.relu), 1, "layer2", tf.identity)
    found, unseen = activations(tools, tmp_path, x, y, out)
    assert {"model/layer1", "model/layer2"} <= found
    assert unseen == {}


def test_weights_in_a_dictionary_belong_to_their_layers(tools, tmp_path, xy):
    """One scope for all operations, and none of the variables in it: each product begins another layer."""
    x, y = xy
    sizes = {"h1": (5, 4), "h2": (4, 3), "out": (3, 1)}
    weights = {k: tf1.Variable(tf1.random_normal(s), name=k) for k, s in sizes.items()}
    biases = {k: tf1.Variable(tf.zeros(s[1:]), name=f"b_{k}") for k, s in sizes.items()}
    with tf1.name_scope("Model"):
        first = tf.nn.relu(tf.add(tf.matmul(x, weights["h1"]), biases["h1"]))
        second = tf.nn.relu(tf.add(tf.matmul(first, weights["h2"]), biases["h2"]))
        out = tf.matmul(second, weights["out"]) + biases["out"]
    found, unseen = activations(tools, tmp_path, x, y, out)
    assert found == {"Model/Relu", "Model/Relu_1", out.op.name}
    assert unseen == {}
