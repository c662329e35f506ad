"""`fs.layers.BatchChange`: the change from the previous training batch, in models of every kind."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from fitscope.capture.tap import listening

from .layer_models import BACKEND, EACH_MODE, FIT, exported, numpy


@pytest.fixture
def data():
    """52 samples: seven batches of 8, the last of them with 4."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(52, 5)).astype("float32"), rng.normal(size=(52, 2)).astype("float32")


def batches_of(x):
    return [x[i : i + 8] for i in range(0, len(x), 8)]


# ---- BatchChange -------------------------------------------------------------------------------------


def changes(batches, previous=None):
    """The reference: each batch minus the one before, in the rows that both have."""
    for batch in batches:
        change = np.zeros_like(batch)
        if previous is not None:
            both = min(len(batch), len(previous))
            change[:both] = batch[:both] - previous[:both]
        yield change, 0 if previous is None else min(len(batch), len(previous))
        previous = batch


def changing(output: str, **compile_) -> keras.Model:
    keras.utils.set_random_seed(0)
    change = fs.layers.BatchChange(output, batch_size=8, name="change")
    model = keras.Sequential([layers.Input((5,)), change, layers.Dense(2, name="last")])
    model.compile("sgd", "mse", **compile_)
    return model


@EACH_MODE
@pytest.mark.parametrize("reset", [False, True], ids=["goes on", "reset"])
def test_the_change_over_two_epochs(mode, reset, data, tmp_path):
    model = changing("change", **mode)
    watch = [fs.activations("change", keep="tensor"), fs.taps(keep="tensor")]
    scope = fs.Scope(tmp_path, watch, every=1)
    callbacks = [scope, *([fs.layers.ResetBatchChange()] if reset else [])]
    validation = (data[0][:20] + 7, data[1][:20])  # a pass that does not train leaves the state alone
    model.fit(*data, callbacks=callbacks, epochs=2, validation_data=validation, **FIT)
    once = batches_of(data[0])
    wanted = [*changes(once), *changes(once)] if reset else list(changes([*once, *once]))
    run = fs.open(tmp_path)
    assert len(wanted) == 14
    for step, (change, _) in enumerate(wanted):
        np.testing.assert_array_equal(run.array("activations/change", step), change)
        np.testing.assert_array_equal(run.array("taps/change", step), change)
    layer = model.get_layer("change")
    np.testing.assert_array_equal(numpy(layer.previous)[:4], once[-1])
    assert int(layer.rows) == 4
    assert layer.trainable_weights == []


@EACH_MODE
@pytest.mark.parametrize("output", ["input", "change"])
def test_mean_and_max_of_the_change(mode, output, data):
    model = changing(output, **mode)
    layer = model.get_layer("change")
    x, y = data
    both = [*zip(batches_of(x), batches_of(y), strict=True)]
    order = [
        0,
        1,
        2,
        6,
        3,
        4,
        5,
    ]  # the smaller one in the middle: what it lacks is not compared with an older batch
    for i, (change, rows) in zip(order, changes([both[i][0] for i in order]), strict=True):
        model.train_on_batch(*both[i])
        model.evaluate(x[:8], y[:8], verbose=0)
        size = np.abs(change[:rows]) if rows else np.zeros(1)
        np.testing.assert_allclose(float(layer.mean_change), size.mean(), rtol=1e-6)
        assert float(layer.max_change) == size.max()
    layer.reset()
    model.train_on_batch(*both[0])
    assert float(layer.mean_change) == float(layer.max_change) == 0


@EACH_MODE
def test_a_batch_change_layer_can_return_its_input(mode, data, tmp_path):
    """Weights as with no such layer, and the change is there to see."""
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([layers.Input((5,)), layers.Dense(2, name="last")])
    plain.compile("sgd", "mse", **mode)
    model = changing("input", **mode)
    scope = fs.Scope(tmp_path, fs.taps(keep="tensor"), every=1)
    plain.fit(*data, epochs=2, **FIT)
    model.fit(*data, epochs=2, callbacks=[scope], **FIT)
    once = batches_of(data[0])
    for step, (change, _) in enumerate(changes([*once, *once])):
        np.testing.assert_array_equal(fs.open(tmp_path).array("taps/change", step), change)
    for a, b in zip(plain.get_layer("last").weights, model.get_layer("last").weights, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b))
    np.testing.assert_array_equal(plain.predict(data[0], verbose=0), model.predict(data[0], verbose=0))


def test_the_tap_records_the_change(data):
    layer = fs.layers.BatchChange(batch_size=8, name="change")
    seen = []
    with listening(lambda name, value: seen.append((name, numpy(value)))):
        for batch in batches_of(data[0]):
            np.testing.assert_array_equal(numpy(layer(batch, training=True)), batch)
            layer(batch + 1)  # not training: nothing to see, nothing kept
    assert [name for name, _ in seen] == ["change"] * 7
    for (_, given), (wanted, _) in zip(seen, changes(batches_of(data[0])), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_inference_compares_with_the_newest_training_batch(data):
    x, y = data
    model = changing("change")
    before = model.predict(x[:8], verbose=0)
    kernel, bias = (numpy(w).copy() for w in model.get_layer("last").weights)
    np.testing.assert_array_equal(before, np.tile(bias, (8, 1)))  # nothing to compare with: no change
    model.fit(x, y, **FIT)
    kernel, bias = (numpy(w) for w in model.get_layer("last").weights)
    change = x[:20].copy()
    change[:4] -= x[48:]
    change[4:] = 0  # the newest batch had four rows
    for _ in range(2):  # and stays the newest
        given = model.predict(x[:20], batch_size=20, verbose=0)
        np.testing.assert_allclose(given, change @ kernel + bias, rtol=1e-5, atol=1e-6)


@EACH_MODE
def test_gradients_flow_through_the_current_input_only(mode, data, tmp_path):
    keras.utils.set_random_seed(0)
    dense = layers.Dense(2, use_bias=False, name="dense")
    model = keras.Sequential(
        [layers.Input((5,)), dense, fs.layers.BatchChange("change", batch_size=8, name="change")]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", **mode)
    kept = {"keep": "tensor"}
    watch = [fs.weights("dense", **kept), fs.weight_gradients("dense", **kept)]
    model.fit(*data, callbacks=[fs.Scope(tmp_path, watch, every=1)], **FIT)
    run = fs.open(tmp_path)
    previous = None
    for step, (x, y) in enumerate(zip(*map(batches_of, data), strict=True)):
        now = x @ run.array("weights/dense/kernel", step)
        [*_, (change, rows)] = changes([now] if previous is None else [previous, now])
        error = 2 * (change - y) / y.size
        error[rows:] = 0  # a constant zero
        np.testing.assert_allclose(
            run.array("weight_gradients/dense/kernel", step), x.T @ error, rtol=1e-4, atol=1e-6
        )
        previous = now


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [
        ("float16", "float32"),
        ("float16", "mixed_float16"),
        ("float16", "float16"),
        ("float32", "mixed_float16"),
        ("bfloat16", "mixed_bfloat16"),
        ("int32", "float32"),
        ("uint8", "mixed_float16"),
    ],
)
def test_changes_keep_their_precision_in_every_dtype(dtype, policy, data):
    whole = not keras.backend.is_float_dtype(dtype)
    batches = [ops.cast(batch * 50 + 100 if whole else batch, dtype) for batch in batches_of(data[0])]
    in_float32 = [numpy(ops.cast(batch, "float32")) for batch in batches]
    wanted = [ops.cast(change, "float32" if whole else dtype) for change, _ in changes(in_float32)]
    given = fs.layers.BatchChange("change", batch_size=8, dtype=policy)
    handed_on = fs.layers.BatchChange("input", batch_size=8, dtype=policy)
    for batch, change in zip(batches, wanted, strict=True):
        result = given(batch, training=True)
        assert result.dtype == change.dtype
        np.testing.assert_array_equal(numpy(ops.cast(result, "float32")), numpy(ops.cast(change, "float32")))
        assert handed_on(batch, training=True) is batch
    assert given(layers.Input((5,), dtype=dtype)).dtype == ("float32" if whole else dtype)
    np.testing.assert_allclose(
        float(handed_on.mean_change), np.abs(in_float32[-1] - in_float32[-2][:4]).mean(), rtol=1e-5
    )


@EACH_MODE
def test_a_batch_change_works_in_a_mixed_precision_model(mode, data, tmp_path):
    x, y = data
    policy = "mixed_bfloat16" if BACKEND == "torch" else "mixed_float16"
    model = keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(3, name="dense", dtype=policy),
            fs.layers.BatchChange("change", batch_size=8, name="change", dtype=policy),
            layers.Dense(2, name="last", dtype="float32"),
        ]
    )
    model.compile("sgd", "mse", **mode)
    watch = fs.activations("dense", "change", keep="tensor")
    model.fit(x, y, callbacks=[fs.Scope(tmp_path, watch, every=1)], **FIT)
    run = fs.open(tmp_path)
    dense = [np.asarray(run.array("activations/dense", step), "float32") for step in range(7)]
    for step, (change, _) in enumerate(changes(dense)):
        given = np.asarray(run.array("activations/change", step), "float32")
        np.testing.assert_allclose(given, change, rtol=1e-2, atol=1e-2)


def test_masks_pass_through_a_batch_change_layer():
    inputs = layers.Input((6,), dtype="int32")
    embedded = layers.Embedding(5, 4, mask_zero=True)(inputs)
    model = keras.Model(
        inputs, layers.GlobalAveragePooling1D()(fs.layers.BatchChange(batch_size=8)(embedded))
    )
    given = model.predict(np.array([[1, 2, 0, 0, 0, 0]]), verbose=0)
    np.testing.assert_allclose(given[0], numpy(model.layers[1].embeddings)[[1, 2]].mean(0), rtol=1e-6)


@pytest.mark.parametrize("output", ["input", "change"])
def test_a_batch_change_continues_after_saving_and_loading(output, data, tmp_path):
    x, y = data
    model = changing(output)
    model.fit(x, y, **FIT)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "data.npz", x=x, y=y, wanted=model.predict(x, verbose=0))
    code = f"""
        import keras, numpy as np, fitscope.layers
        model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
        data = np.load({str(tmp_path / "data.npz")!r})
        np.testing.assert_array_equal(model.predict(data["x"], verbose=0), data["wanted"])
        layer = model.get_layer("change")
        assert (layer.gives, layer.batch_size) == ({output!r}, 8)
        model.train_on_batch(data["x"][:8], data["y"][:8])
        print(float(layer.mean_change))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = np.abs(x[:4] - x[48:]).mean()
    np.testing.assert_allclose(float(done.stdout.split()[-1]), wanted, rtol=1e-6)
    clone = keras.models.clone_model(model)
    clone.compile("sgd", "mse")
    clone.train_on_batch(x[:8], y[:8])
    assert float(clone.get_layer("change").mean_change) == 0  # a clone begins anew


@pytest.mark.parametrize("output", ["input", "change"])
def test_a_model_with_a_batch_change_is_exported(output, data, tmp_path):
    model = changing(output)
    model.fit(*data, **FIT)
    serve, sizes = exported(model, tmp_path)
    for rows in sizes:
        x = data[0][:rows]
        wanted = model.predict(x, batch_size=20, verbose=0)
        np.testing.assert_allclose(serve(x), wanted, rtol=1e-5, atol=1e-6)


def test_the_batch_size_is_taken_from_a_model_that_has_one(data):
    inputs = layers.Input(batch_shape=(8, 5))
    model = keras.Model(inputs, fs.layers.BatchChange(name="change")(inputs))
    assert tuple(model.get_layer("change").previous.shape) == (8, 5)
    with pytest.raises(
        fs.ModelError, match=r"'change' to know how many rows .* Write BatchChange\(batch_size=32\)"
    ):
        fs.layers.BatchChange(name="change")(layers.Input((5,)))


@EACH_MODE
def test_a_batch_with_too_many_rows(mode, data):
    model = changing("input", **mode)
    x, y = data
    if BACKEND == "tensorflow" and "run_eagerly" not in mode:
        # The step is traced for any number of rows, so that TensorFlow finds out, while it runs.
        with pytest.raises(Exception, match="change_got_a_batch_of_more_than_8_rows"):
            model.fit(x, y, **{**FIT, "batch_size": 16})
        return
    with pytest.raises(fs.ModelError, match=r"'change' to be given at most 8 rows. Received: a batch of 16"):
        model.fit(x, y, **{**FIT, "batch_size": 16})
    layer = fs.layers.BatchChange(name="change")
    layer(x[:4], training=True)
    with pytest.raises(fs.ModelError, match=r"at most 4 rows, as many as its first batch had"):
        layer(x[:8], training=True)


def test_bad_input_to_a_batch_change_is_an_error(data):
    x, _ = data
    layer = fs.layers.BatchChange(batch_size=8, name="change")
    layer(x[:8], training=True)
    for other in (x[:8, :3], x[:8, None]):
        with pytest.raises(fs.ModelError, match=r"'change' to be given rows of shape \(5,\)"):
            layer(other, training=True)
    np.testing.assert_array_equal(numpy(layer.previous), x[:8])
    with pytest.raises(
        fs.ModelError, match=r"rows of one shape. Received: an input of shape \(None, None, 4\)"
    ):
        fs.layers.BatchChange(batch_size=8)(layers.Input((None, 4)))
    with pytest.raises(fs.ModelError, match="to be given one tensor"):
        fs.layers.BatchChange(batch_size=8)([layers.Input((4,)), layers.Input((4,))])
    with pytest.raises(fs.WatchError, match=r"`output`. Received: 'chnge'. Did you mean 'change'"):
        fs.layers.BatchChange("chnge")
    for size in (0, -1, 2.5, "8"):
        with pytest.raises(fs.WatchError, match="`batch_size` to be a number of rows"):
            fs.layers.BatchChange(batch_size=size)


def test_a_batch_change_works_in_models_that_the_first_step_builds(data):
    """The callback meets a layer that has no state yet, and a subclassed model."""

    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.change = fs.layers.BatchChange("change", batch_size=8)
            self.dense = layers.Dense(2)

        def call(self, x, training=None):
            return self.dense(self.change(x, training=training))

    model = Late()
    model.compile("sgd", "mse")
    model.fit(*data, epochs=2, callbacks=[fs.layers.ResetBatchChange()], **FIT)
    *_, (last, rows) = changes(batches_of(data[0]))
    np.testing.assert_allclose(float(model.change.mean_change), np.abs(last[:rows]).mean(), rtol=1e-6)
