"""Identity where proving is hard: side effects, randomness, custom steps, several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import asked, captured

from .odd_models import BACKEND, MODELS, cast, train

only = {
    name: pytest.mark.skipif(name != BACKEND, reason=f"of {name}") for name in ("jax", "tensorflow", "torch")
}


# ---- programs that must not run twice ----------------------------------------------------------------------


def counted(calls: list[int], value: float = 1.0) -> np.ndarray:
    calls.append(1)
    return np.asarray(value, "float32")


@only["jax"]
@pytest.mark.parametrize("how", ["debug", "io"])
def test_a_python_callback_runs_once_per_step_on_jax(how, tmp_path):
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
def test_state_that_cannot_be_saved_is_not_provable_on_tensorflow(how, tmp_path):
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
        assert len(captured(run)) == 8


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
        assert len(captured(run)) == 8


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


@only["jax"]
def test_a_twin_of_an_eager_step_shows_all_but_gradients(tmp_path):
    """Their taps may change the order of sums; no other tap can change a step that runs as Python."""
    build = MODELS["layer norm"][0]
    without = train(build, None, run_eagerly=True)
    assert train(build, fs.Scope(tmp_path, every=1, identity="twin"), run_eagerly=True) == without
    run = fs.open(tmp_path)
    assert (run.identity, run.errors) == ("proven", [])
    seen = [site for site in run.sites if site.startswith(("activations/", "gradients/"))]
    missing = [site for site in run.unseen if site.startswith("gradients/")]
    assert {site.replace("activations", "gradients", 1) for site in seen} == set(missing)
    assert all("order of their sums" in run.unseen[site] for site in missing)
    assert len(run.series("weight_gradients/dense/kernel", "rms")) == 16


# ---- several devices -------------------------------------------------------------------------------------------

SPREAD = """
import sys, keras, numpy as np, fitscope as fs
from complete import captured
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
    assert len(captured(run)) == 12
    print(kind, run.identity)
"""


@only["jax"]
def test_training_on_several_devices_is_identical(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": path}
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
