"""`fs.layers.Tap`, `fs.with_taps` and `fs.layers.BatchChange`: ordinary layers, that train, save and load like any other.

Every value is compared with a few lines of NumPy.
"""

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

BACKEND = keras.backend.backend()
MODES = {
    "jax": [{"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}],
    "tensorflow": [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    "torch": [{"jit_compile": False}],
}[BACKEND]
EACH_MODE = pytest.mark.parametrize(
    "mode", MODES, ids=lambda mode: next(f"{name}={value}" for name, value in mode.items())
)
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


def numpy(value):
    return ops.convert_to_numpy(value)


def exported(model, folder):
    """The model as others run it, and the sizes of batch that it takes: from torch, Keras 3.15 exports one of a single row."""
    if BACKEND == "torch":
        import torch

        model.export(folder / "model.pt2", format="torch", verbose=False)
        served = torch.export.load(folder / "model.pt2").module()
        return lambda x: served(torch.tensor(x)).detach().numpy(), [1]
    import tensorflow as tf

    model.export(folder / "model", verbose=False)
    loaded = tf.saved_model.load(folder / "model")
    return lambda x: loaded.serve(x).numpy(), [1, 3, 20]


@pytest.fixture
def data():
    """52 samples: seven batches of 8, the last of them with 4."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(52, 5)).astype("float32"), rng.normal(size=(52, 2)).astype("float32")


def batches_of(x):
    return [x[i : i + 8] for i in range(0, len(x), 8)]


# ---- Tap ---------------------------------------------------------------------------------------------


class Nested(keras.Model):
    """A subclassed model, with a tap or without."""

    def __init__(self, tap: bool, **kwargs):
        super().__init__(**kwargs)
        self.first, self.last = layers.Dense(4, name="first"), layers.Dense(2, name="last")
        self.tap = fs.layers.Tap("between") if tap else layers.Identity(name="between")

    def call(self, x):
        return self.last(self.tap(self.first(x)))


def sequential(tap: bool) -> keras.Model:
    between = [fs.layers.Tap("between")] if tap else []
    parts = [layers.Dense(4, name="first"), layers.BatchNormalization(), *between, layers.Dropout(0.3)]
    return keras.Sequential([layers.Input((5,)), *parts, layers.ReLU(), layers.Dense(2, name="last")])


def functional(tap: bool) -> keras.Model:
    inputs = layers.Input((5,))
    x = layers.Dense(4, name="first")(inputs)
    skip = fs.layers.Tap("between")(x) if tap else x
    x = layers.Add()([layers.Activation("gelu")(layers.Dense(4)(skip)), skip])
    if tap:
        x = fs.layers.Tap("after")(x)
    return keras.Model(inputs, layers.Dense(2, name="last")(x))


def trained(model: keras.Model, data, **settings) -> list[np.ndarray]:
    model.compile("adam", "mse", **settings)
    history = model.fit(*data, **{**FIT, "epochs": 2}).history
    return [numpy(v) for v in (*model.variables, *model.optimizer.variables)] + [np.array(history["loss"])]


@EACH_MODE
@pytest.mark.parametrize("build", [sequential, functional, Nested], ids=lambda build: build.__name__)
def test_training_with_taps_is_bit_identical(build, mode, data):
    results = []
    for tap in (False, True):
        keras.utils.set_random_seed(0)
        results.append(trained(build(tap), data, **mode))
    for without, with_taps in zip(*results, strict=True):
        np.testing.assert_array_equal(without, with_taps)


def test_a_tap_shows_what_passes_it():
    seen = []
    x = ops.convert_to_tensor(np.ones((2, 3), "float32"))
    tap = fs.layers.Tap("here")
    assert tap(x) is x
    with listening(lambda name, value: seen.append((name, value))):
        assert tap(x) is x
        keras.Model(inputs := layers.Input((3,)), tap(inputs))  # making a model shows nothing
    assert [name for name, _ in seen] == ["here"]
    assert seen[0][1] is x


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16"])
def test_a_tap_leaves_the_dtype(dtype, policy):
    x = ops.cast(np.array([[0, 1, 1]]), dtype)
    given = fs.layers.Tap(dtype=policy)(x)
    assert keras.backend.standardize_dtype(given.dtype) == dtype
    assert np.array_equal(numpy(ops.cast(given, "float32")), [[0, 1, 1]])
    assert fs.layers.Tap(dtype=policy)(layers.Input((3,), dtype=dtype)).dtype == dtype


def test_a_tap_takes_any_structure():
    x = {"a": np.ones((2, 3), "float32"), "b": [np.zeros((2, 1), "int32"), (np.ones((2,), "float32"),)]}
    tensors = keras.tree.map_structure(ops.convert_to_tensor, x)
    given = fs.layers.Tap()(tensors)
    keras.tree.assert_same_structure(given, tensors)
    assert all(a is b for a, b in zip(keras.tree.flatten(given), keras.tree.flatten(tensors), strict=True))
    inputs = {"a": layers.Input((3,)), "b": layers.Input((2,), dtype="int32")}
    symbolic = fs.layers.Tap()(inputs)
    assert {k: (v.shape, v.dtype) for k, v in symbolic.items()} == {
        "a": ((None, 3), "float32"),
        "b": ((None, 2), "int32"),
    }


def test_masks_pass_a_tap():
    def build(tap: bool) -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = layers.Input((6,), dtype="int32")
        x = layers.Embedding(5, 4, mask_zero=True)(inputs)
        x = fs.layers.Tap()(x) if tap else x
        return keras.Model(inputs, layers.GlobalAveragePooling1D()(x))

    tokens = np.array([[1, 2, 0, 0, 0, 0], [3, 1, 4, 2, 0, 0]])
    masked = build(True).predict(tokens, verbose=0)
    np.testing.assert_array_equal(masked, build(False).predict(tokens, verbose=0))
    table = numpy(build(True).layers[1].embeddings)
    np.testing.assert_allclose(masked[0], table[[1, 2]].mean(0), rtol=1e-6)  # without the mask: of all six


@pytest.mark.parametrize("build", [sequential, functional], ids=lambda build: build.__name__)
def test_a_model_with_taps_is_saved_loaded_and_cloned(build, data, tmp_path):
    model = build(True)
    x, _ = data
    wanted = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "wanted.npy", wanted)
    code = f"""
        import keras, numpy as np, fitscope.layers
        model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
        assert isinstance(model.get_layer("between"), fitscope.layers.Tap)
        given = model.predict(np.load({str(tmp_path / "x.npy")!r}), verbose=0)
        np.testing.assert_array_equal(given, np.load({str(tmp_path / "wanted.npy")!r}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert isinstance(clone.get_layer("between"), fs.layers.Tap)
    np.testing.assert_array_equal(clone.predict(x, verbose=0), wanted)


def test_a_model_with_taps_is_exported(data, tmp_path):
    model = functional(True)
    serve, sizes = exported(model, tmp_path)
    for rows in sizes:
        x = data[0][:rows]
        np.testing.assert_allclose(serve(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


# ---- with_taps ---------------------------------------------------------------------------------------


def branched() -> tuple[keras.Model, dict[str, np.ndarray]]:
    """Two inputs, two outputs, a layer called twice, a model inside, an operation that is no layer."""
    keras.utils.set_random_seed(0)
    left, right = layers.Input((5,), name="left"), layers.Input((5,), name="right")
    shared = layers.Dense(4, name="shared")
    inner = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, name="deep"), layers.Dense(4, name="shared")], name="inner"
    )
    a, b = layers.Dropout(0.5, name="drop")(inner(shared(left))), shared(right)
    outputs = [
        layers.Dense(1, name="one")(layers.Add(name="sum")([a, b])),
        layers.Dense(2, name="two")(a * b),
    ]
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(12, 5)).astype("float32") for name in ("left", "right")}
    return keras.Model({"left": left, "right": right}, outputs), x


def test_with_taps_shares_the_layers_and_predicts_the_same():
    model, x = branched()
    before = [numpy(v).copy() for v in model.variables]
    wanted = model.predict(x, verbose=0)
    tapped = fs.with_taps(model, "*")
    taps = [part.name for part in tapped._flatten_layers() if isinstance(part, fs.layers.Tap)]
    assert sorted(taps) == [
        "deep_tap", "drop_tap", "inner_shared_tap", "inner_tap", "one_tap", "shared_tap", "shared_tap_2", "sum_tap", "two_tap",
    ]  # fmt: skip
    for name in ("shared", "drop", "sum", "one"):
        assert tapped.get_layer(name) is model.get_layer(name)
    assert tapped.get_layer("inner").get_layer("deep") is model.get_layer("inner").get_layer("deep")
    assert {id(v) for v in tapped.variables} == {id(v) for v in model.variables}
    for a, b in zip(tapped.predict(x, verbose=0), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(before, model.variables, strict=True):  # not even the state of a random generator
        np.testing.assert_array_equal(a, numpy(b))


def test_with_taps_shows_every_call():
    model, x = branched()
    seen = {}
    tapped = fs.with_taps(model, ["shared", "inner/deep"])
    with listening(seen.__setitem__):
        tapped(x)
    kernel, bias = (numpy(w) for w in model.get_layer("shared").weights)
    left = x["left"] @ kernel + bias
    np.testing.assert_allclose(numpy(seen.pop("shared_tap")), left, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        numpy(seen.pop("shared_tap_2")), x["right"] @ kernel + bias, rtol=1e-5, atol=1e-6
    )
    kernel, bias = (numpy(w) for w in model.get_layer("inner").get_layer("deep").weights)
    np.testing.assert_allclose(numpy(seen.pop("deep_tap")), left @ kernel + bias, rtol=1e-5, atol=1e-6)
    assert sorted(seen) == ["inner_shared_tap"]  # by its name, "shared" is both


@EACH_MODE
@pytest.mark.parametrize("build", [sequential, functional], ids=lambda build: build.__name__)
def test_training_one_trains_the_other(build, mode, data):
    keras.utils.set_random_seed(0)
    wanted = trained(build(False), data, **mode)
    keras.utils.set_random_seed(0)
    model = build(False)
    model.compile("sgd", "mse", **mode)
    tapped = fs.with_taps(model, layers.Dense)
    assert not tapped.compiled
    assert model.compiled
    for a, b in zip(trained(tapped, data, **mode), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    for part in ("first", "last"):
        for a, b in zip(model.get_layer(part).weights, tapped.get_layer(part).weights, strict=True):
            assert a is b
    x, _ = data
    np.testing.assert_array_equal(model.predict(x, verbose=0), tapped.predict(x, verbose=0))


def test_both_models_are_saved_and_loaded(tmp_path):
    model, x = branched()
    tapped = fs.with_taps(fs.with_taps(model, "shared"), ["shared", "one"])  # also on top of taps
    assert "shared_tap_3" in [part.name for part in tapped.layers]
    for name, it in (("model", model), ("tapped", tapped)):
        it.save(tmp_path / f"{name}.keras")
        loaded = keras.saving.load_model(tmp_path / f"{name}.keras")
        for a, b in zip(loaded.predict(x, verbose=0), model.predict(x, verbose=0), strict=True):
            np.testing.assert_array_equal(a, b)


def test_with_taps_keeps_a_class_with_a_step_of_its_own(data):
    class Own(keras.Model):
        def compute_loss(self, *args, **kwargs):
            return 3 * super().compute_loss(*args, **kwargs)

    class Built(Own):
        def __init__(self):
            inputs = layers.Input((5,))
            super().__init__(inputs, layers.Dense(2, name="last")(inputs))

    inputs = layers.Input((5,))
    tapped = fs.with_taps(Own(inputs, layers.Dense(2, name="last")(inputs)), "last")
    assert isinstance(tapped, Own)
    with pytest.raises(fs.ModelError, match=r"Built has a constructor and a compute_loss\(\) of its own"):
        fs.with_taps(Built(), "last")


def test_what_cannot_be_tapped(data):
    x, _ = data
    subclassed = Nested(False, name="mine")
    with pytest.raises(fs.ModelError, match="layers are built"):
        fs.with_taps(subclassed, "first")
    subclassed(x)
    with pytest.raises(fs.ModelError, match=r"Received: 'mine', a Nested. Watch it with fs.activations"):
        fs.with_taps(subclassed, "first")
    inputs = layers.Input((5, 4))
    model = keras.Model(inputs, layers.MultiHeadAttention(2, 2, name="mha")(inputs, inputs))
    with pytest.raises(
        fs.WatchError, match=r"'mha/query', which runs inside 'mha'. Tap 'mha', or watch it with"
    ):
        fs.with_taps(model, "mha/query")
    with pytest.raises(fs.WatchError, match="Did you mean 'mha'"):
        fs.with_taps(model, ["mah"])
    with pytest.raises(fs.WatchError, match=r"to name layers. Received: none"):
        fs.with_taps(model, [])
    with pytest.raises(fs.ModelError, match="a Keras model"):
        fs.with_taps("model", "mha")


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
def test_input_is_handed_on(mode, data, tmp_path):
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


def test_what_is_tapped_is_the_change(data):
    layer = fs.layers.BatchChange(batch_size=8, name="change")
    seen = []
    with listening(lambda name, value: seen.append((name, numpy(value)))):
        for batch in batches_of(data[0]):
            np.testing.assert_array_equal(numpy(layer(batch, training=True)), batch)
            layer(batch + 1)  # not training: nothing to see, nothing kept
    assert [name for name, _ in seen] == ["change"] * 7
    for (_, given), (wanted, _) in zip(seen, changes(batches_of(data[0])), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_at_inference_the_newest_training_batch_is_compared_with(data):
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
def test_precision(dtype, policy, data):
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
def test_in_a_mixed_precision_model(mode, data, tmp_path):
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


def test_masks_pass_it():
    inputs = layers.Input((6,), dtype="int32")
    embedded = layers.Embedding(5, 4, mask_zero=True)(inputs)
    model = keras.Model(
        inputs, layers.GlobalAveragePooling1D()(fs.layers.BatchChange(batch_size=8)(embedded))
    )
    given = model.predict(np.array([[1, 2, 0, 0, 0, 0]]), verbose=0)
    np.testing.assert_allclose(given[0], numpy(model.layers[1].embeddings)[[1, 2]].mean(0), rtol=1e-6)


@pytest.mark.parametrize("output", ["input", "change"])
def test_it_is_saved_loaded_and_goes_on(output, data, tmp_path):
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
def test_it_is_exported(output, data, tmp_path):
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


def test_bad_input(data):
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
    with pytest.raises(fs.WatchError, match=r"'input' or 'change'. Received: 'chnge'. Did you mean 'change'"):
        fs.layers.BatchChange("chnge")
    for size in (0, -1, 2.5, "8"):
        with pytest.raises(fs.WatchError, match="`batch_size` to be a number of rows"):
            fs.layers.BatchChange(batch_size=size)


def test_models_that_are_built_by_their_first_step(data):
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
