"""Sessions that TensorFlow makes itself, through a hook."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs
from fitscope.errors import ModelError, WatchError

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1

ONE = tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
MONITORED = {
    "MonitoredTrainingSession": lambda hooks, folder: tf1.train.MonitoredTrainingSession(
        hooks=hooks, config=ONE
    ),
    "MonitoredTrainingSession with checkpoints": lambda hooks, folder: tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=3, config=ONE
    ),
    "MonitoredSession": lambda hooks, folder: tf1.train.MonitoredSession(
        session_creator=tf1.train.ChiefSessionCreator(config=ONE), hooks=hooks
    ),
    "SingularMonitoredSession": lambda hooks, folder: tf1.train.SingularMonitoredSession(
        hooks=hooks, config=ONE
    ),
}


def trained(tools, make, folder, hook=None, data=None) -> tuple[list, list]:
    with tf.Graph().as_default():
        net = tools.classifier("adam", dropout=0.5)
        variables = tf1.trainable_variables()
        losses, weights = [], []
        with make([hook] if hook else [], folder) as sess:
            weights.append(sess.run(variables))
            for x, y in data or tools.batches():
                losses.append(sess.run([net.train, net.loss], {net.x: x, net.y: y})[1])
                weights.append(sess.run(variables))
        return losses, weights


@pytest.mark.parametrize("reduce", ["host", "step"])
@pytest.mark.parametrize("kind", list(MONITORED))
def test_values_are_those_of_the_step_and_training_is_identical(tools, tmp_path, kind, reduce):
    plain, plain_weights = trained(tools, MONITORED[kind], tmp_path / "a")
    watch = [*tools.everything(), fs.activations("hidden/BiasAdd:0")]  # that has to be added to the graph
    scope = fs.Scope(tmp_path / "runs", watch, every=1, reduce=reduce)
    losses, weights = trained(tools, MONITORED[kind], tmp_path / "b", scope.hook())
    assert losses == plain
    for a, b in zip(plain_weights[-1], weights[-1], strict=True):
        np.testing.assert_array_equal(a, b)
    run = fs.open(tmp_path / "runs")
    assert run.status == "complete"
    assert run.errors == []
    assert dict(run.unseen) == {}
    np.testing.assert_array_equal(run.series("loss"), np.asarray(losses, "float64"))
    for step, (x, _) in enumerate(tools.batches()):
        w, b = weights[step][:2]
        np.testing.assert_array_equal(run.array("weights/hidden/kernel", step), w)
        np.testing.assert_allclose(
            run.array("activations/hidden", step), np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-6
        )
        assert run.series("activations/hidden/BiasAdd", "mean").loc[step] == pytest.approx(
            (x @ w + b).mean(), rel=1e-3, abs=1e-5
        )


def test_statistics_are_in_the_graph_before_it_is_finalized(tools, tmp_path):
    scope = fs.Scope(tmp_path, [fs.activations(), fs.gradients()], every=1, reduce="step")
    trained(tools, MONITORED["MonitoredSession"], tmp_path, scope.hook())
    calls = [call for call in scope._recordings.newest._calls.values() if call.kind == "train"]
    reading = next(reading for call in calls[::-1] for reading in call._readings.values())
    assert reading.pack is not None
    assert reading.fetches == {}
    assert "activations/hidden" in fs.open(tmp_path).sites


def test_checkpoints_that_another_hook_saves_are_noted(tools, tmp_path):
    scope = fs.Scope(tmp_path / "runs", fs.loss(), every=1)
    trained(tools, MONITORED["MonitoredTrainingSession with checkpoints"], tmp_path / "c", scope.hook())
    noted = fs.open(tmp_path / "runs").checkpoints
    assert noted is not None
    steps = list(noted["step"])
    assert 6 in steps
    for path, step in zip(noted["path"], steps, strict=True):
        assert tf1.train.load_checkpoint(path).get_tensor("global_step") == step


def test_a_training_restored_from_a_checkpoint_continues_the_run(tools, tmp_path):
    for _ in range(2):
        scope = fs.Scope(tmp_path / "runs", fs.loss(), every=1)
        trained(tools, MONITORED["MonitoredTrainingSession with checkpoints"], tmp_path / "c", scope.hook())
    one, two = (fs.open(tmp_path / "runs", run=run.id) for run in fs.runs(tmp_path / "runs"))
    assert sorted([list(one.series("loss").index), list(two.series("loss").index)]) == [
        list(range(6)),
        list(range(6, 12)),
    ]


def test_a_lost_worker_continues_as_another_attempt(tools, tmp_path):
    """TensorFlow makes another session and goes on from the newest checkpoint: another attempt at the same run."""

    class Lose(tf1.train.SessionRunHook):
        lost = False

        def after_run(self, run_context, run_values):
            if run_context.session.run("global_step:0") == 5 and not self.lost:
                self.lost = True
                raise tf.errors.AbortedError(None, None, "lost")

    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path / "runs", fs.loss(), every=1)
    seen = 0
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path / "c"), hooks=[scope.hook(), Lose()], save_checkpoint_steps=2, config=ONE
    ) as sess:
        while sess.run("global_step:0") < 8:
            sess.run(net.train, {net.x: x, net.y: y})
            seen += 1
    run = fs.open(tmp_path / "runs")
    assert run.status == "complete"
    assert len(run.attempts) == 2
    assert list(run.series("loss").index) == list(range(8))
    assert seen > 8 - 1


def test_an_exception_ends_the_run_as_failed(tools, tmp_path):
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path / "runs", fs.loss(), every=1)
    with pytest.raises(ZeroDivisionError), tf1.train.MonitoredSession(hooks=[scope.hook()]) as sess:
        sess.run(net.train, {net.x: x, net.y: y})
        raise ZeroDivisionError
    run = fs.open(tmp_path / "runs")
    assert run.status == "failed"
    assert run.ended_by == "ZeroDivisionError"
    assert list(run.series("loss").index) == [0]


def test_the_session_has_its_own_methods_back(tools, tmp_path):
    tools.classifier()
    scope, raw = fs.Scope(tmp_path / "runs", fs.loss(), every=1), []

    class Look(tf1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            raw.append(session)

    with tf1.train.MonitoredSession(hooks=[Look(), scope.hook()]):
        assert {"run", "close"} <= set(vars(raw[0]))
    assert not {"run", "close"} & set(vars(raw[0]))


def test_a_wrong_watch_is_an_error_before_the_session_exists(tools, tmp_path):
    tools.classifier()
    scope = fs.Scope(tmp_path, fs.activations("hiden"))
    with (
        pytest.raises(WatchError, match="Did you mean 'hidden'"),
        tf1.train.MonitoredSession(hooks=[scope.hook()]),
    ):
        pass


def test_a_monitored_session_without_the_hook_is_an_error(tools, tmp_path):
    tools.classifier()
    scope = fs.Scope(tmp_path)
    with (
        tf1.train.MonitoredSession() as sess,
        pytest.raises(ModelError, match=r"scope\.hook"),
        scope.session(sess),
    ):
        pass
