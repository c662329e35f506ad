"""Layers and models by subclassing: a variational autoencoder of nested layers that adds its own loss."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


class Linear(layers.Layer):
    """A dense layer with weights that its first input builds."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(shape[-1], self.units),
            initializer="random_normal",
            regularizer=keras.regularizers.L2(1e-3),
        )
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, inputs, training=False):
        if training:
            self.seen.assign(self.seen + 1.0)
        return ops.matmul(inputs, self.kernel) + self.bias


class Encoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.project = Linear(12)
        self.mean = layers.Dense(3)
        self.log_variance = layers.Dense(3)
        self.sampling = Sampling()

    def call(self, inputs):
        x = ops.relu(self.project(inputs))
        mean, log_variance = self.mean(x), self.log_variance(x)
        return mean, log_variance, self.sampling((mean, log_variance))


class Decoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.project = Linear(12)
        self.output_layer = layers.Dense(64, activation="sigmoid")

    def call(self, inputs):
        return self.output_layer(ops.relu(self.project(inputs)))


class Autoencoder(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = Encoder()
        self.decoder = Decoder()

    def call(self, inputs):
        mean, log_variance, code = self.encoder(inputs)
        divergence = -0.5 * ops.mean(log_variance - ops.square(mean) - ops.exp(log_variance) + 1)
        self.add_loss(0.1 * divergence)
        return self.decoder(code)


def train(scope, callbacks):
    images, _ = data.digits()
    flat = images.reshape(-1, 64)
    model = Autoencoder()
    model.compile(keras.optimizers.Adam(1e-2), loss=keras.losses.MeanSquaredError())
    history = model.fit(flat, flat, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
