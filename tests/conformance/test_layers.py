"""`fs.layers.Tap` and `fs.with_taps`: nothing changes by them, and everything that a model can do, it can still do."""

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

from .layer_models import EACH_MODE, FIT, exported, numpy


@pytest.fixture
def data():
    """52 samples: seven batches of 8, the last of them with 4."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(52, 5)).astype("float32"), rng.normal(size=(52, 2)).astype("float32")


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


def test_a_tap_records_its_input():
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
def test_a_tap_keeps_the_dtype(dtype, policy):
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


def test_masks_pass_through_a_tap():
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


def test_with_taps_records_every_call_of_a_shared_layer():
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
def test_a_model_and_its_tapped_copy_share_their_weights(build, mode, data):
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


def test_with_taps_keeps_a_class_with_a_custom_step(data):
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
    with pytest.raises(fs.ModelError, match=r"Built overrides the constructor and compute_loss\(\)"):
        fs.with_taps(Built(), "last")


def test_models_that_cannot_have_taps_are_errors(data):
    x, _ = data
    subclassed = Nested(False, name="mine")
    with pytest.raises(fs.ModelError, match="Expected a built model"):
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
