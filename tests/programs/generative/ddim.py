"""Diffusion: a residual U-Net that predicts noise, a moving average of its weights as a second network, validated by generating.

On TensorFlow and torch with an own train step, as in the example; on JAX as `call` and `compute_loss`, which need none.
"""

from __future__ import annotations

import math

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

SIZE, BATCH, DIMS = 8, 16, 8
EMA = 0.9
BACKEND = keras.backend.backend()


@keras.saving.register_keras_serializable()
def sinusoids(x):
    speeds = 2.0 * math.pi * ops.exp(ops.linspace(ops.log(1.0), ops.log(100.0), DIMS // 2))
    speeds = ops.cast(speeds, "float32")
    return ops.concatenate([ops.sin(speeds * x), ops.cos(speeds * x)], axis=3)


def residual(x, width):
    skip = x if x.shape[3] == width else layers.Conv2D(width, 1)(x)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    return layers.Add()([layers.Conv2D(width, 3, padding="same")(x), skip])


def make_network():
    noisy, variances = keras.Input((SIZE, SIZE, 1)), keras.Input((1, 1, 1))
    e = layers.Lambda(sinusoids, output_shape=(1, 1, DIMS))(variances)
    e = layers.UpSampling2D(SIZE, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(6, 1)(noisy), e])
    x = skip = residual(x, 6)
    x = residual(layers.AveragePooling2D(2)(x), 8)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = residual(layers.Concatenate()([x, skip]), 6)
    return keras.Model([noisy, variances], layers.Conv2D(1, 1, kernel_initializer="zeros")(x), name="unet")


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = make_network()
        self.averaged = keras.models.clone_model(self.network)
        self.averaged.trainable = False
        self.seeds = keras.random.SeedGenerator(9)
        self.noise_loss = keras.metrics.Mean(name="n_loss")
        self.image_loss = keras.metrics.Mean(name="i_loss")
        self.built = BACKEND == "torch"  # TensorFlow does not ask, and on JAX the model can be called

    @property
    def metrics(self):
        return [self.noise_loss, self.image_loss]

    def rates(self, times):
        start, end = math.acos(0.95), math.acos(0.02)
        angles = start + times * (end - start)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy, noise_rates, signal_rates, training):
        network = self.network if training else self.averaged
        noises = network([noisy, noise_rates**2], training=training)
        return noises, (noisy - noise_rates * noises) / signal_rates

    def mixed(self, images):
        noises = keras.random.normal((BATCH, SIZE, SIZE, 1), seed=self.seeds)
        rates = self.rates(keras.random.uniform((BATCH, 1, 1, 1), seed=self.seeds))
        return noises, rates, rates[1] * images + rates[0] * noises

    def generate(self, steps=2):
        noisy = keras.random.normal((BATCH, SIZE, SIZE, 1), seed=self.seeds)
        for step in range(steps):
            times = ops.ones((BATCH, 1, 1, 1)) - step / steps
            noises, images = self.denoise(noisy, *self.rates(times), training=False)
            noise_rates, signal_rates = self.rates(times - 1 / steps)
            noisy = signal_rates * images + noise_rates * noises
        return images

    def both_losses(self, images, training):
        images = self.normalizer(images)
        noises, rates, noisy = self.mixed(images)
        found_noises, found_images = self.denoise(noisy, *rates, training=training)
        error = self.loss or (lambda wanted, found: ops.mean(ops.abs(wanted - found)))
        return error(noises, found_noises), error(images, found_images)

    def results(self, noise_loss, image_loss):
        self.noise_loss.update_state(noise_loss)
        self.image_loss.update_state(image_loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def average(self):
        for weight, average in zip(self.network.weights, self.averaged.weights, strict=True):
            average.assign(EMA * average + (1 - EMA) * weight)


class Written(Diffusion):
    """With the train step written out."""

    def train_step(self, images):
        images = images[0] if isinstance(images, tuple | list) else images
        losses = self.updated(images)
        self.average()
        return self.results(*losses)

    def updated(self, images):
        weights = self.network.trainable_weights
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                losses = self.both_losses(images, training=True)
            self.optimizer.apply_gradients(zip(tape.gradient(losses[0], weights), weights, strict=True))
            return losses
        import torch

        losses = self.both_losses(images, training=True)
        self.zero_grad()
        losses[0].backward()
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in weights], weights)
        return losses

    def test_step(self, images):
        images = images[0] if isinstance(images, tuple | list) else images
        losses = self.both_losses(images, training=False)
        self.generate()
        return self.results(*losses)


class Stateless(Diffusion):
    """With Keras's own train step: the losses come from `call` and `compute_loss`."""

    def call(self, images, training=False):
        noise_loss, image_loss = self.both_losses(images, training)
        if training:
            self.average()
        return ops.stack([noise_loss, image_loss])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return y_pred[0]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return self.results(y_pred[0], y_pred[1])


def train(scope, callbacks):
    images, _ = data.digits()
    model = (Stateless if BACKEND == "jax" else Written)()
    model.normalizer.adapt(images)
    # As in the example: a function, so that the loss has a number for each pixel. Elsewhere Keras would want to call the model.
    error = keras.losses.mean_absolute_error if BACKEND == "tensorflow" else None
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), loss=error)
    history = model.fit(
        images, batch_size=BATCH, epochs=2, validation_data=(images[:BATCH],), verbose=0, callbacks=callbacks
    )
    return Trained(model, history.history)
