"""Watching changes nothing, and the run proves it: also where the program with taps does not agree with the user's own.

The models here are those with which that was found to happen, on one backend or another. What a compiler does is its own affair: a test
asserts that the training is bit-identical and that the run says truly how, not that a certain program differs.
"""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import asked
from fitscope.capture import layer_taps
from fitscope.errors import WatchError
from watching import EACH_MODE

BACKEND = keras.backend.backend()
only = {
    name: pytest.mark.skipif(name != BACKEND, reason=f"of {name}") for name in ("jax", "tensorflow", "torch")
}
compiled = pytest.mark.skipif(BACKEND == "torch", reason="eager steps with taps are the user's own")


class Cast(layers.Layer):
    def call(self, x):
        return ops.cast(ops.cast(x, "bfloat16"), "float32")


def norm(kind: type) -> keras.Model:
    pooled = [kind(), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    return keras.Sequential([layers.Input((20, 16)), layers.Dense(16), *pooled])


def wide() -> keras.Model:
    return keras.Sequential([layers.Input((20, 16)), layers.Flatten(), layers.Dense(4096), layers.Dense(2)])


def cast() -> keras.Model:
    return keras.Sequential(
        [layers.Input((20, 16)), layers.Flatten(), layers.Dense(32), Cast(), layers.Dense(2)]
    )


def text() -> keras.Model:
    """A transformer for classification, after the example of Keras."""
    inputs = layers.Input((20, 16))
    x = layers.Dense(16)(inputs)
    attended = layers.MultiHeadAttention(2, 8)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(attended))
    hidden = layers.Dense(16)(layers.Dense(32, activation="relu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(hidden))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(2)(layers.Dense(20, activation="relu")(x)))


def answers(mode: dict) -> tuple[str, ...]:
    """What a run may say of itself: an eager step of JAX runs once, with gradients tapped."""
    return ("not provable",) if BACKEND == "jax" and mode.get("run_eagerly") else ("proven", "twin")


MODELS = {
    "layer norm": (lambda: norm(layers.LayerNormalization), "adam", None),
    "batch norm": (lambda: norm(layers.BatchNormalization), "adam", None),
    "wide, by SGD": (wide, "sgd", fs.weight_gradients()),
    "casts": (cast, "adam", fs.gradients()),
    "text": (text, "adam", None),
}


def train(
    build, scope: fs.Scope | None, *, optimizer="adam", samples=64, epochs=4, **compile_
) -> dict[str, list]:
    keras.backend.clear_session()  # the same names of layers each time
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(optimizer, "mse", metrics=["mae"], **compile_)
    rng = np.random.default_rng(0)
    x, y = rng.random((samples, 20, 16), "float32"), rng.random((samples, 2), "float32")
    history = model.fit(
        x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[scope] if scope else [],
        validation_data=(x[:24], y[:24]),
    ).history  # fmt: skip
    state = [ops.convert_to_numpy(v).tobytes() for v in (*model.variables, *model.optimizer.variables)]
    return {"state": state, "history": [np.array(values).tobytes() for values in history.values()]}


@EACH_MODE
@pytest.mark.parametrize("name", MODELS)
def test_models_whose_tapped_program_may_differ_train_the_same(name, mode, tmp_path):
    if mode.get("run_eagerly") and name != "layer norm":
        pytest.skip("eager steps share nothing that another model would add")
    if BACKEND == "tensorflow" and mode.get("jit_compile") and name not in ("layer norm", "wide, by SGD"):
        pytest.skip("XLA is tried with these on JAX")
    build, optimizer, watch = MODELS[name]
    without = train(build, None, optimizer=optimizer, **mode)
    both = ("train", "validation")
    scope = fs.Scope(tmp_path, watch, every=1, on="train" if watch else both)
    assert train(build, scope, optimizer=optimizer, **mode) == without
    run = fs.open(tmp_path)
    assert run.identity in answers(mode)
    assert run.errors == []
    assert run.last_step == 15 if watch else 16  # the weights that the last validation found
    if run.identity == "twin":
        assert "did not agree with your own to the last bit" in run.identity.why
    elif not run.identity.why:
        assert run.identity.steps[:3] == [0, 1, 2]


@EACH_MODE
def test_a_twin_shows_what_the_step_computes(mode, tmp_path):
    """The same sites, the same values but for the last bits, and losses of the same training."""
    if mode.get("run_eagerly"):
        pytest.skip("an eager step runs once: there is no twin")
    build = MODELS["layer norm"][0]
    without = train(build, None, **mode)
    runs = {}
    for choice in ("twin", "trust"):
        scope = fs.Scope(tmp_path / choice, every=1, identity=choice, on=("train", "validation"))
        trained = train(build, scope, **mode)
        assert choice == "trust" or trained == without
        runs[choice] = fs.open(tmp_path / choice)
    twin, taken = runs["twin"], runs["trust"]
    assert twin.sites == taken.sites
    for site in ("loss", "validation/loss"):
        np.testing.assert_allclose(twin.series(site), taken.series(site), rtol=1e-4)
    for site in [site for site in twin.sites if site.startswith(("activations/", "gradients/", "updates/"))][
        ::3
    ]:
        np.testing.assert_allclose(twin.series(site, "rms"), taken.series(site, "rms"), rtol=2e-3, atol=1e-7)
    assert twin.identity == ("proven" if BACKEND == "torch" else "twin")
    assert taken.identity == "trust"


@compiled
@pytest.mark.parametrize("together", [1, 3])
@EACH_MODE
def test_a_tap_that_is_wrong_cannot_change_the_training(mode, together, tmp_path, monkeypatch):
    """However the tapped program comes to differ: here its layers multiply what they pass on."""
    if mode.get("run_eagerly"):
        pytest.skip("an eager step runs once: there is no second program")
    settings = {**mode, "steps_per_execution": together}
    without = train(cast, None, **settings)
    seen = layer_taps.Taps._seen
    monkeypatch.setattr(layer_taps.Taps, "_seen", lambda *given: seen(*given) * 1.001)
    scope = fs.Scope(tmp_path, every=1, on=("train", "validation"))
    assert train(cast, scope, **settings) == without
    run = fs.open(tmp_path)
    assert run.identity == "twin"
    assert (run.identity.passes["train"], run.identity.passes["validation"]) == ("twin", "twin")
    assert "at step 0" in run.identity.why
    assert len(run.series("loss")) == 16


@compiled
def test_a_proof_that_fails_leaves_the_training_alone(tmp_path, monkeypatch):
    """As where a large model leaves no memory for a copy of its state."""
    module = __import__(f"fitscope.capture.backends._{BACKEND}_programs", fromlist=["_"])
    held = module._HeldArguments if BACKEND == "jax" else module._Variables
    without = train(cast, None)
    save = held.save

    def no_room(self):
        monkeypatch.setattr(held, "save", save)
        raise MemoryError("no room for a copy of the state")

    monkeypatch.setattr(held, "save", no_room)
    assert train(cast, fs.Scope(tmp_path, every=1)) == without
    run = fs.open(tmp_path)
    assert run.identity == "twin"
    assert "no room for a copy of the state" in run.identity.why
    assert list(run.series("loss").index) == list(range(1, 16))  # at the first step there was nothing to see


@pytest.mark.parametrize("choice", ["proven", "twin", "trust"])
def test_the_choice_is_the_users(choice, tmp_path):
    train(cast, fs.Scope(tmp_path, every=4, identity=choice), epochs=1)
    words = {"proven": ("proven", "twin"), "twin": ("twin", "proven"), "trust": ("trust",)}
    assert fs.open(tmp_path).identity in words[choice]


def test_a_choice_that_is_none_is_an_error_at_once():
    with pytest.raises(WatchError, match="identity"):
        fs.Scope("runs", identity="hope")


def test_two_scopes_are_as_careful_as_the_more_careful_one(tmp_path):
    build = MODELS["layer norm"][0]
    without = train(build, None)
    careful = fs.Scope(tmp_path / "careful", every=2)
    both = [fs.Scope(tmp_path / "trusting", every=1, identity="trust"), careful]
    keras.utils.set_random_seed(0)
    model = build()
    model.compile("adam", "mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 20, 16), "float32"), rng.random((64, 2), "float32")
    model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=both, validation_data=(x[:24], y[:24]))
    assert fs.open(tmp_path / "careful").identity in ("proven", "twin")
    assert len(fs.open(tmp_path / "trusting").series("loss")) == 16
    assert without  # the trusting one may have changed the steps that it captured alone


def test_a_second_fit_builds_on_what_was_proven(tmp_path):
    keras.utils.set_random_seed(0)
    model = cast()
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.random((512, 20, 16), "float32"), rng.random((512, 2), "float32")
    scope = fs.Scope(tmp_path, every=1)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[scope])
    first = fs.open(tmp_path).identity
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[scope])
    second = fs.open(tmp_path).identity
    assert second == first
    assert second.steps[: len(first.steps)] == first.steps
    assert max(second.steps, default=0) < 100  # nothing was proven from the start again


# ---- programs that must not run twice ----------------------------------------------------------------------


def counted(calls: list[int], value: float = 1.0) -> np.ndarray:
    calls.append(1)
    return np.asarray(value, "float32")


@only["jax"]
@pytest.mark.parametrize("how", ["debug", "io"])
def test_what_a_step_calls_in_python_is_called_once_on_jax(how, tmp_path):
    import jax
    from jax.experimental import io_callback

    calls: list[int] = []

    class Calls(layers.Layer):
        def call(self, x):
            if how == "debug":
                jax.debug.callback(lambda _: counted(calls), x.sum())
                return x
            return x * io_callback(lambda: counted(calls), jax.ShapeDtypeStruct((), "float32"))

    def build():
        body = [layers.Flatten(), layers.Dense(8), Calls(), layers.LayerNormalization(), layers.Dense(2)]
        return keras.Sequential([layers.Input((20, 16)), *body])

    without = train(build, None)
    jax.effects_barrier()
    expected = len(calls)
    calls.clear()
    assert train(build, fs.Scope(tmp_path, fs.activations("dense*"), every=1)) == without
    jax.effects_barrier()
    assert len(calls) == expected
    run = fs.open(tmp_path)
    assert run.identity == ("twin" if how == "debug" else "not provable")
    assert "must not happen twice" in run.identity.why
    assert len(asked(run)) == 2


@only["jax"]
def test_a_program_that_does_not_repeat_itself_is_not_provable_on_jax(tmp_path):
    import jax

    rng = np.random.default_rng()

    class Random(layers.Layer):
        def call(self, x):
            return x * jax.pure_callback(
                lambda: rng.random(dtype="float32"), jax.ShapeDtypeStruct((), "float32")
            )

    def build():
        return keras.Sequential(
            [layers.Input((20, 16)), layers.Flatten(), layers.Dense(8), Random(), layers.Dense(2)]
        )

    train(build, fs.Scope(tmp_path, fs.activations("dense*"), every=1), epochs=1)
    identity = fs.open(tmp_path).identity
    assert identity == "not provable"
    assert "does not repeat itself" in identity.why


@only["tensorflow"]
@pytest.mark.parametrize("how", ["random", "python"])
def test_state_that_nobody_can_save_on_tensorflow(how, tmp_path):
    import tensorflow as tf

    calls: list[int] = []

    class Odd(layers.Layer):
        def call(self, x):
            if how == "random":
                return x + tf.random.normal(tf.shape(x))  # its generator is in the kernel
            return x * tf.ensure_shape(tf.numpy_function(lambda: counted(calls), (), tf.float32), ())

    def build():
        return keras.Sequential(
            [layers.Input((20, 16)), layers.Flatten(), layers.Dense(8), Odd(), layers.Dense(2)]
        )

    without = train(build, None, jit_compile=False)
    expected = len(calls)
    calls.clear()
    assert train(build, fs.Scope(tmp_path, fs.activations("dense*"), every=1), jit_compile=False) == without
    assert len(calls) == expected
    identity = fs.open(tmp_path).identity
    assert identity == ("twin" if how == "random" else "not provable")
    assert ("RandomStandardNormal" if how == "random" else "PyFunc") in identity.why


# ---- steps of the user's own ---------------------------------------------------------------------------------


@only["jax"]
@pytest.mark.parametrize("donate", [(), (0, 1)])
def test_a_jitted_step_is_proven(donate, tmp_path):
    import jax

    def trained(scope: fs.Scope | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = MODELS["layer norm"][0]()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        rng = np.random.default_rng(0)
        x, y = rng.random((16, 20, 16), "float32"), rng.random((16, 2), "float32")

        def loss_of(trainable, fixed, x, y):
            predicted, fixed = model.stateless_call(trainable, fixed, x)
            return ops.mean((predicted - y) ** 2), fixed

        def step(trainable, optimizer_state, fixed, x, y):
            (loss, fixed), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable, fixed, x, y)
            trainable, optimizer_state = optimizer.stateless_apply(optimizer_state, grads, trainable)
            return loss, trainable, optimizer_state, fixed

        step = jax.jit(step, donate_argnums=donate)
        state = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
        fixed = [v.value for v in model.non_trainable_variables]
        if scope is not None:
            scope.attach(model, optimizer=optimizer)
            step = scope.step(step)
        for _ in range(8):
            loss, *state, fixed = step(*state, fixed, x, y)
        if scope is not None:
            scope.close()
        return [np.asarray(leaf) for leaf in jax.tree.leaves((state, loss))]

    without = trained(None)
    for choice in ("proven", "twin"):
        with_scope = trained(fs.Scope(tmp_path / choice, every=1, identity=choice))
        for a, b in zip(without, with_scope, strict=True):
            np.testing.assert_array_equal(a, b)
        run = fs.open(tmp_path / choice)
        assert run.identity in ("proven", "twin")
        assert len(run.series("loss")) == 8


@only["tensorflow"]
def test_a_function_of_tensorflow_is_proven(tmp_path):
    import tensorflow as tf

    def trained(scope: fs.Scope | None) -> list[bytes]:
        keras.utils.set_random_seed(0)
        model = MODELS["layer norm"][0]()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        rng = np.random.default_rng(0)
        x, y = rng.random((16, 20, 16), "float32"), rng.random((16, 2), "float32")

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
            )
            return loss

        if scope is not None:
            scope.attach(model, optimizer=optimizer)
            step = scope.step(step)
        for _ in range(8):
            loss = step(tf.constant(x), tf.constant(y))
        if scope is not None:
            scope.close()
        return [ops.convert_to_numpy(v).tobytes() for v in (*model.variables, *optimizer.variables, loss)]

    without = trained(None)
    for choice in ("proven", "twin"):
        assert trained(fs.Scope(tmp_path / choice, every=1, identity=choice)) == without
        run = fs.open(tmp_path / choice)
        assert run.identity in ("proven", "twin")
        assert len(run.series("loss")) == 8


@pytest.mark.parametrize("gradients", [False, True])
def test_a_plain_python_step_runs_once(gradients, tmp_path):
    """It may do anything, so that nobody runs it twice."""
    keras.utils.set_random_seed(0)
    model = cast()
    model.compile("sgd", "mse")
    calls: list[int] = []
    scope = fs.Scope(tmp_path, [fs.activations(), *([fs.gradients()] if gradients else [])], every=1)
    with scope.attach(model):

        @scope.step
        def step(x):
            calls.append(1)
            return model(x)

        for _ in range(5):
            step(np.ones((2, 20, 16), "float32"))
    assert len(calls) == 5
    assert fs.open(tmp_path).identity == ("not provable" if BACKEND == "jax" and gradients else "proven")


# ---- several devices -------------------------------------------------------------------------------------------

SPREAD = """
import sys, keras, numpy as np, fitscope as fs
from keras import layers

def train(kind, scope):
    keras.utils.set_random_seed(0)
    devices = keras.distribution.list_devices()
    if kind == "data":
        spread = keras.distribution.DataParallel(devices=devices)
    else:
        mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
        layout = keras.distribution.LayoutMap(mesh)
        layout[".*dense.*kernel"] = (None, "model")
        layout[".*conv.*kernel"] = (None, None, None, "model")
        spread = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    rng = np.random.default_rng(0)
    with spread.scope():
        model = keras.Sequential([
            layers.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten(),
            layers.Dropout(0.2), layers.Dense(16), layers.LayerNormalization(), layers.Dense(2),
        ])
        model.compile("adam", "mse")
        history = model.fit(rng.random((64, 8, 8, 1), "float32"), rng.random((64, 2), "float32"), batch_size=16, epochs=3,
                            verbose=0, callbacks=[scope] if scope else []).history
    return [np.asarray(v.value).tobytes() for v in (*model.variables, *model.optimizer.variables)], history["loss"]

for kind in ("data", "model"):
    assert train(kind, fs.Scope(sys.argv[1] + kind, every=1)) == train(kind, None), kind
    run = fs.open(sys.argv[1] + kind)
    assert run.errors == [], run.errors
    assert len(run.series("loss")) == 12
    print(kind, run.identity)
"""


@only["jax"]
def test_training_on_several_devices_is_the_same(tmp_path):
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", SPREAD, str(tmp_path / "on-")],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said.keys() == {"data", "model"}
    assert set(said.values()) <= {"proven", "twin"}
