"""A GAN: two networks with an optimizer each in one model, whose own train step never calls the model itself."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

LATENT = 6
BACKEND = keras.backend.backend()


def make_discriminator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1),
        ],
        name="discriminator",
    )


def make_generator():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(2 * 2 * 8),
            layers.Reshape((2, 2, 8)),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


class Gan(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.seeds = keras.random.SeedGenerator(1337)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.built = (
            BACKEND != "tensorflow"
        )  # the guides for torch and JAX say so, the example for TensorFlow does not

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def noise(self, n):
        return keras.random.normal((n, LATENT), seed=self.seeds)

    def labels(self, n):
        """One for generated, zero for real, with some noise."""
        clean = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))], axis=0)
        return clean + 0.05 * keras.random.uniform(ops.shape(clean), seed=self.seeds)


class TensorFlowGan(Gan):
    def train_step(self, real):
        import tensorflow as tf

        n = ops.shape(real)[0]
        both = ops.concatenate([self.generator(self.noise(n)), real], axis=0)
        labels = self.labels(n)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = self.noise(n)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise, training=True))
            g_loss = self.loss_fn(ops.zeros((n, 1)), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


class TorchGan(Gan):
    def train_step(self, real):
        import torch

        real = real[0] if isinstance(real, tuple | list) else real
        n = real.shape[0]
        both = torch.concat([self.generator(self.noise(n)), real], axis=0)
        labels = self.labels(n)
        self.zero_grad()
        d_loss = self.loss_fn(labels, self.discriminator(both, training=True))
        d_loss.backward()
        weights = self.discriminator.trainable_weights
        gradients = [one.value.grad for one in weights]
        with torch.no_grad():
            self.d_optimizer.apply(gradients, weights)
        noise = self.noise(n)
        self.zero_grad()
        judged = self.discriminator(self.generator(noise, training=True))
        g_loss = self.loss_fn(torch.zeros((n, 1)), judged)
        g_loss.backward()
        weights = self.generator.trainable_weights
        gradients = [one.value.grad for one in weights]
        with torch.no_grad():
            self.g_optimizer.apply(gradients, weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


class JaxGan(Gan):
    """Both optimizers' variables travel with the state, as those of `self.optimizer` would."""

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile(d_optimizer, g_optimizer, loss_fn)
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)
        self.optimizer = Both(d_optimizer, g_optimizer)

    def d_loss_of(self, d_weights, d_state, both, labels):
        judged, d_state = self.discriminator.stateless_call(d_weights, d_state, both, training=True)
        return self.loss_fn(labels, judged), d_state

    def g_loss_of(self, g_weights, g_state, d_weights, d_state, noise):
        made, g_state = self.generator.stateless_call(g_weights, g_state, noise, training=True)
        judged, _ = self.discriminator.stateless_call(d_weights, d_state, made)
        return self.loss_fn(ops.zeros((len(noise), 1)), judged), g_state

    def train_step(self, state, real):
        import jax

        trainable, non_trainable, optimizer_variables, metrics_variables = state
        real = real[0] if isinstance(real, tuple | list) else real
        of = dict(zip([one.path for one in self.trainable_variables], trainable, strict=True))
        kept = dict(zip([one.path for one in self.non_trainable_variables], non_trainable, strict=True))
        d_weights = [of[one.path] for one in self.discriminator.trainable_variables]
        g_weights = [of[one.path] for one in self.generator.trainable_variables]
        d_state = [kept[one.path] for one in self.discriminator.non_trainable_variables]
        g_state = [kept[one.path] for one in self.generator.non_trainable_variables]
        split = len(self.d_optimizer.variables)
        d_moments, g_moments = optimizer_variables[:split], optimizer_variables[split:]

        with keras.StatelessScope(state_mapping=[(self.seeds.state, kept[self.seeds.state.path])]) as drawn:
            first, labels, second = self.noise(len(real)), self.labels(len(real)), self.noise(len(real))
        kept[self.seeds.state.path] = drawn.get_current_value(self.seeds.state)
        made, _ = self.generator.stateless_call(g_weights, g_state, first)
        both = ops.concatenate([made, real], axis=0)
        d_gradients = jax.value_and_grad(self.d_loss_of, has_aux=True)
        (d_loss, d_state), gradients = d_gradients(d_weights, d_state, both, labels)
        d_weights, d_moments = self.d_optimizer.stateless_apply(d_moments, gradients, d_weights)
        g_gradients = jax.value_and_grad(self.g_loss_of, has_aux=True)
        (g_loss, g_state), gradients = g_gradients(g_weights, g_state, d_weights, d_state, second)
        g_weights, g_moments = self.g_optimizer.stateless_apply(g_moments, gradients, g_weights)

        for network, weights, states in (
            (self.discriminator, d_weights, d_state),
            (self.generator, g_weights, g_state),
        ):
            of.update(zip([one.path for one in network.trainable_variables], weights, strict=True))
            kept.update(zip([one.path for one in network.non_trainable_variables], states, strict=True))
        split = len(self.d_loss.variables)
        d_metric = self.d_loss.stateless_update_state(metrics_variables[:split], d_loss)
        g_metric = self.g_loss.stateless_update_state(metrics_variables[split:], g_loss)
        logs = {
            "d_loss": self.d_loss.stateless_result(d_metric),
            "g_loss": self.g_loss.stateless_result(g_metric),
        }
        return logs, (
            list(of.values()),
            list(kept.values()),
            [*d_moments, *g_moments],
            [*d_metric, *g_metric],
        )


class Both(keras.optimizers.Optimizer):
    """Two optimizers as one, so that Keras carries the variables of both from step to step."""

    def __init__(self, first, second):
        super().__init__(0.0)
        self.parts = first, second
        self.built = True

    @property
    def variables(self):
        return [variable for part in self.parts for variable in part.variables]

    def build(self, variables):
        pass


class Gallery(keras.callbacks.Callback):
    """Looks at generated images at the end of each epoch, with the model that is being trained."""

    def on_epoch_end(self, epoch, logs=None):
        images = self.model.generator(keras.random.normal((2, LATENT), seed=42))
        assert ops.convert_to_numpy(images).shape == (2, 8, 8, 1)


def train(scope, callbacks):
    images, _ = data.digits()
    kind = {"tensorflow": TensorFlowGan, "torch": TorchGan, "jax": JaxGan}[BACKEND]
    gan = kind(make_discriminator(), make_generator())
    gan.compile(
        d_optimizer=keras.optimizers.Adam(1e-3),
        g_optimizer=keras.optimizers.Adam(2e-3),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    history = gan.fit(images, batch_size=16, epochs=2, verbose=0, callbacks=[*callbacks, Gallery()])
    return Trained(gan, history.history, optimizers=(gan.d_optimizer, gan.g_optimizer))
