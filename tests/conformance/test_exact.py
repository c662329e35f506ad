"""What is recorded is what the step computed: checked against training steps written by hand.

Two independent references. `by_hand` is forward pass, loss, backward pass and update written out in NumPy, in float64: no
framework and no code of ours has a part in it. It starts each step from nothing but the weights, and the dropout
mask. That the mask is the true one, and that values are not merely close, is shown by the twin: the same model
built from the same seed, whose layers are called one by one, eagerly, in a training step spelled out with the
framework's own differentiation.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from by_hand import crossentropy, dense, dense_back

RATE, LR, EPS, MOMENTUM = 0.4, 0.1, 1e-3, 0.99
BACKEND = keras.backend.backend()

MODES = {
    "jax": [{"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}],
    "tensorflow": [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    "torch": [{"jit_compile": False}, {"run_eagerly": True}],
}[BACKEND]

LAYERS = ("hidden", "drop", "norm", "relu", "head")


def make() -> keras.Model:
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(10, name="hidden"),
            layers.Dropout(RATE, name="drop"),
            layers.BatchNormalization(name="norm", epsilon=EPS, momentum=MOMENTUM),
            layers.ReLU(name="relu"),
            layers.Dense(3, name="head"),
        ]
    )


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(44, 6)).astype("float32"), rng.integers(0, 3, 44).astype("int32")


def compiled(model: keras.Model, **mode: bool) -> keras.Model:
    model.compile(
        keras.optimizers.SGD(LR),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **mode,
    )
    return model


def random_state(model: keras.Model):
    """Where dropout's random numbers come from: its own generator, on torch the global one."""
    if BACKEND == "torch":
        import torch

        return torch.get_rng_state()
    return keras.ops.convert_to_numpy(model.get_layer("drop").seed_generator.state)


def set_random_state(model: keras.Model, state) -> None:
    if BACKEND == "torch":
        import torch

        torch.set_rng_state(state)
    else:
        model.get_layer("drop").seed_generator.state.assign(state)


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: next(f"{k}={v}" for k, v in mode.items()))
def trained(request, tmp_path_factory):
    """A run with every tensor of every step, and the logs that a callback gets."""
    to = tmp_path_factory.mktemp("exact")
    logs: list[float] = []

    seeds: list = []

    class Logs(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None, seeds=seeds):
            if not seeds:  # building the model, and fit itself, have drawn random numbers already
                seeds.append(random_state(self._model))

        def on_train_batch_end(self, batch, logs=None, seen=logs):
            seen.append(logs["loss"])

    keep = {"keep": "both"}
    scope = fs.Scope(
        to,
        every=1,
        identity="trust",  # a twin's values may differ from those of the step in the last bits
        watch=[
            fs.activations(**keep), fs.gradients(**keep), fs.weights(**keep), fs.weight_gradients(**keep),
            fs.updates(**keep), fs.loss(), fs.metrics(), fs.inputs(**keep), fs.targets(), fs.predictions(),
        ],
    )  # fmt: skip
    x, y = data()
    model = compiled(make(), **request.param)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[scope, Logs()])
    return fs.open(to), logs, seeds[0]


def by_hand(
    w: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, mask: np.ndarray
) -> dict[str, np.ndarray]:
    """One training step in NumPy, in float64."""
    seen: dict[str, np.ndarray] = {}
    hidden = dense(w, "hidden", x)
    drop = hidden * mask / (1 - RATE)
    mean, var = drop.mean(0), drop.var(0)
    unit = (drop - mean) / np.sqrt(var + EPS)
    norm = unit * w["norm/gamma"] + w["norm/beta"]
    relu = np.maximum(norm, 0)
    head = dense(w, "head", relu)
    for name, value in zip(LAYERS, (hidden, drop, norm, relu, head), strict=True):
        seen[f"activations/{name}"] = value
    losses, d_losses = crossentropy(head, y)
    seen["loss"] = losses.mean()
    seen["metrics/accuracy"] = (head.argmax(1) == y).mean()

    d_head = d_losses / len(x)
    d_relu, of_head = dense_back(w, "head", relu, d_head)
    d_norm = d_relu * (norm > 0)
    d_unit = d_norm * w["norm/gamma"]
    d_drop = (d_unit - d_unit.mean(0) - unit * (d_unit * unit).mean(0)) / np.sqrt(var + EPS)
    d_hidden = d_drop * mask / (1 - RATE)
    for name, value in zip(LAYERS, (d_hidden, d_drop, d_norm, d_relu, d_head), strict=True):
        seen[f"gradients/{name}"] = value
    _, of_hidden = dense_back(w, "hidden", x, d_hidden)
    of_norm = {"norm/gamma": (d_norm * unit).sum(0), "norm/beta": d_norm.sum(0)}
    grads = of_hidden | of_norm | of_head
    for name, grad in grads.items():
        seen[f"weight_gradients/{name}"] = grad
        seen[f"updates/{name}"] = -LR * grad
    seen["updates/norm/moving_mean"] = (1 - MOMENTUM) * (mean - w["norm/moving_mean"])
    seen["updates/norm/moving_variance"] = (1 - MOMENTUM) * (var - w["norm/moving_variance"])
    return seen


def test_every_value_equals_that_of_a_step_written_by_hand(trained):
    run, _, _ = trained
    x, y = data()
    weights = [site for site in run.sites if site.startswith("weights/")]
    steps = run.series("loss").index
    assert list(steps) == list(range(12))
    for step in steps:
        rows = slice(8 * (step % 6), 8 * (step % 6) + 8)
        np.testing.assert_array_equal(run.array("inputs", step), x[rows])
        np.testing.assert_array_equal(np.ravel(run.array("targets", step)), y[rows])
        w = {site.removeprefix("weights/"): run.array(site, step).astype(float) for site in weights}
        mask = run.array("activations/drop", step) != 0
        assert 0.2 < mask.mean() < 0.9
        seen = by_hand(w, x[rows].astype(float), y[rows], mask)
        for site, value in seen.items():
            if np.ndim(value):
                recorded = run.array(site, step)
                assert recorded.dtype == np.float32
                assert recorded.shape == value.shape
            else:
                recorded = run.series(site)[step]
            # An update is the difference of two weights near 1: it has lost digits, the weights have not.
            slack = 3e-7 if site.startswith("updates/") else 2e-6
            np.testing.assert_allclose(
                recorded, value, rtol=2e-4, atol=slack, err_msg=f"{site} at step {step}"
            )


def test_weights_are_those_before_the_step_and_updates_lead_to_the_next(trained):
    run, _, _ = trained
    for site in [site for site in run.sites if site.startswith("weights/")]:
        update = site.replace("weights/", "updates/")
        for step in range(11):
            old, new = run.array(site, step), run.array(site, step + 1)
            np.testing.assert_array_equal(new - old, run.array(update, step))


def test_the_recorded_loss_is_that_of_each_batch_though_keras_logs_a_running_mean(trained):
    run, logs, _ = trained
    losses = run.series("loss").to_numpy()
    sizes = np.array([8, 8, 8, 8, 8, 4] * 2, float)
    for epoch in (slice(0, 6), slice(6, 12)):
        running = np.cumsum(losses[epoch] * sizes[epoch]) / np.cumsum(sizes[epoch])
        np.testing.assert_allclose(logs[epoch], running, rtol=1e-5)
        assert np.abs(losses[epoch][1:] - running[1:]).max() > 0.01


def test_statistics_are_those_of_the_recorded_tensors(trained):
    run, _, _ = trained
    for site in ("activations/hidden", "gradients/relu", "weights/head/kernel", "updates/norm/gamma"):
        for stat, of in {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}.items():
            series = run.series(site, stat)
            for step in (0, 5, 11):
                np.testing.assert_allclose(
                    series[step], of(run.array(site, step).astype(float)), rtol=1e-6, atol=1e-12
                )


# ---- the twin ---------------------------------------------------------------------------------------------


def twin_step(model: keras.Model, x: np.ndarray, y: np.ndarray, *, xla: bool) -> dict[str, np.ndarray]:
    """The first training step of a twin, its layers called one by one and differentiated by the framework.

    Under XLA TensorFlow draws other random numbers from the same seed; then the twin's step is compiled too.
    """
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seen: dict[str, np.ndarray] = {}

    def through(value, at=lambda name, value: value):
        for layer in model.layers:
            value = at(layer.name, layer(value, training=True))
        return value

    if BACKEND == "tensorflow":
        import tensorflow as tf

        def step(x, y):
            outputs: dict = {}
            with tf.GradientTape() as tape:
                value = through(x, lambda name, v: outputs.setdefault(name, v))
                loss = loss_of(y, value)
            variables = [v.value for v in model.trainable_variables]
            at, of = tape.gradient(loss, [outputs, variables])
            return loss, outputs, at, of

        step = tf.function(step, jit_compile=True) if xla else step
        loss, outputs, at, of = step(tf.constant(x), tf.constant(y))
    elif BACKEND == "torch":
        outputs = {}

        def keep(name, value):
            value.retain_grad()
            return outputs.setdefault(name, value)

        value = through(keras.ops.convert_to_tensor(x), keep)
        loss = loss_of(keras.ops.convert_to_tensor(y), value)
        loss.backward()
        at = {name: value.grad for name, value in outputs.items()}
        of = [v.value.grad for v in model.trainable_variables]
    else:
        import jax
        import jax.numpy as jnp

        # JAX differentiates functions of arguments: add a zero to each output, and differentiate with respect to it.
        shapes: dict = {}
        with keras.StatelessScope():
            through(jnp.asarray(x), lambda name, v: (shapes.setdefault(name, v), v)[1])
        zeros = {name: jnp.zeros_like(v) for name, v in shapes.items()}

        def loss_with(trainable, added):
            outputs = {}
            mapping = list(zip(model.trainable_variables, trainable, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                value = through(jnp.asarray(x), lambda name, v: outputs.setdefault(name, v + added[name]))
                return loss_of(y, value), outputs

        trainable = [v.value for v in model.trainable_variables]
        (loss, outputs), (of, at) = jax.value_and_grad(loss_with, argnums=(0, 1), has_aux=True)(
            trainable, zeros
        )
    to_numpy = keras.ops.convert_to_numpy
    seen["loss"] = to_numpy(loss)
    for name in LAYERS:
        seen[f"activations/{name}"] = to_numpy(outputs[name])
        seen[f"gradients/{name}"] = to_numpy(at[name])
    for variable, grad in zip(model.trainable_variables, of, strict=True):
        layer = next(layer.name for layer in model.layers if any(v is variable for v in layer.weights))
        seen[f"weight_gradients/{layer}/{variable.name}"] = to_numpy(grad)
    return seen


def test_the_first_step_equals_that_of_a_twin_trained_by_hand(trained, request):
    run, _, seed = trained
    xla = request.node.callspec.params["trained"].get("jit_compile", False)
    x, y = data()
    twin = make()
    set_random_state(twin, seed)
    seen = twin_step(twin, x[:8], y[:8], xla=xla)
    assert 0 < (seen["activations/drop"] == 0).sum() < 80
    np.testing.assert_array_equal(run.array("activations/drop", 0) == 0, seen["activations/drop"] == 0)
    for site, value in seen.items():
        recorded = run.array(site, 0) if np.ndim(value) else np.float32(run.series(site)[0])
        # A few units in the last place: compiled and eager programs round differently.
        np.testing.assert_allclose(recorded, value, rtol=2e-5, atol=3e-7, err_msg=site)
