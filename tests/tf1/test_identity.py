"""`run.identity` of a session: proven in the run, a twin, or not provable and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs
from fitscope.capture.sessions import identity as module
from fitscope.errors import FitscopeWarning

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
ON = ("train", "validation")


def trained(tools: Any, scope: fs.Scope | None, steps: int = 14, **kwargs: Any) -> list[Any]:
    """Losses of all steps, of a validation, and all variables in the end."""
    with tf.Graph().as_default():
        net = tools.classifier("adam", **kwargs)
        seen = []
        with tools.session() as sess:
            sess.run(tf1.global_variables_initializer())

            def loop() -> None:
                for x, y in tools.batches(steps):
                    seen.append(sess.run([net.train, net.loss], {net.x: x, net.y: y})[1])
                x, y = tools.batches(steps + 1)[-1]
                seen.append(sess.run(net.loss, {net.x: x, net.y: y}))

            if scope is None:
                loop()
            else:
                with scope.session(sess):
                    loop()
            return seen + sess.run(tf1.global_variables())


def alike(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_a_step_that_only_writes_to_variables_is_proven(tools, tmp_path, resource):
    plain = trained(tools, None, resource=resource)
    scope = fs.Scope(tmp_path, tools.everything(), every=1, on=ON)
    alike(plain, trained(tools, scope, resource=resource))
    run = fs.open(tmp_path)
    assert run.identity == "proven"
    assert run.identity.passes["train"].steps == list(range(10))
    assert run.identity.passes["validation"] == "proven"
    assert run.errors == []
    assert run.overhead["proof_seconds"] > 0
    np.testing.assert_array_equal(run.series("loss"), np.asarray(plain[:14], "float64"))


def test_a_step_in_a_finalized_graph_is_proven(tools, tmp_path):
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, [fs.loss(), fs.activations()], every=1)
    with tf1.train.MonitoredSession(hooks=[scope.hook()]) as sess:
        for _ in range(3):
            sess.run(net.train, {net.x: x, net.y: y})
    assert fs.open(tmp_path).identity == "proven"


def test_a_step_with_random_numbers_is_not_provable(tools, tmp_path):
    plain = trained(tools, None, dropout=0.5)
    scope = fs.Scope(tmp_path, tools.everything(), every=1, on=ON)
    alike(plain, trained(tools, scope, dropout=0.5))
    found = fs.open(tmp_path).identity
    assert found == "not provable"
    assert "RandomUniform" in found.why


def test_a_proof_without_memory_for_a_copy_is_skipped(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "available", lambda: 1000)
    plain = trained(tools, None)
    alike(plain, trained(tools, fs.Scope(tmp_path, tools.everything(), every=1)))
    found = fs.open(tmp_path).identity
    assert found == "not provable"
    assert "memory" in found.why


def test_variables_on_a_parameter_server_are_not_restored(tools, tmp_path):
    """Others may write to them between the two runs."""
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    server = tf1.train.Server.create_local_server()
    scope = fs.Scope(tmp_path, fs.loss(), every=1)
    with tf1.Session(server.target) as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            sess.run(net.train, {net.x: x, net.y: y})
    found = fs.open(tmp_path).identity
    assert found == "not provable"
    assert "server" in found.why


@pytest.mark.parametrize("choice", ["twin", "trust"])
def test_the_identity_argument_of_a_session_is_followed(tools, tmp_path, choice):
    plain = trained(tools, None)
    scope = fs.Scope(tmp_path, tools.everything(), every=1, on=ON, identity=choice)
    alike(plain, trained(tools, scope))
    run = fs.open(tmp_path)
    assert run.identity == choice
    assert run.errors == []
    np.testing.assert_allclose(run.series("loss"), np.asarray(plain[:14], "float64"), rtol=1e-6)
    assert {"activations/hidden", "weight_gradients/head/kernel", "updates/head/kernel"} <= set(run.sites)


@pytest.mark.parametrize("repeats", [True, False], ids=["repeats itself", "does not"])
def test_if_the_programs_differ_the_users_program_takes_every_step(tools, tmp_path, monkeypatch, repeats):
    plain = trained(tools, None)
    calls = []

    def differs(one: Any, other: Any, where: str = "") -> str | None:
        calls.append(where)
        return "the loss differs" if len(calls) == 1 or not repeats else None

    monkeypatch.setattr(module, "_differs", differs)
    scope = fs.Scope(tmp_path, tools.everything(), every=1)
    alike(plain, trained(tools, scope))
    run = fs.open(tmp_path)
    assert run.identity == ("twin" if repeats else "not provable")
    assert "the loss differs" in run.identity.why
    np.testing.assert_allclose(run.series("loss"), np.asarray(plain[:14], "float64"), rtol=1e-6)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_proof_leaves_the_step_unchanged(tools, tmp_path, monkeypatch, error):
    """Interrupted or broken between the two runs: the variables are those of the user's own step."""
    from fitscope.capture.sessions import patch

    def broken(*_: Any) -> Any:
        raise error("in the middle")

    net = tools.classifier("adam")
    x, y = tools.batches(1)[0]
    feed = {net.x: x, net.y: y}
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        before = sess.run(tf1.global_variables())
        sess.run(net.train, feed)
        expected = sess.run(tf1.global_variables())
        for variable, value in zip(tf1.global_variables(), before, strict=True):
            variable.load(value, sess)
        monkeypatch.setattr(patch, "_both", broken)
        scope = fs.Scope(tmp_path, fs.loss(), every=1)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt), scope.session(sess):
                sess.run(net.train, feed)
        else:
            with pytest.warns(FitscopeWarning, match="in the middle"), scope.session(sess):
                sess.run(net.train, feed)
        alike(expected, sess.run(tf1.global_variables()))


def test_an_error_in_the_users_step_is_raised_once(tools, tmp_path):
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, fs.loss(), every=1)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError), scope.session(sess):
            sess.run(net.train, {net.x: x, net.y: y[:3]})
        assert sess.run("global_step:0") == 0
