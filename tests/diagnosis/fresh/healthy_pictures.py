"""Healthy trainings on pictures: U-Net, mixer, residual nets with each normalisation, autoencoders, transfer, adversaries."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.fresh.data import masks, shapes
from diagnosis.models import LOGITS, SPARSE, Call


@healthy("conv")
def small_unet() -> Training:
    """Two levels with skip connections; most pixels are background."""
    inputs = keras.Input((16, 16, 3))

    def double(x: Any, filters: int, name: str) -> Any:
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_a")(x)
        return layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_b")(x)

    top = double(inputs, 8, "enc1")
    middle = double(layers.MaxPooling2D()(top), 16, "enc2")
    low = double(layers.MaxPooling2D()(middle), 32, "bottleneck")
    x = layers.Conv2DTranspose(16, 2, strides=2, name="up2")(low)
    x = double(layers.Concatenate()([x, middle]), 16, "dec2")
    x = layers.Conv2DTranspose(8, 2, strides=2, name="up1")(x)
    x = double(layers.Concatenate()([x, top]), 8, "dec1")
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid", name="mask")(x))
    model.compile(optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **masks(seed=801).parts(), epochs=5, batch_size=16)


@healthy("custom")
def mixer_of_patches() -> Training:
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(24, 4, strides=4, name="patches")(inputs)
    x = layers.Reshape((9, 24))(x)
    for i in (1, 2):
        y = layers.LayerNormalization(name=f"norm_tokens{i}")(x)
        y = layers.Permute((2, 1))(y)
        y = layers.Dense(18, activation="gelu", name=f"tokens{i}_a")(y)
        y = layers.Permute((2, 1))(layers.Dense(9, name=f"tokens{i}_b")(y))
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(name=f"norm_channels{i}")(x)
        y = layers.Dense(24, name=f"channels{i}_b")(layers.Dense(48, "gelu", name=f"channels{i}_a")(y))
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm_out")(x))
    model = keras.Model(inputs, layers.Dense(3, name="logits")(x))
    model.compile(optimizers.AdamW(2e-3, weight_decay=1e-2), LOGITS, metrics=["accuracy"])
    return Training(model, **shapes(seed=802).parts(), epochs=8, batch_size=24)


def resnet(norm: Any, blocks: int = 3) -> Any:
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem")(inputs)
    for i in range(1, blocks + 1):
        y = layers.Activation("relu")(norm(f"norm{i}_a")(x))
        y = layers.Conv2D(16, 3, padding="same", use_bias=False, name=f"conv{i}_a")(y)
        y = layers.Activation("relu")(norm(f"norm{i}_b")(y))
        x = layers.Add()([x, layers.Conv2D(16, 3, padding="same", use_bias=False, name=f"conv{i}_b")(y)])
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(norm("norm_out")(x)))
    return keras.Model(inputs, layers.Dense(3, activation="softmax", name="predictions")(x))


@healthy("conv")
def resnet_with_batch_norm() -> Training:
    model = resnet(lambda name: layers.BatchNormalization(name=name))
    model.compile(optimizers.SGD(0.05, momentum=0.9, nesterov=True), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=803).parts(), epochs=6, batch_size=32, validates=True)


@healthy("conv")
def resnet_with_group_norm() -> Training:
    model = resnet(lambda name: layers.GroupNormalization(4, name=name))
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=804).parts(), epochs=5, batch_size=8)


@healthy("conv")
def resnet_with_layer_norm() -> Training:
    model = resnet(lambda name: layers.LayerNormalization(name=name), blocks=4)
    model.compile(optimizers.Lion(2e-4, weight_decay=0.1), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=805).parts(), epochs=6, batch_size=24)


@healthy("conv")
def convolutional_autoencoder() -> Training:
    """Trained to return its input; many pixels are close to zero."""
    data = shapes(seed=806)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="down1"),
            layers.Conv2D(24, 3, strides=2, padding="same", activation="relu", name="down2"),
            layers.Flatten(),
            layers.Dense(16, name="code"),
            layers.Dense(3 * 3 * 24, activation="relu", name="unpack"),
            layers.Reshape((3, 3, 24)),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu", name="up1"),
            layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="sigmoid", name="picture"),
        ]
    )
    model.compile("adam", "mse")
    return Training(model, data.x, data.x, epochs=8, batch_size=16)


class Sampling(layers.Layer):
    def __init__(self, weight: float = 1e-3, **settings: Any) -> None:
        super().__init__(**settings)
        self.weight, self.seeds = weight, keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        kl = -0.5 * ops.mean(ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1))
        self.add_loss(self.weight * kl)
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)


@healthy("custom")
def autoencoder_that_samples() -> Training:
    data = shapes(seed=807)
    x = inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="encode1")(x)
    x = layers.Dense(48, "relu", name="encode2")(layers.Flatten()(x))
    mean, log_var = layers.Dense(6, name="z_mean")(x), layers.Dense(6, name="z_log_var")(x)
    z = Sampling(name="sampling")([mean, log_var])
    x = layers.Dense(6 * 6 * 8, "relu", name="decode1")(z)
    x = layers.Reshape((6, 6, 8))(x)
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu", name="decode2")(x)
    outputs = layers.Conv2D(3, 3, padding="same", activation="sigmoid", name="decoded")(x)
    model = keras.Model(inputs, outputs)
    model.compile(optimizers.Adam(2e-3), "binary_crossentropy")
    return Training(model, data.x, data.x, epochs=8, batch_size=24)


def backbone() -> Any:
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="block1"),
            layers.MaxPooling2D(),
            layers.Conv2D(24, 3, padding="same", activation="relu", name="block2"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ],
        name="backbone",
    )


def pretrained(seed: int) -> Any:
    """A net that already knows the shapes."""
    base, data = backbone(), shapes(seed=seed)
    model = keras.Sequential([keras.Input((12, 12, 3)), base, layers.Dense(3, "softmax", name="old_head")])
    model.compile(optimizers.Adam(3e-3), SPARSE)
    model.fit(data.x, data.y, batch_size=24, epochs=10, verbose=0)
    return model


@healthy("conv")
def transfer_to_two_classes() -> Training:
    """The base is frozen, a new head with dropout learns whether a shape is round."""
    base = pretrained(808).get_layer("backbone")
    base.trainable = False
    inputs = keras.Input((12, 12, 3))
    x = layers.Dropout(0.5, seed=4, name="drop")(base(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="round")(x))
    model.compile(optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"])
    data = shapes(seed=809).map_y(lambda y: (y == 1).astype("float32")[:, None])
    return Training(model, **data.parts(), epochs=6, batch_size=16)


@healthy("conv")
def tuned_when_it_has_converged() -> Training:
    """The whole net once more at a hundredth of the rate: the loss is small and stays so."""
    model = pretrained(810)
    model.compile(optimizers.Adam(3e-5), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=810).parts(), epochs=4, batch_size=24)


@healthy("custom")
def domain_adversary() -> Training:
    """Two kinds of light; a reversed gradient keeps the features from telling them apart, so one loss stays at ln 2."""
    data = shapes(seed=811)
    rng = np.random.default_rng(811)
    light = rng.integers(0, 2, len(data.x)).astype("float32")
    x = data.x * np.where(light, 1.0, 0.7)[:, None, None, None].astype("float32")
    inputs = keras.Input((12, 12, 3))
    features = layers.Conv2D(12, 3, strides=2, padding="same", activation="relu", name="features1")(inputs)
    features = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu", name="features2")(features)
    features = layers.Dense(24, "relu", name="features3")(layers.Flatten()(features))
    kind = layers.Dense(3, "softmax", name="kind")(features)
    turned = Call(lambda x: 1.1 * ops.stop_gradient(x) - 0.1 * x, name="reversal")(features)
    lit = layers.Dense(16, "relu", name="critic")(turned)
    lit = layers.Dense(1, "sigmoid", name="light")(lit)
    model = keras.Model(inputs, {"kind": kind, "light": lit})
    model.compile(optimizers.Adam(2e-3), {"kind": SPARSE, "light": "binary_crossentropy"})
    return Training(model, x, {"kind": data.y, "light": light[:, None]}, epochs=8, batch_size=24)


@healthy("conv")
def smoothed_labels() -> Training:
    """The loss has a floor at 0.35 that it cannot get below."""
    data = shapes(seed=812).map_y(lambda y: np.eye(3, dtype="float32")[y])
    model = keras.Sequential(
        [
            backbone(),
            layers.Dense(32, "relu", name="fc"),
            layers.Dropout(0.5, seed=7, name="drop"),
            layers.Dense(3, "softmax", name="predictions"),
        ]
    )
    loss = losses.CategoricalCrossentropy(label_smoothing=0.1)
    model.compile(optimizers.RMSprop(1e-3), loss, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=10, batch_size=24)


@healthy("conv")
def half_precision_with_cosine() -> Training:
    """mixed_float16, augmentation inside of the model, and a rate that falls to zero."""
    with_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.RandomFlip(seed=2),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1", dtype=with_policy),
            layers.BatchNormalization(name="bn1", dtype=with_policy),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2", dtype=with_policy),
            layers.BatchNormalization(name="bn2", dtype=with_policy),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activation="softmax", name="predictions", dtype="float32"),
        ]
    )
    rate = schedules.CosineDecay(4e-3, decay_steps=120)
    optimizer = optimizers.LossScaleOptimizer(optimizers.Adam(rate))
    model.compile(optimizer, SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=813).parts(), epochs=8, batch_size=24)
