"""Contrastive pretraining with a linear probe: two augmented views, two optimizers in one step, then fine-tuning of the encoder."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from programs import data
from programs.program import Trained

WIDTH = 8
BACKEND = keras.backend.backend()


class Colours(layers.Layer):
    def __init__(self, brightness, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(11)
        self.brightness = brightness

    def call(self, images, training=True):
        if not training:
            return images
        shape = (ops.shape(images)[0], 1, 1, 1)
        return images * (1 + keras.random.uniform(shape, -self.brightness, self.brightness, seed=self.seeds))


def augmenter(zoom, brightness, name):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomFlip("horizontal"),
            layers.RandomTranslation(zoom, zoom),
            Colours(brightness),
        ],
        name=name,
    )


class Contrastive(keras.Model):
    def __init__(self):
        super().__init__()
        self.strong, self.weak = augmenter(0.2, 0.5, "strong"), augmenter(0.1, 0.2, "weak")
        self.encoder = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(WIDTH, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(WIDTH, activation="relu"),
            ],
            name="encoder",
        )
        self.head = keras.Sequential(
            [keras.Input((WIDTH,)), layers.Dense(WIDTH, activation="relu"), layers.Dense(WIDTH)], name="head"
        )
        self.probe = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4)], name="probe")
        self.built = BACKEND != "tensorflow"  # only there Keras does not ask

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.c_loss, self.p_loss = keras.metrics.Mean(name="c_loss"), keras.metrics.Mean(name="p_loss")
        self.c_acc = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.p_acc = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [self.c_loss, self.c_acc, self.p_loss, self.p_acc]

    def contrastive_loss(self, images):
        """One number per sample: how badly each view finds the other."""
        views = [
            self.head(self.encoder(self.strong(images, training=True), training=True), training=True)
            for _ in "12"
        ]
        first, second = (ops.normalize(view, axis=1) for view in views)
        alike = ops.matmul(first, ops.transpose(second)) / 0.1
        labels = ops.arange(ops.shape(first)[0])
        self.c_acc.update_state(labels, alike)
        losses = [
            keras.losses.sparse_categorical_crossentropy(labels, table, from_logits=True)
            for table in (alike, ops.transpose(alike))
        ]
        return (losses[0] + losses[1]) / 2

    def probed(self, images, labels, training):
        features = self.encoder(self.weak(images, training=training), training=False)
        logits = self.probe(features, training=training)
        return self.probe_loss(labels, logits), logits

    def train_step(self, batch):
        unlabeled, (labeled, labels) = batch
        images = ops.concatenate((unlabeled, labeled), axis=0)
        with tf.GradientTape() as tape:
            c_loss = self.contrastive_loss(images)
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(c_loss, weights), weights, strict=True))
        self.c_loss.update_state(c_loss)
        with tf.GradientTape() as tape:
            p_loss, logits = self.probed(labeled, labels, training=True)
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(p_loss, weights), weights, strict=True))
        self.p_loss.update_state(p_loss)
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, batch):
        images, labels = batch
        p_loss, logits = self.probed(images, labels, training=False)
        self.p_loss.update_state(p_loss)
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics[2:]}


class TorchContrastive(Contrastive):
    def train_step(self, batch):
        unlabeled, (labeled, labels) = batch
        c_loss = self.contrastive_loss(ops.concatenate((unlabeled, labeled), axis=0)).mean()
        self.step(
            c_loss, self.contrastive_optimizer, self.encoder.trainable_weights + self.head.trainable_weights
        )
        self.c_loss.update_state(c_loss)
        p_loss, logits = self.probed(labeled, labels, training=True)
        self.step(p_loss, self.probe_optimizer, self.probe.trainable_weights)
        self.p_loss.update_state(p_loss)
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def step(self, loss, optimizer, weights):
        import torch

        self.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.apply([one.value.grad for one in weights], weights)


def train(scope, callbacks):
    images, labels = data.digits(n=64)
    unlabeled = tf.data.Dataset.from_tensor_slices(images[:32]).batch(8)
    labeled = tf.data.Dataset.from_tensor_slices((images[32:], labels[32:])).batch(8)
    model = (TorchContrastive if BACKEND == "torch" else Contrastive)()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-2))
    pretrained = model.fit(
        tf.data.Dataset.zip((unlabeled, labeled)), epochs=2, validation_data=labeled.take(2), verbose=0, callbacks=callbacks
    ).history  # fmt: skip
    tuned = keras.Sequential(
        [keras.Input((8, 8, 1)), model.weak, model.encoder, layers.Dense(4)], name="tuned"
    )
    tuned.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    finetuned = tuned.fit(labeled, epochs=1, verbose=0, callbacks=callbacks).history
    optimizers = (model.contrastive_optimizer, model.probe_optimizer, tuned.optimizer)
    return Trained(model, [pretrained, finetuned], optimizers=optimizers, others=(tuned,))
