"""What a plain graph says of itself: the prediction, the loss of each of several train ops, and what a step is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
RNG = np.random.default_rng(0)


def placeholders(width: int = 1) -> tuple[Any, Any]:
    return tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(
        tf.float32, [None, width], name="y"
    )


def feed(x: Any, y: Any, n: int = 6) -> dict[Any, Any]:
    return {x: RNG.normal(size=(n, 5)), y: RNG.integers(0, 2, (n, y.shape[-1]))}


def recorded(tools: Any, path: Any, steps: list[tuple[Any, Any]], watch: Any = None, **said: Any) -> Any:
    """The run of a session in which these fetches are run with these feeds."""
    scope = fs.Scope(path, tools.everything() if watch is None else watch, every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess, **said):
            for fetches, given in steps:
                sess.run(fetches, given)
    run = fs.open(path)
    assert run.errors == []
    return run


# ---- the prediction ---------------------------------------------------------------------------------------------

log = tf.math.log
BY_HAND = {
    "epsilon added": lambda p, y: y * log(p + 1e-8) + (1 - y) * log(1 - p + 1e-8),
    "epsilon before": lambda p, y: y * log(1e-7 + p) + (1 - y) * log(1e-7 + (1 - p)),
    "clipped": lambda p, y: (
        y * log(tf.clip_by_value(p, 1e-7, 1 - 1e-7)) + (1 - y) * log(1 - tf.clip_by_value(p, 1e-7, 1 - 1e-7))
    ),
    "maximum": lambda p, y: y * log(tf.maximum(p, 1e-9)) + (1 - y) * log(tf.maximum(1 - p, 1e-9)),
    "plain": lambda p, y: y * log(p) + (1.0 - y) * log(tf.ones_like(p) - p),
    "log1p": lambda p, y: y * log(p) + (1 - y) * tf.math.log1p(-p),
    "smoothed": lambda p, y: y * log(0.98 * p + 0.01) + (1 - y) * log(1 - (0.98 * p + 0.01)),
    "squeezed": lambda p, y: tf.squeeze(y, 1) * log(tf.squeeze(p, 1) + 1e-8),
}


@pytest.mark.parametrize("form", list(BY_HAND))
def test_the_prediction_in_a_handwritten_cross_entropy_is_found(tools, tmp_path, form):
    x, y = placeholders()
    p = tf.sigmoid(tools.dense(x, 1, "out"), name="p")
    loss = -tf.reduce_mean(BY_HAND[form](p, y))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    given = feed(x, y)
    scope = fs.Scope(tmp_path, [fs.predictions(keep="both"), fs.targets(keep="both")], every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        before = sess.run(p, given)
        with scope.session(sess):
            sess.run(train, given)
    run = fs.open(tmp_path)
    assert set(run.sites) == {"predictions", "targets"}
    np.testing.assert_allclose(run.array("predictions", 0), before, rtol=1e-5)
    np.testing.assert_array_equal(run.array("targets", 0), given[y].astype("float32"))


def test_the_prediction_of_a_softmax_with_an_epsilon_is_found(tools, tmp_path):
    x, y = placeholders(3)
    p = tf.nn.softmax(tools.dense(x, 3, "out"), name="p")
    loss = tf.reduce_mean(-tf.reduce_sum(y * log(p + 1e-10), axis=1))
    train = tf1.train.AdamOptimizer().minimize(loss)
    run = recorded(tools, tmp_path, [(train, feed(x, y))])
    np.testing.assert_allclose(run.array("predictions", 0).sum(1), 1, rtol=1e-5)


def test_a_maximum_inside_the_network_belongs_to_the_prediction(tools, tmp_path):
    """Only under a logarithm it is a precaution."""
    x, y = placeholders()
    out = tf.maximum(0.0, tools.dense(x, 1, "out"), name="relu")
    train = tf1.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(out - y)))
    run = recorded(tools, tmp_path, [(train, feed(x, y))])
    assert (run.array("predictions", 0) >= 0).all()


# ---- several train ops ------------------------------------------------------------------------------------------


def test_each_of_two_train_ops_has_its_own_loss(tools, tmp_path):
    """Generator and discriminator: what is the one's is never in the other's series."""
    z = tf1.placeholder(tf.float32, [None, 2], name="z")
    real = tf1.placeholder(tf.float32, [None, 3], name="real")

    def discriminate(x: Any) -> Any:
        with tf1.variable_scope("D", reuse=tf1.AUTO_REUSE):
            return tools.dense(tools.dense(x, 4, "hidden", tf.nn.relu), 1, "out")

    with tf1.variable_scope("G"):
        fake = tools.dense(z, 3, "out", tf.tanh)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    on_real, on_fake = discriminate(real), discriminate(fake)
    d_loss = tf.reduce_mean(
        entropy(labels=tf.ones_like(on_real), logits=on_real)
        + entropy(labels=tf.zeros_like(on_fake), logits=on_fake),
        name="d_loss",
    )
    g_loss = tf.reduce_mean(entropy(labels=tf.ones_like(on_fake), logits=on_fake), name="g_loss")
    d_train, g_train = (
        tf1.train.AdamOptimizer().minimize(loss, var_list=tf1.trainable_variables(which))
        for loss, which in ((d_loss, "D"), (g_loss, "G"))
    )
    noise = {z: RNG.normal(size=(6, 2))}
    both = {**noise, real: RNG.normal(size=(6, 3))}
    run = recorded(tools, tmp_path, [(d_train, both), (g_train, noise)] * 3)
    assert list(run.series("loss/d_loss").index) == [0, 2, 4]
    assert list(run.series("loss/g_loss").index) == [1, 3, 5]
    assert {"inputs/z", "inputs/real", "activations/D/hidden", "activations/D_1/hidden"} <= set(run.sites)
    assert {"weight_gradients/D/out/kernel", "weight_gradients/G/out/kernel"} <= set(run.sites)
    assert set(run.unseen) == {"predictions", "targets"}  # the labels are ones and zeros: nobody gives them


def test_separate_train_and_validation_networks_keep_the_short_names(tools, tmp_path):
    x, y = placeholders()
    other_x, other_y = (tf1.placeholder(tf.float32, [None, n], name=f"other_{n}") for n in (5, 1))
    with tf1.variable_scope("net"):
        out = tools.dense(x, 1, "out")
    with tf1.variable_scope("net", reuse=True):
        other = tools.dense(other_x, 1, "out")
    loss = tf.reduce_mean(tf.square(out - y))
    train = tf1.train.AdamOptimizer().minimize(loss)
    scope = fs.Scope(tmp_path, [fs.predictions(), fs.targets()], every=1, on=("train", "validation"))
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess, predictions=[out, other], targets=[y, other_y]):
            for _ in range(2):
                sess.run(train, feed(x, y))
                sess.run([other, tf.identity(other_y)], feed(other_x, other_y))
    run = fs.open(tmp_path)
    assert set(run.sites) == {"predictions", "targets", "validation/predictions", "validation/targets"}
    assert dict(run.unseen) == {}


# ---- what gradients are, and what a step is -----------------------------------------------------------------------


def test_gradients_are_found_under_any_name(tools, tmp_path):
    x, y = placeholders()
    loss = tf.reduce_mean(tf.square(tools.dense(tools.dense(x, 4, "hidden", tf.nn.relu), 1, "out") - y))
    variables = tf1.trainable_variables()
    pairs = zip(tf1.gradients(loss, variables, name="slopes"), variables, strict=True)
    train = tf1.train.AdamOptimizer().apply_gradients(pairs)
    run = recorded(tools, tmp_path, [(train, feed(x, y))])
    assert {"loss", "predictions", "targets", "inputs", "activations/hidden", "gradients/hidden"} <= set(
        run.sites
    )
    assert dict(run.unseen) == {}


def test_a_gradient_penalty_is_not_a_separate_loss(tools, tmp_path):
    """A gradient penalty. A validation of such a loss is one, although it computes gradients."""
    x, y = placeholders()
    out = tools.dense(tools.dense(x, 4, "hidden", tf.nn.tanh), 1, "out")
    slopes = tf1.gradients(out, [x])[0]
    penalty = tf.reduce_mean(tf.square(tf.sqrt(tf.reduce_sum(tf.square(slopes), 1) + 1e-8) - 1))
    loss = tf.add(tf.reduce_mean(tf.square(out - y)), penalty, name="whole")
    train = tf1.train.AdamOptimizer().minimize(loss)
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=("train", "validation"))
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            seen = [sess.run([train, loss], feed(x, y))[1], sess.run(loss, feed(x, y))]
    run = fs.open(tmp_path)
    assert set(run.sites) == {"loss", "predictions", "validation/loss", "validation/predictions"}
    assert [float(run.series("loss").iloc[0]), float(run.series("validation/loss").iloc[0])] == seen


BY_HAND_UPDATES = {
    "assign_sub": lambda v, g: v.assign_sub(0.1 * g),
    "assign": lambda v, g: tf1.assign(v, v - 0.1 * g),
    "assign, rate last": lambda v, g: v.assign(v - g * 0.1),
}


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("update", list(BY_HAND_UPDATES))
def test_a_handwritten_update_is_a_step(tools, tmp_path, update, resource):
    """Nothing has to be said for it."""
    x, y = placeholders()
    loss = tf.reduce_mean(tf.square(tools.dense(x, 1, "out", resource=resource) - y))
    variables = tf1.trainable_variables()
    pairs = zip(variables, tf1.gradients(loss, variables), strict=True)
    train = tf.group([BY_HAND_UPDATES[update](v, g) for v, g in pairs])
    run = recorded(tools, tmp_path, [([train, loss], feed(x, y))] * 2)
    assert list(run.series("loss").index) == [0, 1]
    assert dict(run.unseen) == {}
    gradient, moved = run.array("weight_gradients/out/kernel", 1), run.array("updates/out/kernel", 1)
    np.testing.assert_allclose(moved, -0.1 * gradient, rtol=1e-3, atol=1e-6)


def test_a_handwritten_gradient_is_a_step(tools, tmp_path):
    """A write to a trained variable of what data and itself have gone into."""
    x, y = placeholders()
    with tf1.variable_scope("out", use_resource=True):
        theta = tf1.get_variable("theta", [5, 1])
    error = tf.matmul(x, theta) - y
    slope = 2 / 6 * tf.matmul(x, error, transpose_a=True)
    train = tf1.assign(theta, theta - 0.1 * slope)
    run = recorded(
        tools,
        tmp_path,
        [(train, feed(x, y))] * 2,
        [fs.weights(), fs.updates(), fs.loss()],
        loss=tf.reduce_mean(error**2),
    )
    assert list(run.series("updates/out/theta", "mean").index) == [0, 1]
    assert "loss" in run.sites


def test_writes_without_a_gradient_are_not_steps(tools, tmp_path):
    """A target network that follows, weights that are clipped, or loaded through a placeholder."""
    x, y = placeholders()
    tau = tf1.placeholder(tf.float32, [], name="tau")
    loaded = tf1.placeholder(tf.float32, [5, 1], name="loaded")
    with tf1.variable_scope("main"):
        out = tools.dense(x, 1, "out")
    with tf1.variable_scope("target"):
        tools.dense(x, 1, "out")
    main, target = tf1.trainable_variables("main"), tf1.trainable_variables("target")
    follow = [t.assign(tau * m + (1 - tau) * t) for t, m in zip(target, main, strict=True)]
    clip = [m.assign(tf.clip_by_value(m, -0.5, 0.5)) for m in main]
    load = main[0].assign(loaded)
    train = tf1.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(out - y)), var_list=main)
    one = feed(x, y)
    others = [(follow, {tau: 0.1}), (clip, None), (load, {loaded: np.zeros((5, 1))})]
    run = recorded(tools, tmp_path, [*others, (train, one), *others, (train, one)])
    assert list(run.series("loss").index) == [0, 1]
