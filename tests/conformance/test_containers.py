"""Models that hold others and are never called themselves, with losses and optimizers of their own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import assert_complete, captured
from watching import everything, same

BACKEND = keras.backend.backend()
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}
RNG = np.random.default_rng(7)
X = RNG.normal(size=(16, 4)).astype("float32")


class Gan(keras.Model):
    """After the Keras example: two models inside, two optimizers, no call of its own."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [layers.Dense(3, activation="tanh", name="d1"), layers.Dense(1, name="d2")], name="discriminator"
        )
        self.generator = keras.Sequential([layers.Dense(4, name="g1")], name="generator")
        self.discriminator.build((None, 4))
        self.generator.build((None, 2))
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.built = BACKEND != "tensorflow"  # as the examples for torch do: Keras cannot call it to build it
        self.z = ops.convert_to_tensor(RNG.normal(size=(8, 2)).astype("float32"))

    def compile(self, d_optimizer, g_optimizer, **mode):
        super().compile(**mode)  # leaves an optimizer on the model that nobody uses
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def discriminate(self, real):
        scores = self.discriminator(ops.concatenate([real, self.generator(self.z)], 0))
        n = len(self.z)
        return self.loss_fn(ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))], 0), scores)

    def generate(self):
        return self.loss_fn(ops.ones((len(self.z), 1)), self.discriminator(self.generator(self.z)))

    def logs(self, d_loss, g_loss):
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}

    def train_step(self, data):
        losses = []
        for compute, weights, optimizer in (
            (lambda: self.discriminate(data), self.discriminator.trainable_weights, self.d_optimizer),
            (self.generate, self.generator.trainable_weights, self.g_optimizer),
        ):
            loss, gradients = differentiate(self, compute, weights)
            optimizer.apply(gradients, weights)
            losses.append(loss)
        return self.logs(*losses)


def differentiate(model, compute, weights=None):
    """The loss, and its gradients with respect to these weights or, of all the model has by then, to every one."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = compute()
        return loss, tape.gradient(loss, weights or model.trainable_weights)
    model.zero_grad()
    loss = compute()
    loss.backward()
    return loss.detach(), [weight.value.grad for weight in weights or model.trainable_weights]


def gan(**mode):
    keras.utils.set_random_seed(0)
    model = Gan()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2), **mode)
    return model


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX a step of two optimizers is a loop, see below")
@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
def test_a_gan_has_separate_losses_and_learning_rates_for_its_two_models(tmp_path, mode):
    global RNG
    models = []
    for scope in (None, fs.Scope(tmp_path, everything(), every=1)):
        RNG = np.random.default_rng(7)
        models.append(model := gan(**mode))
        model.fit(X, callbacks=[scope] if scope else [], **FIT)
        assert not (model.built and BACKEND == "tensorflow")
    same(*models)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run.status == "complete"
    assert_complete(run)
    assert run.series("learning_rate/d_optimizer").round(6).tolist() == [0.1, 0.1]
    assert run.series("learning_rate/g_optimizer").round(6).tolist() == [0.2, 0.2]
    for name in ("d", "g"):
        own = run.series(f"metrics/{name}_loss")  # a mean of one number
        np.testing.assert_allclose(run.series(f"loss/{name}_optimizer"), own, rtol=1e-5)
    assert not {"loss", "learning_rate"} & set(run.sites)
    assert {
        f"activations/{name}" for name in ("discriminator/d1", "discriminator/d1#2", "generator/g1")
    } <= set(run.sites)
    np.testing.assert_allclose(
        run.array("updates/generator/g1/kernel", 0),
        -0.2 * run.array("weight_gradients/generator/g1/kernel", 0),
        rtol=1e-4,
        atol=1e-7,
    )


@pytest.mark.skipif(BACKEND != "jax", reason="the JAX form")
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_gan_in_a_custom_jax_loop_is_recorded(tmp_path, compiled):
    import jax

    def train(scope):
        global RNG
        RNG = np.random.default_rng(7)
        model = gan()
        parts = [(model.discriminator, model.d_optimizer), (model.generator, model.g_optimizer)]
        for part, optimizer in parts:
            optimizer.build(part.trainable_variables)

        def d_loss(weights, other, real):
            with keras.StatelessScope(pairs(parts[0], weights) + pairs(parts[1], other)):
                return model.discriminate(real)

        def g_loss(weights, other):
            with keras.StatelessScope(pairs(parts[1], weights) + pairs(parts[0], other)):
                return model.generate()

        def pairs(part, weights):
            return list(zip(part[0].trainable_variables, weights, strict=True))

        outside = jax.value_and_grad(d_loss)  # made before the step, as the guide of Keras does

        def step(state, real):
            (d, d_opt), (g, g_opt) = state
            first, gradients = outside(d, g, real)
            d, d_opt = model.d_optimizer.stateless_apply(d_opt, gradients, d)
            second, gradients = jax.value_and_grad(g_loss)(g, d)
            g, g_opt = model.g_optimizer.stateless_apply(g_opt, gradients, g)
            return (first, second), ((d, d_opt), (g, g_opt))

        step = jax.jit(step) if compiled else step
        state = [([v.value for v in p.trainable_variables], [v.value for v in o.variables]) for p, o in parts]
        losses = []
        if scope is not None:
            step = scope.step(step)
            scope.attach(model)
        for i in range(0, 16, 8):
            loss, state = step(state, X[i : i + 8])
            losses.append([float(one) for one in loss])
        if scope is not None:
            scope.close()
        return losses, state

    plain = train(None)
    losses, state = train(fs.Scope(tmp_path, everything(), every=1))
    assert losses == plain[0]
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(plain[1]), strict=True):
        assert np.array_equal(a, b)
    run = fs.open(tmp_path)
    assert_complete(run)
    np.testing.assert_allclose(run.series("loss/d_optimizer"), [d for d, _ in losses], rtol=1e-6)
    np.testing.assert_allclose(run.series("loss/g_optimizer"), [g for _, g in losses], rtol=1e-6)
    assert run.series("learning_rate/d_optimizer").round(6).tolist() == [0.1, 0.1]
    assert {"gradients/discriminator/d1", "gradients/discriminator/d1#2", "gradients/generator/g1#2"} <= set(
        run.sites
    )
    assert "weight_gradients/discriminator/d1/kernel" in run.sites


class Critic(Gan):
    """A WGAN with a gradient penalty: the critic is trained twice in a step, and the step has a gradient of its own in its loss."""

    def penalised(self, real):
        fake = self.generator(self.z)
        middle = (real + fake) / 2
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                tape.watch(middle)
                score = self.discriminator(middle)
            slope = tape.gradient(score, [middle])[0]
        else:
            import torch

            score = self.discriminator(middle)
            (slope,) = torch.autograd.grad(score.sum(), middle, create_graph=True)
        penalty = ops.mean((ops.sqrt(ops.sum(slope**2, axis=1) + 1e-6) - 1.0) ** 2)
        return ops.mean(self.discriminator(fake)) - ops.mean(self.discriminator(real)) + penalty

    def train_step(self, data):
        critic, generator = self.discriminator.trainable_weights, self.generator.trainable_weights
        for _ in range(2):
            d_loss, gradients = differentiate(self, lambda: self.penalised(data), critic)
            self.d_optimizer.apply(gradients, critic)
        g_loss, gradients = differentiate(
            self, lambda: -ops.mean(self.discriminator(self.generator(self.z))), generator
        )
        self.g_optimizer.apply(gradients, generator)
        return self.logs(d_loss, g_loss)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX a step of two optimizers is a loop")
def test_a_gradient_penalty_is_not_recorded_as_a_loss(tmp_path):
    global RNG
    models = []
    for scope in (None, fs.Scope(tmp_path, everything(), every=1)):
        RNG = np.random.default_rng(7)
        keras.utils.set_random_seed(0)
        models.append(model := Critic())
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2))
        model.fit(X, callbacks=[scope] if scope else [], **FIT)
    same(*models)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run)
    losses = [site for site in run.sites if site.split("/")[0] == "loss"]
    assert losses == ["loss/d_optimizer", "loss/d_optimizer#2", "loss/g_optimizer"]
    np.testing.assert_allclose(run.series("loss/d_optimizer#2"), run.series("metrics/d_loss"), rtol=1e-5)
    np.testing.assert_allclose(run.series("loss/g_optimizer"), run.series("metrics/g_loss"), rtol=1e-5)


class Autoencoder(keras.Model):
    """Built by its first step, which calls the parts and never the model."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(3, name="e1")], name="encoder")
        self.decoder = keras.Sequential([layers.Dense(4, name="d1")], name="decoder")
        if BACKEND != "tensorflow":
            self.encoder.build((None, 4))
            self.decoder.build((None, 3))
            self.built = True

    def train_step(self, data):
        if not isinstance(data, tuple):
            data = (data,)

        def compute():
            return ops.mean((self.decoder(self.encoder(data[0])) - data[0]) ** 2)

        loss, gradients = differentiate(self, compute)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"own": loss}


@pytest.mark.skipif(BACKEND == "jax", reason="Keras builds a model by calling it there")
def test_an_autoencoder_built_by_its_first_step_is_recorded(tmp_path):
    models = []
    for scope in (None, fs.Scope(tmp_path, everything(), every=1)):
        keras.utils.set_random_seed(0)
        models.append(model := Autoencoder())
        model.compile(keras.optimizers.SGD(0.1))
        model.fit(X, callbacks=[scope] if scope else [], **FIT)
    same(*models)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run)
    assert captured(run) == [0, 1]
    assert run.series("learning_rate").round(6).tolist() == [0.1, 0.1]
    assert {"activations/encoder/e1", "gradients/decoder/d1", "updates/encoder/e1/kernel"} <= set(run.sites)
    assert run.unseen["predictions"] == "the step does not call the model itself"


@pytest.mark.skipif(BACKEND != "jax", reason="the loop of the Keras guide for JAX")
@pytest.mark.parametrize("private", [True, False], ids=["vjp", "public"])
def test_a_gradient_function_made_before_the_step_is_recorded(tmp_path, monkeypatch, private):
    import jax

    from fitscope.capture.backends import _jax_taps as taps

    if not private:  # a JAX whose inner parts have other names: then only what is made in the step is seen
        monkeypatch.setattr(
            taps, "jax_differentiators", lambda jax, api: [(jax, "value_and_grad"), (jax, "grad")]
        )
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="first"), layers.Dense(2, name="last")])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def compute(trainable, non_trainable, x):
        y, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        return ops.mean(y**2), non_trainable

    before = jax.value_and_grad(compute, has_aux=True)
    scope = fs.Scope(tmp_path, everything(), every=1)

    @scope.step
    @jax.jit
    def step(state, x):
        trainable, non_trainable, optimizer_state = state
        function = before if private else jax.value_and_grad(compute, has_aux=True)
        (loss, non_trainable), gradients = function(trainable, non_trainable, x)
        trainable, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients, trainable)
        return loss, (trainable, non_trainable, optimizer_state)

    state = [[v.value for v in part.variables] for part in (model, optimizer)]
    state = (state[0], [], state[1])
    losses = []
    with scope.attach(model, optimizer=optimizer):
        for i in (0, 8):
            loss, state = step(state, X[i : i + 8])
            losses.append(float(loss))
    run = fs.open(tmp_path)
    assert_complete(run)
    np.testing.assert_allclose(run.series("loss"), losses, rtol=1e-6)
    assert {"activations/first", "gradients/first", "learning_rate", "updates/first/kernel"} <= set(run.sites)
