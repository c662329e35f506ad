"""Legacy Keras with eager execution off: arrays, generators, sample weights, shuffled validations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras import layers
from tf_keras.src import backend

import fitscope as fs
from fitscope.errors import WatchError

pytestmark = pytest.mark.tf1
tf1 = tf.compat.v1
ON = ("train", "validation")


@pytest.fixture(autouse=True)
def graph():
    """Keras has a graph of its own for each test."""
    yield
    backend.clear_session()


@pytest.fixture
def xy() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(24, 5)).astype("float32"), rng.integers(0, 3, 24)


def small(optimizer: Any = "sgd") -> Any:
    backend.clear_session()
    tf1.set_random_seed(5)
    np.random.seed(5)
    config = tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    backend.set_session(tf1.Session(config=config))
    model = tf_keras.Sequential(
        [
            layers.InputLayer((5,)), layers.Dense(8, activation="relu", name="first"), layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="drop"), layers.Dense(3, activation="softmax", name="last"),
        ]
    )  # fmt: skip
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def everything() -> list[Any]:
    both = {"keep": "both"}
    return [
        fs.activations(**both), fs.gradients(**both), fs.weights(**both), fs.weight_gradients(**both), fs.updates(**both),
        fs.loss(), fs.inputs(**both), fs.targets(**both), fs.predictions(**both),
    ]  # fmt: skip


def arrays(x: Any, y: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "batch_size": 8, "shuffle": False}


def generator(x: Any, y: Any) -> dict[str, Any]:
    def rows() -> Any:
        while True:
            for i in range(0, 24, 8):
                yield x[i : i + 8], y[i : i + 8]

    return {"x": rows(), "steps_per_epoch": 3}


def weighted(x: Any, y: Any) -> dict[str, Any]:
    def rows() -> Any:
        while True:
            for i in range(0, 24, 8):
                yield x[i : i + 8], y[i : i + 8], np.linspace(0.1, 1, 8)

    return {"x": rows(), "steps_per_epoch": 3}


def sample_weight(x: Any, y: Any) -> dict[str, Any]:
    return {**arrays(x, y), "sample_weight": np.linspace(0.1, 1, 24)}


def dataset(x: Any, y: Any) -> dict[str, Any]:
    with backend.get_graph().as_default():
        return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(8), "epochs": 2, "steps_per_epoch": 3}


def test_local_gradients_in_graph_mode_are_listed_as_unseen(xy, tmp_path):
    scope = fs.Scope(tmp_path, fs.weight_gradients("last", local=True), 1)
    small().fit(callbacks=[scope.legacy()], verbose=0, **arrays(*xy))
    run = fs.open(tmp_path)
    assert "is the only one" in run.unseen["weight_gradients/last/kernel/local"]
    assert "weight_gradients/last/kernel" in run.sites


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_epoch_end"])
def test_an_exception_in_a_callback_ends_the_run_as_failed(xy, tmp_path, hook):
    def throw(*_):
        raise ZeroDivisionError

    stop = tf_keras.callbacks.Callback()
    setattr(stop, hook, throw)
    scope = fs.Scope(tmp_path, everything(), 1)
    with pytest.raises(ZeroDivisionError):
        small().fit(callbacks=[scope.legacy(), stop], verbose=0, **arrays(*xy))
    scope.close()
    run = fs.open(tmp_path)
    assert (run.status, run.ended_by) == ("failed", "ZeroDivisionError")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("data", [arrays, generator, weighted, sample_weight])
def test_values_are_those_of_the_step_and_training_is_identical(xy, tmp_path, data, every):
    plain = small()
    history = plain.fit(**{"epochs": 2, "verbose": 0, **data(*xy)}).history
    expected = plain.get_weights()
    model = small()
    scope = fs.Scope(tmp_path, everything(), every)
    seen = []

    class Look(tf_keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(self.model.get_weights())

        def on_train_batch_end(self, batch, logs=None):
            seen[-1] = (seen[-1], self.model.get_weights(), logs["loss"])

    mine = model.fit(callbacks=[scope.legacy(), Look()], **{"epochs": 2, "verbose": 0, **data(*xy)}).history
    assert mine == history
    for a, b in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert run.errors == []
    # Keras takes the loss from what goes into the softmax; and reference variables change while a copy would be read.
    assert set(run.unseen) <= {"gradients/last", "gradients/first"}
    assert "no gradient" in run.unseen["gradients/last"]
    assert list(run.series("loss").index) == list(range(0, 6, every))
    for step in range(0, 6, every):
        before, after, loss = seen[step]
        assert run.series("loss").loc[step] == pytest.approx(loss, rel=1e-6)
        x, y = run.array("inputs", step), run.array("targets", step).ravel().astype(int)
        np.testing.assert_array_equal(x, xy[0][step % 3 * 8 :][:8])
        np.testing.assert_array_equal(y, xy[1][step % 3 * 8 :][:8])
        first = np.maximum(x @ before[0] + before[1], 0)
        np.testing.assert_allclose(run.array("activations/first", step), first, rtol=1e-4, atol=1e-6)
        norm, drop = run.array("activations/norm", step), run.array("activations/drop", step)
        np.testing.assert_allclose(norm.mean(0), before[3], atol=1e-5)  # as in training, not in inference
        assert set(np.unique(drop[drop != 0] / norm[drop != 0]).round(3)) <= {2.0}
        logits = drop @ before[6] + before[7]
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        np.testing.assert_allclose(
            run.array("predictions", step), shifted / shifted.sum(1, keepdims=True), rtol=1e-4
        )
        for name, i in (("first/kernel", 0), ("last/kernel", 6), ("norm/moving_mean", 4)):
            np.testing.assert_array_equal(run.array(f"weights/{name}", step), before[i])
            np.testing.assert_array_equal(run.array(f"updates/{name}", step), after[i] - before[i])
        np.testing.assert_allclose(
            run.array("weight_gradients/last/kernel", step),
            (before[6] - after[6]) / 0.01,
            rtol=1e-2,
            atol=2e-5,
        )
        np.testing.assert_allclose(  # the gradient that flows through dropout
            run.array("weight_gradients/last/kernel", step),
            drop.T @ _d_logits(run, step, y, data),
            rtol=1e-3,
            atol=1e-6,
        )
    assert "gradients/drop" in run.sites


def _d_logits(run: Any, step: int, y: np.ndarray, data: Any) -> np.ndarray:
    one = (run.array("predictions", step) - np.eye(3)[y]) / len(y)
    if data is weighted:
        one = one * np.linspace(0.1, 1, 8)[:, None]
    if data is sample_weight:
        one = one * np.linspace(0.1, 1, 24)[step % 3 * 8 :][:8, None]
    return one


def test_validation_rows_are_shuffled_and_their_labels_come_along(xy, tmp_path):
    x, y = xy
    plain, model = small("adam"), None
    history = plain.fit(x, y, epochs=3, batch_size=8, verbose=0, validation_data=(x[:20], y[:20])).history
    expected = plain.get_weights()
    model = small("adam")
    scope = fs.Scope(
        tmp_path, [fs.predictions(), fs.targets(), fs.inputs(keep="tensor"), fs.loss()], every=1, on=ON
    )
    weights = []

    class Look(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights.append(self.model.predict(x[:20]))

    mine = model.fit(
        x, y, epochs=3, batch_size=8, verbose=0, validation_data=(x[:20], y[:20]), callbacks=[scope.legacy()]
    ).history
    assert mine == history
    for a, b in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    run = fs.open(tmp_path)
    assert run.errors == []
    order = {row.tobytes(): i for i, row in enumerate(x)}
    for epoch, step in enumerate((3, 6, 9)):
        inputs = np.asarray(run.tensor("validation/inputs").sel(step=step)).reshape(-1, 5)
        inputs = inputs[~np.isnan(inputs).any(1)]
        rows = [order[row.tobytes()] for row in inputs.astype("float32")]
        assert sorted(rows) == list(range(20))
        targets = np.asarray(run.tensor("validation/targets").sel(step=step), "float64").ravel()
        predictions = np.asarray(run.tensor("validation/predictions").sel(step=step)).reshape(-1, 3)
        targets, predictions = targets[: len(rows)].astype(int), predictions[: len(rows)]
        np.testing.assert_array_equal(targets, y[rows])
        losses = -np.log(predictions[np.arange(20), targets])
        assert losses.mean() == pytest.approx(history["val_loss"][epoch], rel=1e-5)


def test_nothing_is_left_on_a_model_in_graph_mode(xy, tmp_path):
    plain = small()
    plain.fit(*xy, epochs=1, verbose=0, validation_data=xy)
    own = set(vars(plain))
    model = small()
    scope = fs.Scope(tmp_path, everything(), 1, on=ON)
    model.fit(*xy, epochs=1, verbose=0, validation_data=xy, callbacks=[scope.legacy()])
    assert set(vars(model)) == own
    for function in (model.train_function, model.test_function):
        assert type(function) is backend.GraphExecutionFunction
        assert function.fetches == []
        assert function.fetch_callbacks == {}
    model.fit(*xy, epochs=1, verbose=0)
    assert list(fs.open(tmp_path).series("loss").index) == [0]


def test_shared_and_nested_layers_are_recorded_in_graph_mode(xy, tmp_path):
    backend.clear_session()
    inner = tf_keras.Sequential([layers.InputLayer((5,)), layers.Dense(5, name="deep")], name="inner")
    given = layers.Input((5,))
    shared = layers.Dense(5, name="shared")
    out = layers.Dense(3, activation="softmax", name="last")(shared(shared(inner(given))))
    model = tf_keras.Model(given, out)
    model.compile("sgd", "sparse_categorical_crossentropy")
    scope = fs.Scope(
        tmp_path, [fs.activations(keep="both"), fs.weights(keep="both"), fs.inputs(keep="both")], every=1
    )
    model.fit(*xy, epochs=1, batch_size=8, verbose=0, callbacks=[scope.legacy()])
    run = fs.open(tmp_path)

    def dense(x, name):
        return x @ run.array(f"weights/{name}/kernel", 1) + run.array(f"weights/{name}/bias", 1)

    deep = dense(run.array("inputs", 1), "inner/deep")
    np.testing.assert_allclose(run.array("activations/inner/deep", 1), deep, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        run.array("activations/shared", 1), dense(deep, "shared"), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        run.array("activations/shared#2", 1), dense(dense(deep, "shared"), "shared"), rtol=1e-4, atol=1e-5
    )


def test_layers_are_selected_by_class_object_and_name(xy, tmp_path):
    model = small()
    watch = [fs.activations(layers.Dropout), fs.activations(model.layers[0]), fs.activations("la*")]
    model.fit(*xy, epochs=1, verbose=0, callbacks=[fs.Scope(tmp_path, watch, 1).legacy()])
    assert set(fs.open(tmp_path).sites) == {"activations/drop", "activations/first", "activations/last"}
    with pytest.raises(WatchError, match="Did you mean 'first'"):
        model.fit(
            *xy, epochs=1, verbose=0, callbacks=[fs.Scope(tmp_path, fs.activations("frist"), 1).legacy()]
        )


def test_running_a_layer_output_in_a_callback_fails(xy):
    """Why a recipe is needed: the output of a layer cannot just be run."""

    class Output(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            backend.get_session().run(self.model.layers[-1].output)

    with pytest.raises(tf.errors.InvalidArgumentError, match="must feed a value"):
        small().fit(*xy, verbose=0, callbacks=[Output()])


# ---- legacy Keras in the user's session ---------------------------------------------------------------------------


def on_batches(scope: fs.Scope | None) -> tuple[list[float], Any]:
    """Five batches, the first of them before the block, and a validation."""
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(8, 5)).astype("float32"), rng.integers(0, 3, 8)) for _ in range(6)]
    model = small("adam")
    with backend.get_session() as sess:
        losses = [model.train_on_batch(*data[0])[0]]

        def loop() -> None:
            losses.extend(model.train_on_batch(x, y)[0] for x, y in data[1:5])
            losses.append(model.test_on_batch(*data[5])[0])

        if scope is None:
            loop()
        else:
            with scope.session(sess):
                loop()
            losses.append(model.train_on_batch(*data[0]))
            assert type(model.train_function._callable_fn).__name__ == "_Callable"
            losses.pop()
    return losses, data


def test_train_on_batch_is_recorded_in_graph_mode(tmp_path):
    """Its step is built by then, and so is the callable that it keeps for it."""
    plain, data = on_batches(None)
    watch = [
        fs.loss(),
        fs.activations(keep="both"),
        fs.weight_gradients(),
        fs.inputs(keep="both"),
        fs.predictions(),
        fs.targets(),
    ]
    losses, _ = on_batches(fs.Scope(tmp_path, watch, every=1, on=("train", "validation")))
    assert losses == plain
    run = fs.open(tmp_path)
    assert run.errors == []
    assert len(run.series("loss")) == 4
    np.testing.assert_allclose(run.series("loss"), plain[1:5], rtol=1e-6)
    first = run.series("loss").index[0]
    np.testing.assert_array_equal(run.array("inputs", first), data[1][0])
    np.testing.assert_array_equal(run.array("targets", first).ravel(), data[1][1])
    assert {"activations/first", "weight_gradients/last/kernel", "predictions"} <= set(run.sites)
    assert {"validation/predictions", "validation/targets", "validation/loss"} <= set(run.sites)
    assert run.series("validation/loss").iloc[0] == pytest.approx(plain[5], rel=1e-6)


@pytest.mark.parametrize("identity", ["proven", "twin"])
def test_a_keras_step_in_the_users_session_is_proven(tmp_path, identity):
    """The callable that fetches more is compared with the one that Keras made, or looks on beside it."""

    def losses(scope: fs.Scope | None) -> list[float]:
        backend.clear_session()
        tf1.set_random_seed(5)
        config = tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        rng = np.random.default_rng(1)
        with tf1.Session(config=config) as sess:
            backend.set_session(sess)
            model = tf_keras.Sequential([layers.InputLayer((5,)), layers.Dense(1, name="out")])
            model.compile("adam", "mse")
            batches = [(rng.normal(size=(8, 5)), rng.normal(size=(8, 1))) for _ in range(4)]
            found = [model.train_on_batch(*batches[0])]
            with scope.session(sess) if scope is not None else nullcontext():
                found += [model.train_on_batch(*batch) for batch in batches[1:]]
        return found

    plain = losses(None)
    assert (
        losses(fs.Scope(tmp_path, [fs.loss(), fs.activations(), fs.targets()], every=1, identity=identity))
        == plain
    )
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run.identity == identity, run.identity.why
    np.testing.assert_allclose(run.series("loss"), plain[1:], rtol=1e-6)
    assert {"activations/out", "targets"} <= set(run.sites)
