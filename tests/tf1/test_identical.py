"""Watching changes nothing: the same losses and weights to the last bit, and no operation runs twice."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1


def trained(build: Any, data: Any, session: Any, scope: fs.Scope | None) -> list[np.ndarray]:
    """Losses and final weights of a training, in a graph of its own."""
    with tf.Graph().as_default():
        net = build()
        seen = []
        with session() as sess:
            sess.run(tf1.global_variables_initializer())

            def loop() -> None:
                for x, y in data:
                    seen.append(sess.run([net.train, net.loss], {net.x: x, net.y: y})[1])

            if scope is None:
                loop()
            else:
                with scope.session(sess):
                    loop()
            seen += sess.run(tf1.global_variables())
        return seen


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("reduce", ["host", "step"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("model", ["classifier", "convolutions"])
def test_a_session_trains_bit_identically(tools, tmp_path, model, resource, every, reduce):
    def build() -> SimpleNamespace:
        if model == "classifier":
            return tools.classifier("adam", dropout=0.5, resource=resource)
        return tools.convolutions(resource=resource)

    data = tools.batches(10, (5,) if model == "classifier" else (8, 8, 1))
    plain = trained(build, data, tools.session, None)
    scope = fs.Scope(tmp_path, tools.everything(), every, reduce=reduce, identity="trust")
    same(plain, trained(build, data, tools.session, scope))
    run = fs.open(tmp_path)
    assert list(run.series("loss").index) == list(range(0, 10, every))
    assert not np.array_equal(plain[0], plain[1])  # it did train


@pytest.mark.parametrize(
    "tensor",
    [
        "norm1/FusedBatchNormV3:0",
        "relu1:0",
        "conv1/BiasAdd:0",
        "conv2/BiasAdd:0",
        "dense/BiasAdd:0",
        "conv2/Conv2D:0",
    ],
)
def test_fused_operations_train_bit_identically(tools, tmp_path, tensor):
    """A product, its bias and its activation are one operation while nothing else uses what is between them."""
    data = tools.batches(8, (8, 8, 1))
    plain = trained(tools.convolutions, data, tools.session, None)
    scope = fs.Scope(tmp_path, fs.activations(tensor, keep="both"), every=1, identity="trust")
    same(plain, trained(tools.convolutions, data, tools.session, scope))
    run = fs.open(tmp_path)
    assert len(run.series("activations/" + tensor.removesuffix(":0"), "mean")) == 8


def executed(net: Any, sess: Any, data: Any, fetches: Any) -> Counter[str]:
    """How often each operation ran in one step."""
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    metadata = tf1.RunMetadata()
    sess.run(fetches, {net.x: data[0], net.y: data[1]}, options=options, run_metadata=metadata)
    return Counter(node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats)


#: What computes: the rest is constants, identities that are optimized away, and the way out.
HEAVY = (
    "MatMul",
    "Conv2D",
    "Relu",
    "BiasAdd",
    "RandomUniform",
    "Xent",
    "Apply",
    "MaxPool",
    "Tanh",
    "Softmax",
)


@pytest.mark.parametrize("model", ["classifier", "convolutions"])
def test_no_operation_runs_more_often(tools, tmp_path, model):
    net = tools.classifier("adam", dropout=0.5) if model == "classifier" else tools.convolutions()
    data = tools.batches(1, (5,) if model == "classifier" else (8, 8, 1))[0]
    shown = "hidden" if model == "classifier" else "dense"  # what a later step of the same run needs anyway
    watch = [
        fs.activations(shown, keep="both"),
        fs.gradients(shown, keep="both"),
        fs.weight_gradients(keep="both"),
        fs.loss(),
    ]
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        fetches = [net.train, net.loss]
        plain = executed(net, sess, data, fetches)
        with fs.Scope(tmp_path, watch, every=1, identity="trust").session(sess):
            watched = executed(net, sess, data, fetches)
    assert set(plain.values()) == {1}
    assert set(watched.values()) == {1}
    assert any("MatMul" in name for name in plain)
    more = {name for name in watched - plain if "_retval" not in name and "/tuple/" not in name}
    assert {name for name in more if any(kind in name for kind in HEAVY)} == set()
    assert len(fs.open(tmp_path).sites) >= 5


def test_an_extra_run_of_the_session_would_change_the_training(tools):
    """Why it matters: random operations move on with every run."""
    data = tools.batches(6)

    def train(again: bool) -> list[np.ndarray]:
        with tf.Graph().as_default():
            net = tools.classifier("adam", dropout=0.5)
            with tools.session() as sess:
                sess.run(tf1.global_variables_initializer())
                for x, y in data:
                    sess.run(net.train, {net.x: x, net.y: y})
                    if again:
                        sess.run(net.hidden, {net.x: x})
                return sess.run(tf1.trainable_variables())

    assert not all(np.array_equal(a, b) for a, b in zip(train(False), train(True), strict=True))
