"""What is recorded is what the step computed, from the weights before its update: against a reference in NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1


def reference(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The classifier forwards and backwards, by hand, in float64."""
    w1, b1, w2, b2 = (w.astype("float64") for w in weights)
    pre = x @ w1 + b1
    hidden = np.maximum(pre, 0)
    logits = hidden @ w2 + b2
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    loss = -np.log(probabilities[np.arange(len(y)), y]).mean()
    d_logits = (probabilities - np.eye(3)[y]) / len(y)
    d_hidden = d_logits @ w2.T
    d_pre = d_hidden * (pre > 0)
    return {
        "activations/hidden": hidden, "activations/head": logits, "predictions": logits, "loss": loss, "inputs": x,
        "targets": y, "gradients/hidden": d_hidden, "gradients/head": d_logits,
        "weight_gradients/hidden/kernel": x.T @ d_pre, "weight_gradients/hidden/bias": d_pre.sum(0),
        "weight_gradients/head/kernel": hidden.T @ d_logits, "weight_gradients/head/bias": d_logits.sum(0),
        "weights/hidden/kernel": w1, "weights/hidden/bias": b1, "weights/head/kernel": w2, "weights/head/bias": b2,
    }  # fmt: skip


@pytest.mark.parametrize("reduce", ["host", "step"])
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_every_site_has_the_value_before_the_update(record, tools, resource, reduce):
    done = record(tools.classifier("sgd", resource=resource), scope={"reduce": reduce})
    assert done.names == ["hidden/kernel", "hidden/bias", "head/kernel", "head/bias"]
    for step, (x, y) in enumerate(done.data):
        expected = reference(done.weights[step], x, y)
        after = reference(done.weights[step + 1], x, y)
        for site, value in expected.items():
            if site == "loss":
                assert done.run.series("loss").loc[step] == pytest.approx(value, rel=1e-5)
                continue
            np.testing.assert_allclose(
                done.at(site, step), value, rtol=2e-4, atol=2e-6, err_msg=f"{site} {step}"
            )
        assert np.abs(done.at("activations/hidden", step) - after["activations/hidden"]).max() > 1e-4
        for name, new, old in zip(done.names, done.weights[step + 1], done.weights[step], strict=True):
            np.testing.assert_array_equal(done.at(f"weights/{name}", step), old)
            np.testing.assert_array_equal(done.at(f"updates/{name}", step), new - old)
    assert set(done.run.sites) == {*expected, *(f"updates/{name}" for name in done.names)}
    assert dict(done.run.unseen) == {}


def test_stats_in_the_graph_and_on_the_host_are_equal(record, tools, tmp_path):
    found = {}
    for reduce in ("host", "step"):
        with tf.Graph().as_default():
            net = tools.classifier("sgd")
            watch = [fs.activations(), fs.gradients(), fs.weight_gradients(), fs.loss()]
            found[reduce] = record(net, watch=watch, scope={"reduce": reduce}).run
    kinds = {site.partition("/")[0] for site in found["host"].sites}
    assert kinds == {"activations", "gradients", "weight_gradients", "loss"}
    assert found["host"].sites == found["step"].sites
    for site in found["host"].sites:
        for stat in ("mean", "std", "min", "max", "rms"):
            np.testing.assert_allclose(
                found["host"].series(site, stat), found["step"].series(site, stat), rtol=2e-5, atol=1e-7
            )
        for stat in ("count", "zeros", "negatives", "nans", "infs"):
            assert list(found["host"].series(site, stat)) == list(found["step"].series(site, stat))
        np.testing.assert_array_equal(found["host"].histogram(site), found["step"].histogram(site))


def test_in_graph_statistics_are_one_fetch(record, tools, graph):
    done = record(
        tools.classifier(),
        watch=[fs.activations(), fs.gradients(), fs.weight_gradients()],
        scope={"reduce": "step"},
    )
    call = next(c for c in done.scope._recordings.newest._calls.values() if c.kind == "train")
    (reading,) = call._readings.values()
    assert reading.fetches == {}
    assert len(reading.pack.names) == 8
    assert reading.pack.fetch.op.name.startswith("fitscope/")


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop", "adagrad"])
def test_recorded_gradients_are_those_that_were_applied(record, tools, optimizer, clip):
    """The update, computed by hand from the recorded gradients, is the update that happened."""
    done = record(
        tools.classifier(optimizer, clip=clip),
        watch=[fs.weight_gradients(keep="both"), fs.updates(keep="both")],
    )
    for name in done.names:
        slots = {"m": 0.0, "v": 0.0, "rms": 1.0, "sum": 0.1, "momentum": 0.0}
        for step in range(len(done.data)):
            gradient = done.at(f"weight_gradients/{name}", step).astype("float64")
            if clip is not None:
                assert np.linalg.norm(gradient) <= clip * 1.0001
            expected = update(optimizer, gradient, slots, step + 1)
            np.testing.assert_allclose(done.at(f"updates/{name}", step), expected, rtol=2e-3, atol=3e-7)


def update(optimizer: str, g: np.ndarray, s: dict, t: int) -> np.ndarray:
    """What each optimizer does with a gradient, as its documentation says."""
    if optimizer == "sgd":
        return -0.5 * g
    if optimizer == "momentum":
        s["momentum"] = 0.9 * s["momentum"] + g
        return -0.1 * s["momentum"]
    if optimizer == "adagrad":
        s["sum"] = s["sum"] + g * g
        return -0.1 * g / np.sqrt(s["sum"])
    if optimizer == "rmsprop":
        s["rms"] = 0.9 * s["rms"] + 0.1 * g * g
        return -0.01 * g / np.sqrt(s["rms"] + 1e-10)
    s["m"], s["v"] = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g * g
    return -0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s["m"] / (np.sqrt(s["v"]) + 1e-8)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_gradients_of_an_embedding_are_whole(record, tools, optimizer, resource):
    """They come in slices; what is recorded is zero elsewhere. Adam has no kernel for them: there they go into its averages."""
    x, y = tf1.placeholder(tf.int64, [None, 3], name="x"), tf1.placeholder(tf.float32, [None, 2], name="y")
    with tf1.variable_scope("table", use_resource=resource):
        bag = tf.reduce_sum(tf.nn.embedding_lookup(tf1.get_variable("rows", [10, 4]), x), 1)
    loss = tf.reduce_mean(tf.square(tools.dense(bag, 2, "out") - y))
    made = tools.optimizers[optimizer]()
    pairs = made.compute_gradients(loss)
    net = SimpleNamespace(x=x, y=y, loss=loss, train=made.apply_gradients(pairs))
    rng = np.random.default_rng(0)
    data = [(rng.integers(0, 10, (4, 3)), rng.normal(size=(4, 2))) for _ in range(3)]
    done = record(net, data, watch=[fs.weight_gradients(keep="both"), fs.weights(keep="both")])
    for step, (ids, labels) in enumerate(data):
        table, w, b = (done.at(f"weights/{name}", step).astype("float64") for name in done.names)
        d_out = (table[ids].sum(1) @ w + b - labels) * 2 / labels.size
        expected = np.zeros_like(table)
        np.add.at(expected, ids, (d_out @ w.T)[:, None])
        np.testing.assert_allclose(
            done.at("weight_gradients/table/rows", step), expected, rtol=1e-4, atol=1e-6
        )


def test_a_gradient_that_cannot_be_read_from_the_update_is_named(record, tools):
    x, y = tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(tf.float32, [None, 1], name="y")
    loss = tf.reduce_mean(tf.square(tools.dense(x, 1, "out") - y))
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables)
    moved = [v.assign(v * tf.exp(-g)) for v, g in zip(variables, gradients, strict=True)]
    net = SimpleNamespace(x=x, y=y, loss=loss, train=tf.group(moved))
    done = record(net, [(np.ones((4, 5)), np.zeros((4, 1)))], watch=[fs.weight_gradients(), fs.loss()])
    assert "grads_and_vars" in done.run.unseen["weight_gradients/out/kernel"]


def test_local_gradients_of_a_session_are_listed_as_unseen(record, tools):
    done = record(tools.classifier("sgd"), watch=[fs.weight_gradients("head", local=True)])
    assert set(done.run.unseen) == {f"weight_gradients/head/{name}/local" for name in ("kernel", "bias")}
    assert "is the only one" in done.run.unseen["weight_gradients/head/kernel/local"]
    assert "weight_gradients/head/kernel" in done.run.sites


def test_a_variable_that_the_step_leaves_alone_has_no_gradient(record, tools):
    x, y = tf1.placeholder(tf.float32, [None, 5], name="x"), tf1.placeholder(tf.float32, [None, 1], name="y")
    loss = tf.reduce_mean(tf.square(tools.dense(tools.dense(x, 4, "frozen"), 1, "out") - y))
    made = tf1.train.AdamOptimizer()
    train = made.minimize(loss, var_list=[v for v in tf1.trainable_variables() if "out" in v.name])
    net = SimpleNamespace(x=x, y=y, loss=loss, train=train)
    done = record(net, [(np.ones((4, 5)), np.zeros((4, 1)))], watch=[fs.weight_gradients(), fs.loss()])
    assert "does not change it" in done.run.unseen["weight_gradients/frozen/kernel"]
    assert "weight_gradients/out/kernel" in done.run.sites


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_gradients_of_an_unrolled_cell_are_recorded(record, tools, resource):
    """The gradient of its kernel is the sum of as many products as there are steps in time."""
    x, y = (
        tf1.placeholder(tf.float32, [None, 30, 2], name="x"),
        tf1.placeholder(tf.float32, [None, 4], name="y"),
    )
    state = tf.zeros([tf.shape(x)[0], 4])
    with tf1.variable_scope("cell", use_resource=resource):
        kernel, bias = tf1.get_variable("kernel", [6, 4]), tf1.get_variable("bias", [4])
        for t in range(30):
            state = tf.tanh(tf.nn.bias_add(tf.matmul(tf.concat([x[:, t], state], 1), kernel), bias))
    loss = tf.reduce_mean(tf.square(state - y))
    train = tf1.train.GradientDescentOptimizer(0.5).minimize(loss)
    net = SimpleNamespace(x=x, y=y, loss=loss, train=train)
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(4, 30, 2)), rng.normal(size=(4, 4))) for _ in range(3)]
    done = record(net, data, watch=[fs.weight_gradients(keep="both"), fs.updates(keep="both")])
    assert dict(done.run.unseen) == {}
    for name in ("cell/kernel", "cell/bias"):
        gradient, moved = done.at(f"weight_gradients/{name}", 1), done.at(f"updates/{name}", 1)
        np.testing.assert_allclose(moved, -0.5 * gradient, rtol=1e-3, atol=1e-6)


def test_data_from_an_input_pipeline_is_that_of_the_step(record, tools, tmp_path):
    """A second run would draw the next batch."""
    rows = np.arange(40, dtype="float32").reshape(20, 2)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows.sum(1, keepdims=True))).batch(4)
    x, y = tf1.data.make_one_shot_iterator(dataset).get_next()
    loss = tf.reduce_mean(tf.square(tools.dense(x, 1, "out") - y))
    train = tf1.train.GradientDescentOptimizer(1e-5).minimize(loss)
    scope = fs.Scope(tmp_path, [fs.inputs(keep="tensor"), fs.targets(keep="tensor"), fs.loss()], every=1)
    losses = []
    with tools.session() as sess, scope.session(sess):
        sess.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                losses.append(sess.run([train, loss])[1])
    run = fs.open(tmp_path)
    assert len(losses) == 5
    assert run.status == "complete"
    np.testing.assert_array_equal(np.concatenate([run.array("inputs", s) for s in range(5)]), rows)
    np.testing.assert_array_equal(
        np.concatenate([run.array("targets", s) for s in range(5)]), rows.sum(1, keepdims=True)
    )
    np.testing.assert_array_equal(run.series("loss"), np.asarray(losses, "float64"))
