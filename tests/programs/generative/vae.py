"""A variational autoencoder: a container of an encoder and a decoder whose train step is written in each framework's own way."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

LATENT = 2
BACKEND = keras.backend.backend()


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)


def make_encoder():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(6, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
    mean = layers.Dense(LATENT, name="z_mean")(x)
    log_variance = layers.Dense(LATENT, name="z_log_var")(x)
    return keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])], name="encoder")


def make_decoder():
    inputs = keras.Input((LATENT,))
    x = layers.Reshape((4, 4, 6))(layers.Dense(4 * 4 * 6, activation="relu")(inputs))
    x = layers.Conv2DTranspose(6, 3, activation="relu", strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model(inputs, x, name="decoder")


class Vae(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="loss")
        self.rebuilt = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.rebuilt, self.divergence]

    def losses_of(self, images):
        mean, log_variance, code = self.encoder(images)
        wrong = keras.losses.binary_crossentropy(images, self.decoder(code))
        rebuilt = ops.mean(ops.sum(wrong, axis=(1, 2)))
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        divergence = ops.mean(ops.sum(divergence, axis=1))
        return rebuilt + divergence, rebuilt, divergence

    def logs(self, losses):
        for metric, loss in zip(self.metrics, losses, strict=True):
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


class TensorFlowVae(Vae):
    def train_step(self, images):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            losses = self.losses_of(images)
        gradients = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logs(losses)


class TorchVae(Vae):
    def train_step(self, images):
        import torch

        images = images[0] if isinstance(images, tuple | list) else images
        losses = self.losses_of(images)
        self.zero_grad()
        losses[0].backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in weights], weights)
        return self.logs(losses)


class JaxVae(Vae):
    def loss_and_state(self, trainable, non_trainable, images):
        mapping = [
            *zip(self.trainable_variables, trainable, strict=True),
            *zip(self.non_trainable_variables, non_trainable, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as state:
            losses = self.losses_of(images)
        after = [state.get_current_value(one) for one in self.non_trainable_variables]
        return losses[0], (losses, after)

    def train_step(self, state, images):
        import jax

        trainable, non_trainable, optimizer_variables, metrics_variables = state
        images = images[0] if isinstance(images, tuple | list) else images
        compute = jax.value_and_grad(self.loss_and_state, has_aux=True)
        (_, (losses, non_trainable)), gradients = compute(trainable, non_trainable, images)
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        logs, kept = {}, []
        for metric, loss in zip(self.metrics, losses, strict=True):
            first = len(kept)
            own = metrics_variables[first : first + len(metric.variables)]
            own = metric.stateless_update_state(own, loss)
            logs[metric.name] = metric.stateless_result(own)
            kept += own
        return logs, (trainable, non_trainable, optimizer_variables, kept)


def train(scope, callbacks):
    images, _ = data.digits()
    kind = {"tensorflow": TensorFlowVae, "torch": TorchVae, "jax": JaxVae}[BACKEND]
    vae = kind(make_encoder(), make_decoder())
    vae.built = BACKEND != "tensorflow"  # only there Keras does not ask; the example does not say so
    vae.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = vae.fit(images, epochs=2, batch_size=16, verbose=0, callbacks=callbacks)
    return Trained(vae, history.history)
