"""A Wasserstein GAN: several critic steps in one train step, and a penalty that is a gradient within a gradient."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

LATENT = 6
BACKEND = keras.backend.backend()


def make_critic():
    inputs = keras.Input((8, 8, 1))
    x = layers.LeakyReLU(0.2)(layers.Conv2D(6, 3, strides=2, padding="same")(layers.ZeroPadding2D(1)(inputs)))
    x = layers.Dropout(0.3)(layers.LeakyReLU(0.2)(layers.Conv2D(6, 3, strides=2, padding="same")(x)))
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)), name="critic")


def make_generator():
    inputs = keras.Input((LATENT,))
    x = layers.Dense(2 * 2 * 8, use_bias=False)(inputs)
    x = layers.Reshape((2, 2, 8))(layers.LeakyReLU(0.2)(layers.BatchNormalization()(x)))
    x = layers.Conv2D(6, 3, padding="same", use_bias=False)(layers.UpSampling2D(2)(x))
    x = layers.LeakyReLU(0.2)(layers.BatchNormalization()(x))
    x = layers.Conv2D(1, 3, padding="same")(layers.UpSampling2D(2)(x))
    return keras.Model(inputs, layers.Activation("tanh")(x), name="generator")


class Wgan(keras.Model):
    def __init__(self, critic, generator, critic_steps=2, penalty=10.0):
        super().__init__()
        self.critic = critic
        self.generator = generator
        self.critic_steps, self.penalty = critic_steps, penalty
        self.seeds = keras.random.SeedGenerator(4)
        self.built = BACKEND != "tensorflow"  # only there Keras does not ask

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer

    def noise(self, n):
        return keras.random.normal((n, LATENT), seed=self.seeds)

    def between(self, real, fake):
        share = keras.random.uniform((ops.shape(real)[0], 1, 1, 1), seed=self.seeds)
        return real + share * (fake - real)


def squared_excess(gradients):
    norm = ops.sqrt(ops.sum(ops.square(gradients), axis=(1, 2, 3)) + 1e-7)
    return ops.mean((norm - 1.0) ** 2)


class TensorFlowWgan(Wgan):
    def train_step(self, real):
        import tensorflow as tf

        n = ops.shape(real)[0]
        for _ in range(self.critic_steps):
            noise = self.noise(n)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                cost = ops.mean(self.critic(fake, training=True)) - ops.mean(self.critic(real, training=True))
                middle = self.between(real, fake)
                with tf.GradientTape() as inner:
                    inner.watch(middle)
                    judged = self.critic(middle, training=True)
                excess = squared_excess(inner.gradient(judged, [middle])[0])
                critic_loss = cost + self.penalty * excess
            weights = self.critic.trainable_variables
            self.critic_optimizer.apply_gradients(
                zip(tape.gradient(critic_loss, weights), weights, strict=True)
            )
        noise = self.noise(n)
        with tf.GradientTape() as tape:
            generator_loss = -ops.mean(self.critic(self.generator(noise, training=True), training=True))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(
            zip(tape.gradient(generator_loss, weights), weights, strict=True)
        )
        return {"d_loss": critic_loss, "g_loss": generator_loss}


class TorchWgan(Wgan):
    def train_step(self, real):
        import torch

        real = real[0] if isinstance(real, tuple | list) else real
        for _ in range(self.critic_steps):
            fake = self.generator(self.noise(len(real)), training=True).detach()
            cost = torch.mean(self.critic(fake, training=True)) - torch.mean(self.critic(real, training=True))
            middle = self.between(real, fake).requires_grad_()
            judged = self.critic(middle, training=True)
            (inner,) = torch.autograd.grad(judged.sum(), [middle], create_graph=True)
            critic_loss = cost + self.penalty * squared_excess(inner)
            self.zero_grad()
            critic_loss.backward()
            self.apply(self.critic_optimizer, self.critic)
        generator_loss = -torch.mean(
            self.critic(self.generator(self.noise(len(real)), training=True), training=True)
        )
        self.zero_grad()
        generator_loss.backward()
        self.apply(self.generator_optimizer, self.generator)
        return {"d_loss": critic_loss, "g_loss": generator_loss}

    def apply(self, optimizer, network):
        import torch

        weights = network.trainable_variables
        with torch.no_grad():
            optimizer.apply([one.value.grad for one in weights], weights)


def train(scope, callbacks):
    images, _ = data.digits()
    kind = {"tensorflow": TensorFlowWgan, "torch": TorchWgan}[BACKEND]
    wgan = kind(make_critic(), make_generator())
    optimizers = [keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9) for _ in range(2)]
    wgan.compile(*optimizers)
    history = wgan.fit(2 * images - 1, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(wgan, history.history, optimizers=tuple(optimizers))
