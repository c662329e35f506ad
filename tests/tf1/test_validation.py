"""Validations as people write them: predictions and labels are there, whatever the user fetches, for either kind of variable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
ON = ("train", "validation")


def linear(units: int, *, resource: bool, bias: Any = None) -> Any:
    """The output of a layer as tutorials have it: a product and a sum."""
    x = tf1.get_default_graph().get_tensor_by_name("x:0")
    with tf1.variable_scope("model", use_resource=resource):
        w, b = tf1.get_variable("W", [5, units]), tf1.get_variable("b", [units])
    return tf.add(tf.matmul(x, w), b, name="out") if bias is None else bias(tf.matmul(x, w), b)


def classes(y: Any) -> dict[str, Any]:
    return {"y": y, "labels": lambda n: np.random.default_rng(5).integers(0, 3, n)}


def accuracy(resource: bool) -> SimpleNamespace:
    y = tf1.placeholder(tf.int64, [None], name="y")
    out = linear(3, resource=resource)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=out))
    right = tf.equal(tf.argmax(tf.nn.softmax(out), 1), y)
    return SimpleNamespace(
        out=out, loss=loss, measure=tf.reduce_mean(tf.cast(right, tf.float32)), **classes(y)
    )


def accuracy_of_one_hot(resource: bool) -> SimpleNamespace:
    y = tf1.placeholder(tf.float32, [None, 3], name="y")
    out = linear(3, resource=resource, bias=tf.nn.bias_add)
    loss = tf.reduce_mean(tf1.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=out))
    right = tf.equal(tf.argmax(tf.nn.softmax(out), 1), tf.argmax(y, 1))
    labels = lambda n: np.eye(3, dtype="float32")[np.random.default_rng(5).integers(0, 3, n)]  # noqa: E731
    measure = tf.reduce_mean(tf.cast(right, tf.float32))
    return SimpleNamespace(out=out, loss=loss, measure=measure, y=y, labels=labels)


def regression(of: Any, resource: bool) -> SimpleNamespace:
    y = tf1.placeholder(tf.float32, [None, 1], name="y")
    out = linear(1, resource=resource)
    loss = of(out, y)
    numbers = lambda n: np.random.default_rng(5).normal(size=(n, 1))  # noqa: E731
    return SimpleNamespace(out=out, loss=loss, measure=loss, y=y, labels=numbers)


MODELS = {
    "accuracy": accuracy,
    "accuracy of one-hot labels": accuracy_of_one_hot,
    "squared error": lambda r: regression(lambda p, y: tf.reduce_mean(tf.square(p - y)), r),
    "squared difference": lambda r: regression(lambda p, y: tf.reduce_mean(tf.math.squared_difference(p, y)), r),
    "half of the squares": lambda r: regression(lambda p, y: tf.nn.l2_loss(y - p), r),
    "absolute error": lambda r: regression(lambda p, y: tf.reduce_mean(tf.abs(y - p)), r),
    "huber": lambda r: regression(lambda p, y: tf1.losses.huber_loss(y, p), r),
    "log-cosh": lambda r: regression(lambda p, y: tf.reduce_mean(tf.math.log(tf.cosh(p - y))), r),
}  # fmt: skip


def trained(
    build: Any, session: Any, scope: Any = None, steps: int = 3
) -> tuple[list[Any], list[Any], list[Any]]:
    """Three epochs of one batch, each validated: what the validations gave, what they were of, and the weights in the end."""
    with tf.Graph().as_default():
        tf1.set_random_seed(3)
        x = tf1.placeholder(tf.float32, [None, 5], name="x")
        net = build()
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(net.loss)
        rng = np.random.default_rng(1)
        feeds = [{x: rng.normal(size=(n, 5)), net.y: net.labels(n)} for n in (8, 6)]
        gave, truth = [], []
        with session() as sess:
            sess.run(tf1.global_variables_initializer())

            def loop() -> None:
                for _ in range(steps):
                    sess.run(train, feeds[0])
                    gave.append(sess.run(net.measure, feeds[1]))

            if scope is None:
                for _ in range(steps):
                    sess.run(train, feeds[0])
                    gave.append(sess.run(net.measure, feeds[1]))
                    truth.append(sess.run([net.out, net.loss], feeds[1]))
            else:
                with scope.session(sess):
                    loop()
            weights = sess.run(tf1.global_variables())
        return gave, [(out, loss, feeds[1][net.y]) for out, loss in truth], weights


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("model", list(MODELS))
def test_predictions_labels_and_loss_of_each_epoch_are_recorded(tools, tmp_path, model, resource):
    plain, truth, weights = trained(lambda: MODELS[model](resource), tools.session)
    watch = [fs.predictions(), fs.targets(), fs.loss()]
    scope = fs.Scope(tmp_path, watch, every=1, on=ON)
    gave, _, mine = trained(lambda: MODELS[model](resource), tools.session, scope)
    assert gave == plain
    for a, b in zip(weights, mine, strict=True):
        np.testing.assert_array_equal(a, b)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert dict(run.unseen) == {}
    sites = ["loss", "predictions", "targets"]
    assert sorted(run.sites) == [*sites, *(f"validation/{site}" for site in sites)]
    for step, (out, loss, labels) in enumerate(truth, start=1):
        np.testing.assert_allclose(run.array("validation/predictions", step), out, rtol=1e-6)
        np.testing.assert_array_equal(
            run.array("validation/targets", step), np.asarray(labels, "f" if labels.ndim > 1 else None)
        )
        assert run.series("validation/loss").loc[step].item() == pytest.approx(loss, rel=1e-6)


def test_weights_that_change_are_not_read_during_a_validation(tools, tmp_path):
    """A copy that was made for a validation does not serve a step that writes to what it reads."""
    x = tf1.placeholder(tf.float32, [None, 5], name="x")
    y = tf1.placeholder(tf.float32, [None, 3], name="y")
    with tf1.variable_scope("model", use_resource=False):
        out = tf.matmul(x, tf1.get_variable("W", [5, 3])) + tf1.get_variable("b", [3])
    loss = tf.reduce_mean(tf.square(tf.nn.relu(out) * y))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    feed = {x: np.ones((4, 5)), y: np.ones((4, 3))}
    scope = fs.Scope(tmp_path, [fs.activations(out), fs.predictions()], every=1, on=ON)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            sess.run(loss, {x: feed[x] + 1, y: feed[y]})
            sess.run(train, feed)
    run = fs.open(tmp_path)
    site = "activations/model/add"
    assert f"validation/{site}" in run.sites
    assert "while the step changes them" in run.unseen[site]


def test_weights_that_the_step_leaves_alone_may_be_read(tools, tmp_path):
    """Of layers that are frozen every tensor can be recorded, with reference variables too."""
    x = tf1.placeholder(tf.float32, [None, 5], name="x")
    y = tf1.placeholder(tf.float32, [None, 1], name="y")
    body = tools.dense(x, 4, "body", tf.nn.relu, resource=False)
    loss = tf.reduce_mean(tf.square(tools.dense(body, 1, "head", resource=False) - y))
    head = [v for v in tf1.trainable_variables() if v.name.startswith("head")]
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=head)
    scope = fs.Scope(tmp_path, fs.activations("body/BiasAdd:0", keep="both"), every=1)
    given = np.random.default_rng(0).normal(size=(4, 5))
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        w, b = sess.run([v for v in tf1.trainable_variables() if v.name.startswith("body")])
        with scope.session(sess):
            sess.run(train, {x: given, y: np.ones((4, 1))})
    run = fs.open(tmp_path)
    assert dict(run.unseen) == {}
    np.testing.assert_allclose(run.array("activations/body/BiasAdd", 0), given @ w + b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_a_missing_site_is_listed_with_its_pass(tools, tmp_path, resource):
    """Nobody computes the loss here: the accuracy needs none, and its gradient does without its value."""
    x, y = tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(tf.int64, [None], name="y")
    logits = tools.dense(x, 3, "head", resource=resource)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    with tf1.variable_scope("other", use_resource=resource):
        loss += tf.nn.l2_loss(tf1.get_variable("w", [3]))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    (a, b), (c, d) = tools.batches(2)
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=ON)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            sess.run(train, {x: a, y: b})
            sess.run(right, {x: c, y: d})
    run = fs.open(tmp_path)
    missing = dict(run.unseen)
    assert missing.pop("validation/loss") == "what this session runs does not compute it"
    if not resource:
        assert "fetch it together with the step" in missing.pop("loss")
    assert missing == {}
    assert {"predictions", "validation/predictions"} <= set(run.sites)
