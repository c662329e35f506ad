"""Activity, classes and features are what NumPy makes of the recorded tensors, on every backend and wherever they are counted."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import assert_complete
from watching import EACH_MODE

WHOLE = {"keep": "both"}
BATCH = 8


def watches():
    return [
        fs.activations(**WHOLE), fs.inputs(**WHOLE), fs.targets(**WHOLE), fs.predictions(**WHOLE),
        fs.activity(), fs.data(), fs.loss(),
    ]  # fmt: skip


def active(values: np.ndarray, activation: str) -> np.ndarray:
    """By hand: whether each value is one at which a unit still reacts."""
    values = values.astype("float32")
    one = np.float32
    return {
        "relu": ~(values <= 0),
        "leaky_relu": ~(values <= 0),
        "elu": ~(values <= 0),
        "sigmoid": ~((values <= one(0.01)) | (values >= one(0.99))),
        "tanh": ~(np.abs(values) >= one(0.99)),
        "softmax": ~((values <= one(1e-3)) | (values >= one(1 - 1e-3))),
    }[activation]


def window(batches: list[np.ndarray]) -> np.ndarray:
    """By hand: the newest batches that hold 256 samples, or 16 batches."""
    kept: list[np.ndarray] = []
    for batch in reversed(batches):
        if len(kept) == 16 or sum(map(len, kept)) >= 256:
            break
        kept.append(batch)
    return np.concatenate(kept)


def row(run, site: str, step: int):
    table = run.stats
    found = table[(table.site == site) & (table.step == step)]
    assert len(found) == 1, site
    return found.iloc[0]


def check(run, site: str, step: int, expected: np.ndarray) -> None:
    """A site has the statistics of this vector, to the last digit of float32."""
    expected = np.asarray(expected, "float32")
    found = row(run, site, step)
    assert found["count"] == expected.size
    assert found["zeros"] == np.count_nonzero(expected == 0)
    for name, value in (
        ("mean", expected.mean(dtype="float64")),
        ("min", expected.min()),
        ("max", expected.max()),
    ):
        np.testing.assert_allclose(
            found[name], value, rtol=1e-6, atol=1e-7, err_msg=f"{site} {name} at {step}"
        )


ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "softmax")


def images() -> keras.Model:
    keras.utils.set_random_seed(1)
    wide = keras.initializers.RandomNormal(stddev=2.0)  # so that units get stuck
    x = keras.Input((4, 4, 2))
    y = layers.Conv2D(5, 3, activation="relu", name="relu", kernel_initializer=wide)(x)
    y = layers.Flatten()(y)
    y = layers.LeakyReLU(name="leaky_relu")(layers.Dense(6, name="linear")(y))
    for name in ("elu", "sigmoid", "tanh"):
        y = layers.Dense(6, activation=name, name=name, kernel_initializer=wide)(y)
    return keras.Model(x, layers.Dense(3, activation="softmax", name="softmax", kernel_initializer=wide)(y))


@EACH_MODE
@pytest.mark.parametrize("reduce", ["host", "step"])
def test_evidence_equals_what_numpy_computes_from_the_tensors(tmp_path, mode, reduce):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(44, 4, 4, 2)).astype("float32")
    y = rng.integers(0, 3, 44).astype("int32")
    model = images()
    model.compile("sgd", "sparse_categorical_crossentropy", **mode)
    scope = fs.Scope(tmp_path, watches(), every=1, reduce=reduce)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run)
    inputs: list[np.ndarray] = []
    outputs: dict[str, list[np.ndarray]] = {name: [] for name in ACTIVATIONS}
    for step in range(12):
        inputs.append(run.array("inputs", step))
        for name in ACTIVATIONS:
            outputs[name].append(run.array(f"activations/{name}", step))
            seen = active(window(outputs[name]), name)
            check(run, f"activity/{name}", step, seen.mean(axis=tuple(range(seen.ndim - 1))))
        features = np.concatenate(inputs).reshape(-1, 2).astype("float64")
        check(run, "features/inputs", step, features.std(axis=0))
        check(run, "features/mean", step, np.abs(features.mean(axis=0)))
        check(run, "features/range", step, np.ptp(features, axis=0))
        assert run.series("features/duplicates").loc[step] == 0
        targets, predictions = run.array("targets", step), run.array("predictions", step)
        check(run, "classes/targets", step, np.bincount(targets.ravel(), minlength=3) / len(targets))
        check(
            run,
            "classes/predictions",
            step,
            np.bincount(predictions.argmax(1), minlength=3) / len(predictions),
        )
        shares = predictions / predictions.sum(axis=1, keepdims=True, dtype="float64")  # as Keras has them
        given = shares[np.arange(len(targets)), targets.ravel().astype(int)]
        check(run, "classes/log_loss", step, -np.log(given))
    assert "activity/linear" not in run.sites


@pytest.mark.parametrize("from_logits", [True, False])
def test_one_output_unit_gives_two_classes_by_probability_or_logit(tmp_path, from_logits):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)).astype("float32"), rng.integers(0, 2, (16, 1)).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [layers.Input((3,)), layers.Dense(1, activation=None if from_logits else "sigmoid")]
    )
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=from_logits))
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[fs.Scope(tmp_path, watches(), every=1)])
    run = fs.open(tmp_path)
    high = (run.array("predictions", 0) > (0.0 if from_logits else 0.5)).mean()
    assert 0 < high < 1
    check(run, "classes/predictions", 0, np.array([1 - high, high]))
    check(run, "classes/targets", 0, np.array([1 - y.mean(), y.mean()]))
    assert run.series("classes/log_loss", "mean").loc[0] == pytest.approx(run.series("loss").loc[0], rel=1e-5)


def test_one_hot_targets_and_duplicate_and_constant_features_are_recorded(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 6)).astype("float32")
    x[:, 4] = x[:, 1]
    x[:, 5] = x[:, 1]
    x[:, 2] = 3.0
    x[:, 3] = 3.0
    labels = rng.integers(0, 4, 24)
    model = keras.Sequential([layers.Input((6,)), layers.Dense(4, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy")
    one_hot = np.eye(4, dtype="float32")[labels]
    model.fit(x, one_hot, batch_size=8, shuffle=False, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    run = fs.open(tmp_path)
    for step in range(3):
        rows = slice(8 * step, 8 * step + 8)
        check(run, "classes/targets", step, np.bincount(labels[rows], minlength=4) / 8)
        assert run.series("features/duplicates").loc[step] == 3
        assert row(run, "features/range", step)["zeros"] == 2
    assert_complete(run)


def test_inputs_and_outputs_are_named_and_a_regression_gives_a_reason(tmp_path):
    rng = np.random.default_rng(0)
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    both = layers.Concatenate()([left, right])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    model = keras.Model([left, right], [kind, layers.Dense(1, name="size")(both)])
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    x = {
        "left": rng.normal(size=(8, 3)).astype("float32"),
        "right": rng.normal(size=(8, 2)).astype("float32"),
    }
    y = [rng.integers(0, 3, 8), rng.normal(size=(8, 1)).astype("float32")]
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    run = fs.open(tmp_path)
    assert run.errors == []
    check(run, "features/range/left", 0, np.ptp(x["left"], axis=0))
    check(run, "features/range/right", 0, np.ptp(x["right"], axis=0))
    check(run, "classes/targets/kind", 0, np.bincount(y[0], minlength=3) / 8)
    assert (
        "classes of" in run.unseen["classes/targets/size"]
        or "not one of classes" in run.unseen["classes/targets/size"]
    )
    assert_complete(run)


def test_text_ids_and_regression_give_a_reason_and_no_error(tmp_path):
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [layers.Input((5,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    x, y = rng.integers(0, 20, (16, 5)).astype("int32"), rng.normal(size=(16, 1)).astype("float32")
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    run = fs.open(tmp_path)
    assert run.errors == []
    assert "embedding" in run.unseen["features/inputs"]
    assert "classes" in run.unseen["classes/targets"]
    assert_complete(run)


def test_validation_has_its_own_activity_and_data(tmp_path, xy):
    x, _ = xy
    y = np.arange(22) % 2
    model = keras.Sequential(
        [layers.Input((5,)), layers.Dense(4, activation="relu", name="relu"), layers.Dense(2)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    scope = fs.Scope(tmp_path, every=1, on=("train", "validation"))
    model.fit(x, y, batch_size=8, verbose=0, validation_data=(x[:4], y[:4]), callbacks=[scope])
    run = fs.open(tmp_path)
    assert {"validation/activity/relu", "validation/classes/targets", "validation/features/range"} <= set(
        run.sites
    )
    assert_complete(run, ("train", "validation"))


def test_recurrent_layers_and_wrappers_have_activity_of_their_outputs_alone(tmp_path):
    rng = np.random.default_rng(0)
    x = keras.Input((5, 3))
    y, *_ = layers.LSTM(4, return_sequences=True, return_state=True, name="lstm")(x)
    y = layers.TimeDistributed(layers.Dense(4, activation="relu"), name="each")(y)
    model = keras.Model(x, layers.Bidirectional(layers.GRU(2), name="both")(y))
    model.compile("sgd", "mse")
    data = rng.normal(size=(8, 5, 3)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    watch = [fs.activations(**WHOLE), fs.activity()]
    model.fit(*data, batch_size=8, verbose=0, callbacks=[fs.Scope(tmp_path, watch, every=1)])
    run = fs.open(tmp_path)
    assert run.errors == []
    names = {site for site in run.sites if site.startswith("activity/")}
    assert {"activity/lstm[0]", "activity/each", "activity/both"} <= names
    assert not {"activity/lstm[1]", "activity/lstm[2]"} & names
    seen = active(run.array("activations/each", 0), "relu").mean(axis=(0, 1))
    check(run, "activity/each", 0, seen)
    assert_complete(run)


def test_a_layer_without_units_that_can_be_stuck_is_an_error_before_the_first_step(tmp_path, small, xy):
    with pytest.raises(fs.WatchError, match="ReLU, sigmoid, tanh, softmax or similar"):
        small().fit(*xy, verbose=0, callbacks=[fs.Scope(tmp_path, fs.activity("first"))])
