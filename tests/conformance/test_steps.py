"""Training steps of the user's own, and everything `compile` and `fit` can change about a step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import captured

BACKEND = keras.backend.backend()
X = np.random.default_rng(2).normal(size=(22, 5)).astype("float32")
Y = np.random.default_rng(3).normal(size=(22, 2)).astype("float32")


def chain() -> tuple[object, object]:
    i = layers.Input((5,))
    return i, layers.Dense(2, name="b")(layers.Dense(4, name="a")(i))


class OwnStep(keras.Model):
    """A training step as the Keras guides write it for each backend; the loss is found without `compute_loss`."""

    use_compute_loss = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="own")

    @property
    def metrics(self):
        return [self.tracker]

    def _own_loss(self, x, y, y_pred):
        if self.use_compute_loss:
            return self.compute_loss(x, y, y_pred)
        return ops.mean(ops.abs(y - y_pred))

    if BACKEND == "tensorflow":

        def train_step(self, data):
            import tensorflow as tf

            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = self._own_loss(x, y, self(x, training=True))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own": self.tracker.result()}

    elif BACKEND == "torch":

        def train_step(self, data):
            import torch

            x, y = data[:2]
            self.zero_grad()
            loss = self._own_loss(x, y, self(x, training=True))
            loss.backward()
            weights = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([w.value.grad for w in weights], weights)
            self.tracker.update_state(loss)
            return {"own": self.tracker.result()}

    else:

        def _loss_and_state(self, trainable, rest, x, y):
            y_pred, rest = self.stateless_call(trainable, rest, x, training=True)
            return self._own_loss(x, y, y_pred), rest

        def train_step(self, state, data):
            import jax

            trainable, rest, of_optimizer, of_metrics = state
            x, y = data[:2]
            grad_fn = jax.value_and_grad(self._loss_and_state, has_aux=True)
            (loss, rest), grads = grad_fn(trainable, rest, x, y)
            trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, grads, trainable)
            of_metrics = self.tracker.stateless_update_state(of_metrics, loss)
            return {"own": self.tracker.stateless_result(of_metrics)}, (
                trainable,
                rest,
                of_optimizer,
                of_metrics,
            )


@pytest.mark.parametrize("use_compute_loss", [False, True])
def test_a_custom_train_step_is_recorded(watch_fit, tools, use_compute_loss):
    def make():
        keras.utils.set_random_seed(0)
        model = OwnStep(*chain())
        model.use_compute_loss = use_compute_loss
        model.compile("sgd", "mse")
        return model

    seen = watch_fit(make, X, Y)
    at = seen.at
    h = tools.dense(at, "a", X[:8])
    out = tools.dense(at, "b", h)
    tools.close(at("activations/a"), h)
    wrong = out - Y[:8]
    tools.close(at("loss"), np.mean(wrong**2) if use_compute_loss else np.mean(np.abs(wrong)))
    g = 2 * wrong / wrong.size if use_compute_loss else np.sign(wrong) / wrong.size
    tools.close(at("gradients/b"), g)
    tools.close(at("weight_gradients/b/kernel"), h.T @ g)
    tools.close(at("updates/a/kernel"), -0.01 * X[:8].T @ (g @ at("weights/b/kernel").T))
    if (
        BACKEND != "jax"
    ):  # there the step itself uses the stateless form, which is no update_state of the metric
        tools.close(at("metrics/own", 2), at("loss", 2))


def test_batches_that_only_the_custom_step_understands_are_recorded(watch_fit):
    """Four things in a batch, which Keras could not take apart as x, y and weights."""
    given = (X, Y, X[:, 0].copy(), X[:, 1].copy())

    def make():
        keras.utils.set_random_seed(0)
        model = OwnStep(*chain())
        model.compile("sgd")  # on JAX a loss would have Keras look into the batch
        return model

    def data():
        if BACKEND == "torch":
            import torch

            return torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(*map(torch.tensor, given)), batch_size=8
            )
        tf = pytest.importorskip("tensorflow")
        return tf.data.Dataset.from_tensor_slices(given).batch(8)

    seen = watch_fit(make, data, watch=[fs.inputs(keep="both"), fs.activations(), fs.loss()])
    assert np.array_equal(seen.at("inputs[2]"), X[:8, 0])
    assert len(captured(seen.run)) == 3


class Adversaries(keras.Model):
    """Two networks, two optimizers, two losses in one step."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([layers.Input((5,)), layers.Dense(2, name="make")], name="maker")
        self.judge = keras.Sequential([layers.Input((2,)), layers.Dense(1, name="judge_dense")], name="judge")

    def compile(self):
        super().compile(loss="mse")
        self.of_maker, self.of_judge = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2)

    def call(self, x):
        return self.judge(self.maker(x))

    if BACKEND == "tensorflow":

        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                judged = ops.mean(self.judge(y)) - ops.mean(self.judge(self.maker(x)))
            weights = self.judge.trainable_variables
            self.of_judge.apply_gradients(zip(tape.gradient(judged, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                made = ops.mean(self.judge(self.maker(x)))
            weights = self.maker.trainable_variables
            self.of_maker.apply_gradients(zip(tape.gradient(made, weights), weights, strict=True))
            return {"judged": judged, "made": made}

    elif BACKEND == "torch":

        def train_step(self, data):
            import torch

            x, y = data
            self.zero_grad()
            judged = ops.mean(self.judge(y)) - ops.mean(self.judge(self.maker(x)))
            judged.backward()
            weights = list(self.judge.trainable_weights)
            with torch.no_grad():
                self.of_judge.apply([w.value.grad for w in weights], weights)
            self.zero_grad()
            made = ops.mean(self.judge(self.maker(x)))
            made.backward()
            weights = list(self.maker.trainable_weights)
            with torch.no_grad():
                self.of_maker.apply([w.value.grad for w in weights], weights)
            return {"judged": judged, "made": made}


@pytest.mark.skipif(BACKEND == "jax", reason="Keras carries the state of one optimizer through a JAX step")
def test_two_networks_with_separate_optimizers_are_recorded(watch_fit, tools, tmp_path):
    def make():
        keras.utils.set_random_seed(0)
        model = Adversaries()
        model.build((None, 5))
        model.compile()
        return model

    seen = watch_fit(make, X, Y, epochs=2)
    at = seen.at
    # Nobody counts the model's own optimizer on; every step has its own number all the same, also in the next fit.
    losses = ["loss/of_judge", "loss/of_maker"]
    assert [list(seen.run.series(loss).index) for loss in losses] == [[0, 1, 2, 3, 4, 5]] * 2
    seen.model.fit(X, Y, batch_size=8, verbose=0, callbacks=[seen.scope])
    assert [list(seen.run.series(loss).index) for loss in losses] == [list(range(9))] * 2
    assert [attempt["start_step"] for attempt in seen.run.attempts] == [0, 6]
    made = tools.dense(at, "maker/make", X[:8])
    tools.close(at("activations/maker/make"), made)
    tools.close(at("activations/judge/judge_dense"), tools.dense(at, "judge/judge_dense", Y[:8]))
    tools.close(at("activations/judge/judge_dense#2"), tools.dense(at, "judge/judge_dense", made))
    tools.close(at("weight_gradients/judge/judge_dense/kernel"), (Y[:8].mean(0) - made.mean(0))[:, None])
    judge = at("weights/judge/judge_dense/kernel") + at("updates/judge/judge_dense/kernel")
    tools.close(at("weight_gradients/maker/make/bias"), judge[:, 0])


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 3.0 * super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "twice": 2.0 * ops.mean(y_pred)}


def test_a_custom_compute_loss_with_sample_weights_is_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        model = OwnLoss(*chain())
        model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
        return model

    weights = np.linspace(0, 2, 22).astype("float32")
    seen = watch_fit(make, X, Y, sample_weight=weights)
    at, w = seen.at, weights[8:16]
    out = tools.dense(at, "b", tools.dense(at, "a", X[8:16], 1), 1)
    per_sample = ((out - Y[8:16]) ** 2).mean(1)
    tools.close(at("loss", 1), 3 * np.mean(per_sample * w))
    tools.close(at("metrics/mse", 1), np.sum(per_sample * w) / w.sum())
    tools.close(at("metrics/mae", 1), np.mean(np.abs(out - Y[8:16])))


def test_class_weights_are_part_of_the_recorded_loss(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Input((5,)), layers.Dense(3, name="d")])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    labels = np.arange(22) % 3
    seen = watch_fit(make, X, labels, class_weight={0: 1.0, 1: 2.0, 2: 0.5})
    out = tools.dense(seen.at, "d", X[:8])
    out -= np.log(np.exp(out).sum(1, keepdims=True))
    weights = np.array([1.0, 2.0, 0.5])[labels[:8]]
    tools.close(seen.at("loss"), np.mean(-out[np.arange(8), labels[:8]] * weights))


OPTIMIZERS = {
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "average": lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
    "clipped": lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
    "scheduled": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_is_recorded_and_trains_identically(watch_fit, tools, kind):
    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([layers.Input((5,)), layers.Dense(2, name="d", use_bias=False)])
        model.compile(OPTIMIZERS[kind](), "mse")
        return model

    watch = [
        fs.weights(keep="both"),
        fs.weight_gradients(keep="both"),
        fs.updates(keep="both"),
        fs.predictions(),
        fs.loss(),
    ]
    seen = watch_fit(make, X, Y, watch=watch, epochs=2)
    at = seen.at
    steps = range(6)
    assert captured(seen.run) == list(steps)
    for step in steps:
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        x, y = X[rows], Y[rows]
        grad = 2 * x.T @ (x @ at("weights/d/kernel", step) - y) / y.size
        tools.close(at("weight_gradients/d/kernel", step), grad)  # as the optimizer got it: before it clips
        update = at("updates/d/kernel", step)
        if step + 1 in steps:
            tools.close(at("weights/d/kernel", step) + update, at("weights/d/kernel", step + 1))
        if kind == "accumulation":
            assert update.any() == (step % 2 == 1)
        if kind == "clipped":
            tools.close(update, -0.1 * grad * min(1, 0.01 / np.linalg.norm(grad)), rtol=1e-3)
        if kind == "scheduled":
            tools.close(update, -0.1 * 0.5**step * grad, rtol=1e-3)
