"""Every way to run a session is seen, or named: callables, parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs
from fitscope.errors import FitscopeWarning

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1


def piped(tools: Any) -> tuple[Any, Any]:
    """A training step that is fed by a pipeline, and its loss."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(32, 5)).astype("f"), rng.normal(size=(32, 1)).astype("f")
    x, y = tf1.data.make_one_shot_iterator(
        tf.data.Dataset.from_tensor_slices(rows).batch(8).repeat()
    ).get_next()
    loss = tf.reduce_mean(tf.square(tools.dense(x, 1, "out") - y))
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss


@pytest.mark.parametrize("form", ["operation", "tensor and operation", "with options"])
def test_a_callable_without_feeds_is_recorded(tools, tmp_path, form):
    train, loss = piped(tools)
    scope = fs.Scope(tmp_path, [fs.loss(), fs.activations()], every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            if form == "operation":
                call = sess.make_callable(train)
                given = [call(), call()]
                assert given == [None, None]
            elif form == "tensor and operation":
                call = sess.make_callable([loss, train])
                given = [call()[0], call()[0]]
            else:
                call = sess.make_callable([loss, train], accept_options=True)
                metadata = tf1.RunMetadata()
                options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
                given = [call(options=options, run_metadata=metadata)[0], call()[0]]
                assert metadata.step_stats.dev_stats
        call()  # after the block it is what it would have been
    run = fs.open(tmp_path)
    assert list(run.series("loss").index) == [0, 1]
    if form != "operation":
        assert list(run.series("loss")) == given


def test_partial_runs_are_counted_and_listed_as_unseen(tools, tmp_path):
    net = tools.classifier()
    with tf1.control_dependencies([net.train]):
        after = tf.identity(net.loss)  # `partial_run` takes no operations
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, [fs.loss()], every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            for _ in range(2):
                handle = sess.partial_run_setup([net.logits, after], [net.x, net.y])
                logits = sess.partial_run(handle, net.logits, {net.x: x})
                assert logits.shape == (8, 3)
                assert sess.partial_run(handle, after, {net.y: y}).shape == ()
            sess.run(net.train, {net.x: x, net.y: y})
    run = fs.open(tmp_path)
    assert list(run.series("loss").index) == [2]
    assert "partial_run" in run.unseen["steps"]


def test_a_session_without_a_training_step_is_reported(tools, tmp_path):
    net = tools.classifier()
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with pytest.warns(FitscopeWarning, match="recorded nothing"), fs.Scope(tmp_path).session(sess):
            sess.run(tf1.trainable_variables())
    assert net.loss is not None


def test_session_methods_are_restored_after_the_block(tools, tmp_path):
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        before = set(vars(sess))
        with fs.Scope(tmp_path, every=1).session(sess):
            assert {"run", "partial_run", "make_callable"} <= set(vars(sess))
            sess.run(net.train, {net.x: x, net.y: y})
        assert set(vars(sess)) == before
