"""What the tests of TF1 sessions share: graphs, a hand-written reference, and the pair of a watched and an unwatched training.

In a process of its own, where TF2 behaviour is off.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
tf1.logging.set_verbosity(tf1.logging.ERROR)

BOTH = {"keep": "both"}

OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
}


def everything() -> list[Any]:
    """Every kind of watch that a graph has, with the whole tensors."""
    return [
        fs.activations(**BOTH), fs.gradients(**BOTH), fs.weights(**BOTH), fs.weight_gradients(**BOTH), fs.updates(**BOTH),
        fs.loss(), fs.inputs(**BOTH), fs.targets(**BOTH), fs.predictions(**BOTH),
    ]  # fmt: skip


def dense(x: Any, units: int, name: str, activation: Any = None, *, resource: bool = True) -> Any:
    """A dense layer as people wrote it."""
    with tf1.variable_scope(name, use_resource=resource):
        kernel = tf1.get_variable("kernel", [x.shape[-1], units])
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
        out = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        return out if activation is None else activation(out)


def classifier(
    optimizer: str = "sgd", *, dropout: float = 0.0, resource: bool = True, clip: float | None = None
) -> SimpleNamespace:
    """Two dense layers and a softmax, fed by placeholders."""
    tf1.set_random_seed(7)
    x = tf1.placeholder(tf.float32, [None, 5], name="x")
    y = tf1.placeholder(tf.int64, [None], name="y")
    hidden = dense(x, 8, "hidden", tf.nn.relu, resource=resource)
    if dropout:
        hidden = tf1.nn.dropout(hidden, rate=dropout, name="drop")
    logits = dense(hidden, 3, "head", resource=resource)
    probabilities = tf.nn.softmax(logits, name="probabilities")
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss"
    )
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    if clip is not None:
        pairs = [(tf.clip_by_norm(gradient, clip), variable) for gradient, variable in pairs]
    train = made.apply_gradients(pairs, global_step=tf1.train.get_or_create_global_step())
    return SimpleNamespace(
        x=x,
        y=y,
        logits=logits,
        probabilities=probabilities,
        loss=loss,
        train=train,
        pairs=pairs,
        hidden=hidden,
    )


def convolutions(optimizer: str = "adam", *, resource: bool = True) -> SimpleNamespace:
    """Convolutions with a separate activation, a residual sum, pooling and dropout: all that TensorFlow likes to fuse."""
    tf1.set_random_seed(3)
    x = tf1.placeholder(tf.float32, [None, 8, 8, 1], name="x")
    y = tf1.placeholder(tf.int64, [None], name="y")

    def conv(h: Any, n: int, name: str) -> Any:
        with tf1.variable_scope(name, use_resource=resource):
            kernel = tf1.get_variable("kernel", [3, 3, h.shape[-1], n])
            return tf.nn.bias_add(
                tf1.nn.conv2d(h, kernel, [1, 1, 1, 1], "SAME"), tf1.get_variable("bias", [n])
            )

    def norm(h: Any, name: str) -> Any:
        with tf1.variable_scope(name, use_resource=resource):
            scale, offset = (
                tf1.get_variable(n, [4], initializer=tf1.ones_initializer()) for n in ("gamma", "beta")
            )
            return tf1.nn.fused_batch_norm(h, scale, offset, is_training=True)[0]

    h = tf.nn.relu(norm(conv(x, 4, "conv1"), "norm1"), name="relu1")
    h = tf.add(h, tf.nn.relu(conv(h, 4, "conv2"), name="relu2"), name="sum")
    h = tf1.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME", name="pool")
    h = tf1.nn.dropout(tf.reshape(h, [-1, 64], name="flat"), rate=0.5, name="drop")
    h = dense(h, 6, "dense", tf.nn.tanh, resource=resource)
    logits = dense(h, 3, "head", resource=resource)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    loss += 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in tf1.trainable_variables()])
    train = OPTIMIZERS[optimizer]().minimize(loss)
    return SimpleNamespace(x=x, y=y, logits=logits, loss=loss, train=train)


def batches(n: int = 6, shape: tuple[int, ...] = (5,), size: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [(rng.normal(size=(size, *shape)).astype("float32"), rng.integers(0, 3, size)) for _ in range(n)]


def session() -> Any:
    """One thread: sums of several threads are not the same twice."""
    return tf1.Session(config=tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1))


@pytest.fixture(autouse=True)
def graph():
    """Each test has a graph of its own."""
    with tf.Graph().as_default() as made:
        yield made


@pytest.fixture
def record(tmp_path) -> Callable[..., SimpleNamespace]:
    """Trains in a session under a scope, and gives the run with everything of interest."""

    def train(
        net: SimpleNamespace,
        data: list[Any] | None = None,
        *,
        watch: Any = None,
        every: Any = 1,
        scope: dict[str, Any] | None = None,
        said: dict[str, Any] | None = None,
    ) -> SimpleNamespace:
        data = batches() if data is None else data
        made = fs.Scope(tmp_path / "runs", everything() if watch is None else watch, every, **(scope or {}))
        variables = tf1.trainable_variables()
        weights, losses = [], []
        with session() as sess:
            sess.run(tf1.global_variables_initializer())
            weights.append(sess.run(variables))
            with made.session(sess, **(said or {})):
                for x, y in data:
                    losses.append(sess.run([net.train, net.loss], {net.x: x, net.y: y})[1])
                    weights.append(sess.run(variables))
        run = fs.open(tmp_path / "runs")
        assert run.status == "complete"
        assert run.errors == []
        return SimpleNamespace(
            run=run, scope=made, data=data, losses=losses, weights=weights, names=[v.op.name for v in variables],
            at=lambda site, step=0: np.asarray(run.array(site, step)),
        )  # fmt: skip

    return train


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        everything=everything, classifier=classifier, convolutions=convolutions, dense=dense, batches=batches,
        session=session, optimizers=OPTIMIZERS,
    )  # fmt: skip
