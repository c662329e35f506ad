"""Segmentation with a U-Net of separable convolutions and residual connections, on a PyDataset."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


class Batches(keras.utils.PyDataset):
    """Images and the class of each of their pixels, batch by batch."""

    def __init__(self, images, masks, size):
        super().__init__(workers=1)
        self.images, self.masks, self.size = images, masks, size

    def __len__(self):
        return len(self.images) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.images[rows], self.masks[rows]


def network(classes):
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    before = x
    for filters in (8, 12):
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(2)(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(before)
        x = before = layers.add([x, residual])
    for filters in (12, 8, 8):
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(before))
        x = before = layers.add([x, residual])
    return keras.Model(inputs, layers.Conv2D(classes, 3, activation="softmax", padding="same")(x))


def train(scope, callbacks):
    images, _ = data.digits(n=24, size=16, channels=3)
    masks = (images.mean(-1) > 0.5).astype("int32") + (images[..., 0] > 0.9)
    # One-hot: torch cannot differentiate Keras's sparse crossentropy of images.
    masks = keras.utils.to_categorical(masks, 3).astype("float32")
    model = network(3)
    model.compile(keras.optimizers.Adam(1e-3), "categorical_crossentropy")
    history = model.fit(
        Batches(images, masks, 8), epochs=2, verbose=0, callbacks=callbacks,
        validation_data=Batches(images[:8], masks[:8], 8),
    )  # fmt: skip
    return Trained(model, history.history)
