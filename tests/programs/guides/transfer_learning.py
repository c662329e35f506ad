"""Transfer learning: a frozen base under a new head, then all of it unfrozen, compiled anew and trained on with a small rate."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def make_base():
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.SeparableConv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, x, name="base")


def train(scope, callbacks):
    images, labels = data.digits(size=16, channels=3)
    base = make_base()
    base.trainable = False
    inputs = keras.Input((16, 16, 3))
    x = layers.RandomFlip("horizontal", seed=1)(inputs)
    x = layers.Rescaling(2.0, offset=-1.0)(x)
    x = base(x, training=False)
    x = layers.Dropout(0.2, seed=2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4)(x))

    def fit(rate):
        model.compile(
            keras.optimizers.Adam(rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        return model.fit(
            images[:32], labels[:32], batch_size=8, epochs=1, validation_data=(images[32:], labels[32:]), verbose=0,
            callbacks=callbacks,
        ).history  # fmt: skip

    first = fit(1e-2)
    base.trainable = True
    second = fit(1e-4)
    return Trained(model, {key: [first[key], second[key]] for key in first})
