"""Epochs, validations and checkpoints of a hand-written loop."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
ON = ("train", "validation")


def loop(
    tools, scope, *, said=None, epochs=3, validate=True, tell=None, folder=None, fetch=None, dropout=0.5
):
    """Three epochs of four batches, a validation of two batches after each. Returns what the validations really were."""
    net = tools.classifier("adam", dropout=dropout)
    train, valid = tools.batches(4), tools.batches(6)[4:]
    seen = []
    saver = tf1.train.Saver(max_to_keep=10) if folder is not None else None
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess, **(said or {})):
            for epoch in range(epochs):
                for x, y in train:
                    sess.run(net.train, {net.x: x, net.y: y})
                if tell == "before":
                    scope.epoch_end()
                if validate:
                    for x, y in valid:
                        fetches = [net.loss, net.logits] if fetch is None else fetch(net)
                        seen.append((epoch, y, sess.run(fetches, {net.x: x, net.y: y})))
                if saver is not None:
                    saver.save(sess, str(folder / "model"), global_step=epoch)
                if tell == "after":
                    scope.epoch_end()
    return seen


@pytest.mark.parametrize("tell", [None, "before", "after"])
def test_validation_is_recorded_from_the_runs_of_the_user(tools, tmp_path, tell):
    watch = [fs.predictions(), fs.targets(), fs.loss(), fs.activations("hidden")]
    scope = fs.Scope(tmp_path, watch, every=2, on=ON)
    seen = loop(tools, scope, tell=tell)
    run = fs.open(tmp_path)
    rows = run.frame("validation/loss").reset_index()
    assert list(rows["step"]) == [4, 4, 8, 8, 12, 12]
    assert list(rows["epoch"]) == [epoch for epoch, _, _ in seen]
    assert list(rows["batch"]) == [0, 1] * 3
    np.testing.assert_array_equal(rows["mean"], [float(loss) for _, _, (loss, _) in seen])
    for epoch in range(3):
        predictions = run.tensor("validation/predictions").sel(step=4 * epoch + 4)
        targets = run.tensor("validation/targets").sel(step=4 * epoch + 4)
        mine = [(y, logits) for e, y, (_, logits) in seen if e == epoch]
        np.testing.assert_array_equal(
            np.asarray(predictions).reshape(-1, 3), np.concatenate([p for _, p in mine])
        )
        np.testing.assert_array_equal(np.asarray(targets).ravel(), np.concatenate([y for y, _ in mine]))
    assert "validation/activations/hidden" in run.sites
    epochs = run.frame("loss")
    assert list(epochs["epoch"]) == [0, 0, 1, 1, 2, 2]
    assert list(epochs["batch"]) == [0, 2] * 3


@pytest.mark.parametrize("tell", [None, "after"])
def test_the_last_batch_of_each_epoch(tools, tmp_path, tell):
    scope = fs.Scope(tmp_path, fs.loss(), every=fs.epochs())
    loop(tools, scope, tell=tell)
    assert list(fs.open(tmp_path).series("loss").index) == [3, 7, 11]


def test_without_a_validation_the_user_marks_the_end_of_epochs(tools, tmp_path):
    scope = fs.Scope(tmp_path, fs.loss(), every=1)
    loop(tools, scope, validate=False, tell="after")
    assert list(fs.open(tmp_path).frame("loss")["epoch"]) == [0] * 4 + [1] * 4 + [2] * 4


def test_validation_is_not_recorded_unless_it_is_asked_for(tools, tmp_path):
    loop(tools, fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1))
    assert set(fs.open(tmp_path).sites) == {"loss", "predictions"}


def test_probabilities_as_predictions_also_where_only_the_loss_is_run(tools, tmp_path):
    scope = fs.Scope(tmp_path, [fs.predictions(), fs.targets()], every=1, on=ON)
    loop(tools, scope, said={"predictions": "probabilities"}, fetch=lambda net: net.loss)
    run = fs.open(tmp_path)
    for site in ("predictions", "validation/predictions"):
        np.testing.assert_allclose(np.asarray(run.tensor(site)).sum(-1), 1, rtol=1e-5)


def test_a_run_without_labels_is_a_prediction(tools, tmp_path):
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, [fs.predictions(), fs.loss()], every=1, on=ON)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            sess.run(net.train, {net.x: x, net.y: y})
            logits = sess.run(net.logits, {net.x: x})
    run = fs.open(tmp_path)
    assert set(run.sites) == {"loss", "predictions", "predict/predictions"}
    np.testing.assert_array_equal(run.array("predict/predictions", 1), logits)


def test_checkpoints_are_noted_and_give_the_recorded_predictions_back(tools, tmp_path):
    """Restored into a fresh graph, each gives bit for bit the predictions that were recorded with it."""
    scope = fs.Scope(tmp_path / "runs", [fs.predictions(), fs.loss()], every=1, on=ON)
    loop(tools, scope, folder=tmp_path, dropout=0)
    run = fs.open(tmp_path / "runs")
    noted = run.checkpoints
    assert list(noted["step"]) == [4, 8, 12]
    assert list(noted["epoch"]) == [0, 1, 2]
    valid = tools.batches(6)[4:]
    for path, step in zip(noted["path"], noted["step"], strict=True):
        assert run.checkpoint(step) == path
        with tf.Graph().as_default():
            net = tools.classifier("adam")
            with tools.session() as sess:
                tf1.train.Saver().restore(sess, path)
                again = [sess.run([net.loss, net.logits], {net.x: x, net.y: y})[1] for x, y in valid]
        recorded = np.asarray(run.tensor("validation/predictions").sel(step=step))
        np.testing.assert_array_equal(recorded.reshape(-1, 3), np.concatenate(again))


def test_scope_batch_holds_the_newest_batch_of_every_phase(tools, tmp_path):
    scope = fs.Scope(tmp_path, [fs.predictions()], every=1, on=ON)
    seen = loop(tools, scope)
    assert scope.batch.step == 12
    assert scope.batch["predictions"].shape == (8, 3)
    np.testing.assert_array_equal(scope.batch["validation/predictions"], seen[-1][2][1])


def test_accumulating_gradients_is_not_a_validation(tools, tmp_path):
    """Runs that compute gradients and do not apply them end no epoch."""
    net = tools.classifier()
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=ON)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            for _ in range(3):
                sess.run([gradient for gradient, _ in net.pairs], {net.x: x, net.y: y})
                sess.run(net.train, {net.x: x, net.y: y})
    run = fs.open(tmp_path)
    assert list(run.frame("loss")["epoch"]) == [0, 0, 0]
    assert set(run.sites) == {"loss", "predictions"}


# ---- a look at the training batch is no validation ---------------------------------------------------------------


def looking(tools, scope, order, *, validate=(), every=1, slices=False):
    """Steps on batches that do not come again; the training batch is evaluated before or after the step, or both."""
    net = tools.classifier()
    data = tools.batches(10)
    (a, b) = tools.batches(12)[11]
    whole = [np.concatenate(part) for part in zip(*data, strict=True)]
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            for i, (x, y) in enumerate(data):
                feed = {net.x: x, net.y: y}
                again = (
                    {net.x: whole[0][8 * i : 8 * i + 8], net.y: whole[1][8 * i : 8 * i + 8]}
                    if slices
                    else feed
                )
                for what in order:
                    if what == "step":
                        sess.run(net.train, feed)
                    elif i % every == 0:
                        sess.run([net.loss, net.logits], again)
                if i in validate:
                    sess.run(net.loss, {net.x: a, net.y: b})
    return fs.open(scope.path)


@pytest.mark.parametrize("slices", [False, True], ids=["the same arrays", "other arrays"])
@pytest.mark.parametrize(
    "order", [("step", "look"), ("look", "step"), ("look", "step", "look")], ids="-".join
)
def test_evaluating_the_training_batch_does_not_end_the_epoch(tools, tmp_path, order, slices):
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=ON)
    run = looking(tools, scope, order, validate=(4, 9), slices=slices)
    frame = run.frame("loss")
    assert list(frame["epoch"]) == [0] * 5 + [1] * 5
    assert list(frame["batch"]) == [0, 1, 2, 3, 4] * 2
    passes = run.frame("validation/loss").reset_index()
    assert list(passes["step"]) == [5, 10]
    assert list(passes["batch"]) == [0, 0]
    assert list(passes["epoch"]) == [0, 1]
    assert dict(run.unseen) == {}


def test_evaluating_only_the_training_batch_is_reported(tools, tmp_path):
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=ON)
    run = looking(tools, scope, ("look", "step"), every=3)
    assert list(run.frame("loss")["epoch"]) == [0] * 10
    assert set(run.sites) == {"loss", "predictions"}
    assert "the batch that it trains on" in run.unseen["validation"]


def test_a_validation_on_a_training_batch_counts_as_validation(tools, tmp_path):
    """Also if the next epoch begins with that very batch."""
    net = tools.classifier()
    data = tools.batches(4)
    scope = fs.Scope(tmp_path, [fs.loss(), fs.predictions()], every=1, on=ON)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            for _ in range(3):
                for x, y in data:
                    sess.run(net.train, {net.x: x, net.y: y})
                sess.run(net.loss, {net.x: data[0][0], net.y: data[0][1]})
    run = fs.open(tmp_path)
    assert list(run.frame("loss")["epoch"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert list(run.frame("validation/loss")["epoch"]) == [0, 1, 2]


def test_each_of_two_train_ops_is_captured_even_if_one_is_rare(tools, tmp_path):
    """Every second step would be that of the same one."""
    net = tools.classifier()
    loss = tf.reduce_mean(tf.square(net.logits), name="other")
    other = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=tf1.trainable_variables("head"))
    x, y = tools.batches(1)[0]
    scope = fs.Scope(tmp_path, fs.loss(), every=2)
    with tools.session() as sess:
        sess.run(tf1.global_variables_initializer())
        with scope.session(sess):
            for _ in range(4):
                sess.run(net.train, {net.x: x, net.y: y})
                sess.run(other, {net.x: x})
    run = fs.open(tmp_path)
    assert list(run.series("loss/loss").index) == [0, 4]
    assert list(run.series("loss/other").index) == [1, 5]
