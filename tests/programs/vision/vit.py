"""A vision transformer: augmentation inside of the model, own layers that cut images to patches and number them."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

SIZE, PATCH, WIDTH = 16, 4, 12
PATCHES = (SIZE // PATCH) ** 2


class Patches(layers.Layer):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, images):
        patches = ops.image.extract_patches(images, size=self.size)
        n, rows, columns, width = ops.shape(patches)
        return ops.reshape(patches, (n, rows * columns, width))


class Numbered(layers.Layer):
    """Projects patches, and adds an embedding of their places."""

    def __init__(self, patches, width, **kwargs):
        super().__init__(**kwargs)
        self.patches = patches
        self.projection = layers.Dense(width)
        self.places = layers.Embedding(patches, width)

    def call(self, patches):
        places = ops.expand_dims(ops.arange(0, self.patches, 1), 0)
        return self.projection(patches) + self.places(places)


def mlp(x, units, rate):
    for width in units:
        x = layers.Dropout(rate)(layers.Dense(width, activation=keras.activations.gelu)(x))
    return x


def train(scope, callbacks):
    images, labels = data.digits(n=40, size=12, channels=3)
    augmentation = keras.Sequential(
        [
            layers.Normalization(),
            layers.Resizing(SIZE, SIZE),
            layers.RandomFlip("horizontal"),
            layers.RandomRotation(0.02),
            layers.RandomZoom(0.2, 0.2),
        ],
        name="augmentation",
    )
    augmentation.layers[0].adapt(images)
    inputs = keras.Input((12, 12, 3))
    x = Numbered(PATCHES, WIDTH)(Patches(PATCH)(augmentation(inputs)))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        attended = layers.MultiHeadAttention(2, WIDTH, dropout=0.1)(normed, normed)
        x = layers.Add()([attended, x])
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([mlp(normed, (2 * WIDTH, WIDTH), 0.1), x])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = mlp(layers.Dropout(0.5)(x), (16,), 0.5)
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
        ],
    )
    history = model.fit(
        images, labels, batch_size=8, epochs=2, validation_split=0.2, verbose=0, callbacks=callbacks
    )
    return Trained(model, history.history)
