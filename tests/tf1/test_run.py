"""`sess.run` stays what it was: the user's structure comes back, every way to run is seen, and nothing is left behind."""

from __future__ import annotations

import time
from collections import namedtuple

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs
from fitscope.errors import FitscopeWarning, ModelError, WatchError

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
Pair = namedtuple("Pair", "train loss")


@pytest.fixture
def at(tools, tmp_path):
    """A session with a classifier in it, and a scope."""
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        yield sess, net, {net.x: x, net.y: y}, fs.Scope(tmp_path, tools.everything(), every=1)


STRUCTURES = {
    "list": lambda n: [n.train, n.loss],
    "tuple": lambda n: (n.train, n.loss),
    "dict": lambda n: {"a": n.train, "b": {"c": n.loss}},
    "named tuple": lambda n: Pair(n.train, n.loss),
    "operation": lambda n: n.train,
    "nested": lambda n: [[n.train], {"x": (n.loss, n.logits)}, []],
    "names": lambda n: ["loss:0", n.train.name],
    "slices": lambda n: [
        n.train,
        tf1.SparseTensor([[0, 0]], [1.0], [2, 2]),
        tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])),
    ],
    "variable": lambda n: [n.train, tf1.trainable_variables()[0]],
}


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_run_returns_the_structure_of_its_fetches(at, name):
    sess, net, feed, scope = at
    fetches = STRUCTURES[name](net)
    plain = sess.run(fetches, feed)
    with scope.session(sess):
        watched = sess.run(fetches, feed)
        assert scope.batch.step == 2 - 1  # the graph's own counter had one step before
    assert type(watched) is type(plain)
    tf.nest.assert_same_structure(plain, watched)
    assert [type(leaf) for leaf in tf.nest.flatten(plain)] == [
        type(leaf) for leaf in tf.nest.flatten(watched)
    ]


def test_operation_run_and_tensor_eval_are_recorded(at):
    sess, net, feed, scope = at
    with sess.as_default(), scope.session(sess):
        net.train.run(feed)
        net.train.run(feed)
        value = net.loss.eval(feed)  # no training step
    run = fs.open(scope.path)
    assert list(run.series("loss").index) == [0, 1]
    assert isinstance(value, np.float32)


def test_nothing_is_left_on_a_session(at):
    sess, net, feed, scope = at
    before, collections = dict(vars(sess)), {k: list(v) for k, v in sess.graph._collections.items()}
    with scope.session(sess) as inside:
        assert inside is sess
        assert "run" in vars(sess)
        sess.run(net.train, feed)
    assert "run" not in vars(sess)
    assert vars(sess).keys() == before.keys()
    assert {k: list(v) for k, v in sess.graph._collections.items()} == collections
    sess.run(net.train, feed)
    assert list(fs.open(scope.path).series("loss").index) == [0]


def test_two_scopes_record_the_same_session(at, tools, tmp_path):
    sess, net, feed, scope = at
    other = fs.Scope(tmp_path / "other", tools.everything(), every=2)
    with scope.session(sess), other.session(sess):
        for _ in range(4):
            sess.run([net.train, net.loss], feed)
    one, two = fs.open(scope.path), fs.open(other.path)
    assert list(one.series("loss").index) == [0, 1, 2, 3]
    assert list(two.series("loss").index) == [0, 2]
    np.testing.assert_array_equal(one.array("activations/hidden", 2), two.array("activations/hidden", 2))
    assert "run" not in vars(sess)


def test_changing_a_returned_array_does_not_change_the_run(at):
    sess, net, feed, scope = at
    x = feed[net.x]
    original = x.copy()
    with scope.session(sess):
        logits = sess.run([net.train, net.logits], feed)[1]
        kept = logits.copy()
        logits[:] = 0
        x[:] = 7
    run = fs.open(scope.path)
    np.testing.assert_array_equal(run.array("predictions", 0), kept)
    np.testing.assert_array_equal(run.array("inputs", 0), original)


def test_an_error_of_the_user_is_raised_and_ends_the_run_as_failed(at):
    sess, net, feed, scope = at
    with pytest.raises(tf.errors.InvalidArgumentError), scope.session(sess):
        sess.run(net.train, feed)
        sess.run(net.train, {net.x: feed[net.x]})  # no labels
    run = fs.open(scope.path)
    assert run.status == "failed"
    assert run.ended_by.startswith("InvalidArgumentError")
    assert list(run.series("loss").index) == [0]


@pytest.mark.parametrize("fetches", [None, "nothing:0", 3])
def test_a_call_that_tensorflow_refuses_raises_the_same_error(at, fetches):
    sess, _, feed, scope = at
    with pytest.raises((TypeError, ValueError)) as plain:
        sess.run(fetches, feed)
    with scope.session(sess), pytest.raises(type(plain.value)) as watched:
        sess.run(fetches, feed)
    assert str(watched.value) == str(plain.value)


def test_an_error_of_fitscope_does_not_reach_the_user(at, monkeypatch):
    sess, net, feed, scope = at
    from fitscope.capture.sessions.reading import Reading

    monkeypatch.setattr(Reading, "asked", property(lambda self: {"bad": object()}))
    with pytest.warns(FitscopeWarning), scope.session(sess):
        for _ in range(3):
            assert len(sess.run([net.train, net.loss], feed)) == 2
    assert sess.run("global_step:0") == 3
    assert fs.open(scope.path).errors_total >= 1


def test_a_run_that_does_not_train_is_not_a_step(at):
    sess, net, feed, scope = at
    with scope.session(sess):
        sess.run(tf1.trainable_variables())
        sess.run(net.train, feed)
        sess.run([gradient for gradient, _ in net.pairs], feed)
        sess.run(net.train, feed)
    assert list(fs.open(scope.path).series("loss").index) == [0, 1]


def test_steps_continue_from_the_global_step_of_the_graph(at, tools, tmp_path):
    sess, net, feed, scope = at
    for _ in range(5):
        sess.run(net.train, feed)
    with scope.session(sess):
        sess.run(net.train, feed)
    with scope.session(sess):  # the same run goes on
        sess.run(net.train, feed)
    run = fs.open(scope.path)
    assert list(run.series("loss").index) == [5, 6]
    assert len(run.attempts) == 2


# ---- what is refused, and what is said -------------------------------------------------------------------------


def test_a_pattern_that_matches_no_layer_of_a_graph_is_an_error(at, tmp_path):
    sess, *_ = at
    with (
        pytest.raises(WatchError, match="Did you mean 'hidden'"),
        fs.Scope(tmp_path, fs.activations("hiden")).session(sess),
    ):
        pass
    with (
        pytest.raises(WatchError, match="'conv\\*'"),
        fs.Scope(tmp_path, fs.activations("conv*")).session(sess),
    ):
        pass
    assert "run" not in vars(sess)


def test_layers_of_a_graph_are_selected_by_glob_operation_and_tensor(at, tmp_path):
    sess, net, feed, _ = at
    watch = [
        fs.activations("hid*"),
        fs.activations("hidden/Relu:0"),
        fs.activations(net.logits),
        fs.activations("*/MatMul:0"),
    ]
    scope = fs.Scope(tmp_path / "n", [*watch, fs.gradients("head"), fs.weights("head")], every=1)
    with scope.session(sess):
        sess.run(net.train, feed)
    assert set(fs.open(scope.path).sites) == {
        "activations/hidden", "activations/hidden/Relu", "activations/head/BiasAdd", "activations/hidden/MatMul",
        "activations/head/MatMul", "gradients/head", "weights/head/kernel", "weights/head/bias",
    }  # fmt: skip


def test_selecting_a_graph_layer_by_class_is_an_error(at, tmp_path):
    sess, *_ = at
    with (
        pytest.raises(WatchError, match="no classes of layers"),
        fs.Scope(tmp_path, fs.activations(dict)).session(sess),
    ):
        pass


def test_a_tensor_inside_a_loop_is_refused(tools, tmp_path):
    net = tools.classifier()
    tf1.disable_control_flow_v2()
    out = tf1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.tanh(a, name="inner")), [0, net.hidden])
    assert out[1].shape[-1] == 8
    with tools.session() as sess:
        with (
            pytest.raises(WatchError, match="inside a loop"),
            fs.Scope(tmp_path, fs.activations("while/inner:0")).session(sess),
        ):
            pass
        sess.run(tf1.global_variables_initializer())


def test_a_tensor_that_the_run_does_not_compute_is_named(at, tmp_path):
    sess, net, feed, _ = at
    other = tf1.placeholder(tf.float32, [None, 5], name="other")
    tower = tf.nn.relu(tf.matmul(other, tf1.trainable_variables()[0]), name="tower")
    scope = fs.Scope(
        tmp_path / "n", [fs.activations(tower), fs.activations("probabilities"), fs.loss()], every=1
    )
    with scope.session(sess):
        sess.run(net.train, feed)
    run = fs.open(scope.path)
    assert "does not compute" in run.unseen["activations/tower"]
    assert "activations/probabilities" in run.sites  # a softmax of what it does compute


def test_a_finalized_graph_is_recorded(tools, tmp_path):
    """What can be fetched as it is, is; what would have to be added is named."""
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.graph.finalize()
        scope = fs.Scope(
            tmp_path,
            [fs.activations(), fs.activations("hidden/BiasAdd:0"), fs.loss()],
            every=1,
            reduce="step",
        )
        with scope.session(sess):
            sess.run(net.train, {net.x: x, net.y: y})
    run = fs.open(tmp_path)
    assert {"activations/hidden", "activations/head", "loss"} <= set(run.sites)
    assert "finalized" in run.unseen["activations/hidden/BiasAdd"]


def test_a_closed_or_wrong_session_is_refused(tools, tmp_path):
    tools.classifier()
    sess = tools.session()
    sess.close()
    scope = fs.Scope(tmp_path)
    for wrong, words in ((sess, "one that is closed"), ("session", "str"), (None, "NoneType")):
        with pytest.raises(ModelError, match=words), scope.session(wrong):
            pass


def test_a_session_closed_inside_the_block_ends_the_run_as_failed(at):
    sess, net, feed, scope = at
    with pytest.raises(RuntimeError, match="closed Session"), scope.session(sess):
        sess.run(net.train, feed)
        sess.close()
        sess.run(net.train, feed)
    assert fs.open(scope.path).status == "failed"


def test_a_graph_without_a_training_step_is_an_error(tmp_path, tools):
    tf1.placeholder(tf.float32, [None], name="x")
    with (
        tools.session() as sess,
        pytest.raises(ModelError, match="training step"),
        fs.Scope(tmp_path).session(sess),
    ):
        pass


def test_roles_can_be_given_as_tensors_of_the_graph(tools, tmp_path):
    """A hand-written update, a loss that no one could guess the parts of."""
    x, y = tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(tf.float32, [None, 1], name="y")
    out = tools.dense(x, 1, "out")
    loss = tf.reduce_mean(tf.abs(tf.maximum(out, y) - tf.minimum(out, y)))
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables)
    train = tf.group([v.assign_sub(0.1 * g) for v, g in zip(variables, gradients, strict=True)], name="train")
    said = {
        "loss": loss, "predictions": out, "targets": "y", "inputs": x, "train_op": train,
        "grads_and_vars": list(zip(gradients, variables, strict=True)),
    }  # fmt: skip
    scope = fs.Scope(tmp_path, tools.everything(), every=1)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(4, 1)).astype("f")
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess, **said):
            sess.run(train, {x: a, y: b})
    run = fs.open(tmp_path)
    np.testing.assert_array_equal(run.array("targets", 0), b)
    np.testing.assert_allclose(
        run.array("updates/out/kernel", 0),
        -0.1 * run.array("weight_gradients/out/kernel", 0),
        rtol=1e-4,
        atol=1e-7,
    )
    assert dict(run.unseen) == {}
    with (
        tools.session() as sess,
        pytest.raises(WatchError, match="`loss` to name a tensor"),
        fs.Scope(tmp_path).session(sess, train_op=train, loss="los"),
    ):
        pass


def test_a_session_keeps_to_the_budget(at, tmp_path):
    """Captured steps are timed against plain ones, as in `fit`."""
    sess, net, feed, _ = at
    scope = fs.Scope(tmp_path / "paced", identity="trust")  # a proof is not what a captured step costs
    with scope.session(sess):
        for _ in range(60):
            sess.run([net.train, net.loss], feed)
            while not scope._recordings.newest.recorder._transport.ready:  # before that nothing is timed
                time.sleep(0.01)
    run = fs.open(tmp_path / "paced")
    assert run.errors == []
    budget = run.overhead["budget"]
    assert budget["cost"] is not None
    assert list(run.series("loss").index)[:2] == [0, budget["decisions"][0]["every"]]
