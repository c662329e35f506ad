"""Row 4: a training loop of one's own. Compared with the training written by hand, to float32's precision, and with the same loop without a
scope, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import by_hand
import fitscope as fs

BACKEND = keras.backend.backend()
BOTH = {"keep": "both"}
EPOCHS = 2


def batches(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, len(x), 8)]


def test_a_loop_over_train_on_batch_is_recorded(tools, tmp_path, page_says):
    x, y = by_hand.data()
    model, twin = tools.make(), tools.make()
    plain = [float(np.ravel(twin.train_on_batch(*batch))[0]) for batch in batches(x, y) * EPOCHS]
    scope = fs.Scope(tmp_path, [fs.loss(), fs.activations("hidden", **BOTH)], every=1)
    told, late = [], []
    with scope.attach(model):
        for _ in range(EPOCHS):
            for batch in batches(x, y):
                told.append(float(np.ravel(model.train_on_batch(*batch))[0]))
                # The usual way: the layer once more, on the same batch.
                late.append(keras.ops.convert_to_numpy(model.get_layer("hidden")(batch[0])))
            scope.epoch_end()
    tools.same(model, twin)
    assert told == plain
    run = fs.open(tmp_path)
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    tools.every_value(run, "activations/hidden", by)
    losses = [step["loss"] for step in by]
    tools.close(run.series("loss"), losses)
    tools.close(told, losses)
    assert list(run.frame("loss")["epoch"]) == [0, 0, 0, 1, 1, 1]

    off = max(np.abs(late[i] - by[i]["activations/hidden"]).max() for i in range(6))
    size = np.mean([np.abs(step["activations/hidden"]).mean() for step in by])
    page_says(f"off by up to {off:.2f}; an average value is {size:.2f}")


def step_of(model: keras.Model) -> tuple[Callable[..., Any], Callable[[], list[np.ndarray]]]:
    """A step as one writes it in the framework at hand: it returns the loss and shows how sure the model was; and the weights by now."""
    optimizer = keras.optimizers.SGD(by_hand.LR)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def forward(logits: Any, y: Any) -> Any:
        fs.tap("sure", keras.ops.max(keras.ops.softmax(logits), axis=-1))
        return loss_of(y, logits)

    def weights() -> list[np.ndarray]:
        return [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]

    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = forward(model(x, training=True), y)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        return step, weights
    if BACKEND == "torch":

        def step(x, y):
            model.zero_grad()
            loss = forward(model(x, training=True), keras.ops.convert_to_tensor(y))
            loss.backward()
            trainable = model.trainable_weights
            import torch

            with torch.no_grad():
                optimizer.apply([w.value.grad for w in trainable], trainable)
            return loss

        return step, weights
    import jax

    def compute(trainable, fixed, x, y):
        logits, fixed = model.stateless_call(trainable, fixed, x, training=True)
        return forward(logits, y), fixed

    @jax.jit
    def jitted(state, x, y):
        trainable, fixed, own = state
        (loss, fixed), gradients = jax.value_and_grad(compute, has_aux=True)(trainable, fixed, x, y)
        trainable, own = optimizer.stateless_apply(own, gradients, trainable)
        return loss, (trainable, fixed, own)

    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    held = [tuple([v.value for v in part] for part in parts)]

    def of_state(function):
        def step(x, y):
            loss, held[0] = function(held[0], x, y)
            return loss

        return step

    return (jitted, of_state), lambda: [np.asarray(array) for array in held[0][0]]


def in_loop(step: Any, wrap: Callable[[Any], Any] = lambda function: function) -> Callable[..., Any]:
    """The step to call in the loop. The stateless one of JAX is recorded as it is, under the bookkeeping."""
    if isinstance(step, tuple):
        function, of_state = step
        return of_state(wrap(function))
    return wrap(step)


def test_a_custom_step_is_recorded(tools, tmp_path):
    x, y = by_hand.data()
    plain, plain_weights = step_of(tools.make())
    plain = in_loop(plain)
    wanted = [float(plain(*batch)) for batch in batches(x, y) * EPOCHS]

    model = tools.make()
    scope = fs.Scope(
        tmp_path,
        [fs.activations("hidden", **BOTH), fs.loss(), fs.taps(**BOTH), fs.gradients("head", **BOTH)],
        every=1,
    )
    step, weights = step_of(model)
    step = in_loop(step, scope.step)
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    losses = []
    with scope.attach(model):
        for _ in range(EPOCHS):
            for batch in batches(x, y):
                losses.append(float(step(*batch)))
                tools.close(scope.batch["activations/hidden"], by[len(losses) - 1]["activations/hidden"])
            scope.epoch_end()
    assert losses == wanted
    for mine, theirs in zip(weights(), plain_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    run = fs.open(tmp_path)
    assert (run.status, run.errors, run.unseen) == ("complete", [], {})
    tools.close(run.series("loss"), [step["loss"] for step in by])
    tools.every_value(run, "activations/hidden", by)
    tools.every_value(run, "gradients/head", by)
    for n, true in enumerate(by):
        shares = np.exp(true["predictions"])
        tools.close(run.array("taps/sure", n), (shares / shares.sum(1, keepdims=True)).max(1))
