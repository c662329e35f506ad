"""Healthy trainings on tables and series: every optimizer, rare classes, large targets, small data, odd batch sizes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses, ops, optimizers, regularizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.models import LOGITS, SPARSE, OwnStep
from diagnosis.outside.data import beats, faces, flats, loans, machines, river


def net(
    inputs: int, outputs: int, *widths: int, activation: str = "relu", last: Any = None, **more: Any
) -> Any:
    inner = [
        layers.Dense(width, activation=activation, name=f"fc{i}", **more) for i, width in enumerate(widths, 1)
    ]
    return keras.Sequential(
        [keras.Input((inputs,)), *inner, layers.Dense(outputs, activation=last, name="out")]
    )


@healthy("dense")
def machines_by_sgd() -> Training:
    model = net(12, 4, 48, 48, last="softmax")
    model.compile(optimizers.SGD(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=900).parts(), epochs=10, batch_size=32, validates=True)


@healthy("dense")
def machines_by_momentum_and_clipping() -> Training:
    """The norm is clipped at 5, which acts now and then."""
    model = net(12, 4, 48, 48)
    model.compile(optimizers.SGD(0.03, momentum=0.9, clipnorm=5.0), LOGITS)
    return Training(model, **machines(seed=901).parts(), epochs=8, batch_size=32)


@healthy("dense")
def machines_by_lion() -> Training:
    model = net(12, 4, 64, activation="gelu")
    model.compile(optimizers.Lion(3e-4), LOGITS, metrics=["accuracy"])
    return Training(model, **machines(seed=902).parts(), epochs=12, batch_size=24)


@healthy("dense")
def machines_by_rmsprop() -> Training:
    model = net(12, 4, 32, 32, activation="tanh", last="softmax")
    model.compile("rmsprop", SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=903).parts(), epochs=8, batch_size=32)


@healthy("dense")
def machines_by_adamw_and_cosine() -> Training:
    model = net(12, 4, 64, 64, activation="silu")
    rate = schedules.CosineDecay(1e-4, 220, warmup_target=4e-3, warmup_steps=30)
    model.compile(optimizers.AdamW(rate, weight_decay=0.02), LOGITS, metrics=["accuracy"])
    return Training(model, **machines(seed=904).parts(), epochs=10, batch_size=32)


@healthy("dense")
def twelve_layers_with_skips() -> Training:
    inputs = keras.Input((12,))
    x = layers.Dense(32, name="stem")(inputs)
    for i in range(6):
        y = layers.LayerNormalization(name=f"norm{i}")(x)
        y = layers.Dense(64, "relu", name=f"wide{i}")(y)
        x = layers.Add(name=f"sum{i}")([x, layers.Dense(32, name=f"narrow{i}")(y)])
    model = keras.Model(inputs, layers.Dense(4, "softmax", name="state")(x))
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=905).parts(), epochs=6, batch_size=32)


@healthy("dense")
def ten_plain_layers_he() -> Training:
    model = net(12, 4, *(40,) * 10, last="softmax", kernel_initializer="he_normal")
    model.compile(optimizers.Adam(5e-4), SPARSE)
    return Training(model, **machines(seed=906).parts(), epochs=10, batch_size=32)


@healthy("dense")
def loans_with_a_weight_per_class() -> Training:
    """One in twelve fails; failures weigh more."""
    data = loans(rare=0.08, seed=907)
    weight = np.where(data.y[:, 0] > 0, 6.0, 1.0).astype("float32")
    model = net(9, 1, 32, 16, last="sigmoid")
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["AUC"])
    return Training(model, **data.parts(), epochs=12, batch_size=32, sample_weight=weight)


@healthy("dense")
def one_loan_in_ten_fails() -> Training:
    """Imbalanced and left as it is: the net learns it all the same."""
    model = net(9, 1, 48, 24)
    model.compile(optimizers.Adam(5e-3), losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    return Training(model, **loans(1200, rare=0.1, noise=0.1, seed=908).parts(), epochs=10, batch_size=32)


@healthy("dense")
def logistic_regression() -> Training:
    model = net(9, 1, last="sigmoid")
    model.compile(optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **loans(seed=909).parts(), epochs=6, batch_size=16)


@healthy("dense")
def rents_of_a_city() -> Training:
    """Targets around 900; the last layer begins at their mean."""
    data = flats(mean=900, spread=250, seed=910)
    inputs = keras.Input((8,))
    x = layers.Dense(64, "relu", name="fc1")(inputs)
    x = layers.Dense(64, "relu", name="fc2")(x)
    out = layers.Dense(1, bias_initializer=keras.initializers.Constant(float(data.y.mean())), name="rent")(x)
    model = keras.Model(inputs, out)
    model.compile(optimizers.Adam(1e-2), "mae")
    return Training(model, **data.parts(), epochs=14, batch_size=32)


@healthy("dense")
def rents_left_in_hundreds() -> Training:
    """Large targets without a prepared bias: it takes longer, and gets there."""
    model = net(8, 1, 64, 64)
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(
        model, **flats(mean=40, spread=20, seed=911).parts(), epochs=14, batch_size=32, validates=True
    )


@healthy("dense")
def linear_fit_of_noise_and_slope() -> Training:
    """Half of the variance is noise, so the loss stays at one half and rattles."""
    model = net(8, 1, 16)
    model.compile(optimizers.SGD(0.02, momentum=0.9), "mse")
    return Training(model, **flats(noise=0.9, seed=912).parts(), epochs=8, batch_size=8)


@healthy("dense")
def whole_table_per_step() -> Training:
    """One step per epoch."""
    model = net(8, 1, 32, 32, activation="tanh")
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **flats(256, seed=913).parts(), epochs=150, batch_size=256)


@healthy("dense")
def eighty_rows() -> Training:
    """Little data: the gap to validation grows a little and the penalty keeps it there."""
    model = net(8, 1, 24, kernel_regularizer=regularizers.L2(1e-3))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **flats(120, seed=914).parts(), epochs=30, batch_size=20, validates=True)


@healthy("dense")
def one_hot_of_a_hundred_codes() -> Training:
    """Inputs are 97 % zeros, as they should be."""
    rng = np.random.default_rng(915)
    codes = rng.integers(0, 40, (900, 3))
    worth = rng.normal(size=(3, 40))
    x = np.concatenate([np.eye(40)[codes[:, i]] for i in range(3)], 1).astype("float32")
    y = sum(worth[i][codes[:, i]] for i in range(3)) > 0
    model = net(120, 2, 32, last="softmax")
    model.compile(optimizers.Adagrad(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, x, y.astype("int32"), epochs=8, batch_size=32)


@healthy("dense")
def autoencoder_of_a_curved_sheet() -> Training:
    x = faces(700, seed=916)
    model = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(32, "elu", name="enc1"),
            layers.Dense(3, name="code"),
            layers.Dense(32, "elu", name="dec1"),
            layers.Dense(24, "sigmoid", name="again"),
        ]
    )
    model.compile(optimizers.Nadam(5e-3), "mse")
    return Training(model, x, x, epochs=10, batch_size=32)


class Draw(layers.Layer):
    """Samples from a Gaussian and adds its divergence from the standard one to the loss."""

    def __init__(self, share: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.share, self.seed = share, keras.random.SeedGenerator(3)

    def call(self, given: Any) -> Any:
        mean, spread = given
        self.add_loss(
            self.share * -0.5 * ops.mean(ops.sum(1 + spread - ops.square(mean) - ops.exp(spread), -1))
        )
        return mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.seed)


@healthy("custom")
def variational_autoencoder_of_a_sheet() -> Training:
    x = faces(700, seed=917)
    inputs = keras.Input((24,))
    h = layers.Dense(32, "relu", name="enc")(inputs)
    code = Draw(0.02, name="draw")([layers.Dense(3, name="mean")(h), layers.Dense(3, name="spread")(h)])
    out = layers.Dense(24, "sigmoid", name="again")(layers.Dense(32, "relu", name="dec")(code))
    model = keras.Model(inputs, out)
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy")
    return Training(model, x, x, epochs=10, batch_size=32)


@healthy("custom")
def views_that_attract() -> Training:
    """Contrastive: the batch itself gives the negatives, and targets are not used."""
    x = faces(640, seed=918)
    rng = np.random.default_rng(1)
    pairs = np.stack([x + 0.05 * rng.normal(size=x.shape), x + 0.05 * rng.normal(size=x.shape)], 1)
    inputs = keras.Input((2, 24))
    z = layers.Dense(64, "relu", name="enc")(inputs)
    z = layers.UnitNormalization(name="unit")(layers.Dense(16, name="project")(z))

    def nce(y: Any, z: Any) -> Any:
        likeness = ops.matmul(z[:, 0], ops.transpose(z[:, 1])) / 0.2
        return -ops.diagonal(ops.log_softmax(likeness, -1))

    model = keras.Model(inputs, z)
    model.compile(optimizers.Adam(3e-3), nce)
    return Training(model, pairs.astype("float32"), np.zeros(640, "float32"), epochs=6, batch_size=32)


@healthy("custom")
def rent_and_kind_of_flat() -> Training:
    """Two outputs with losses of different size."""
    data = flats(mean=5, spread=2, seed=919)
    kind = (data.x[:, 0] > 0).astype("int32") + (data.x[:, 1] > 0)
    inputs = keras.Input((8,))
    x = layers.Dense(48, "relu", name="trunk")(inputs)
    model = keras.Model(
        inputs, {"rent": layers.Dense(1, name="rent")(x), "kind": layers.Dense(3, "softmax", name="kind")(x)}
    )
    model.compile(
        optimizers.Adam(5e-3), {"rent": "mse", "kind": SPARSE}, loss_weights={"rent": 0.3, "kind": 1}
    )
    return Training(model, data.x, {"rent": data.y, "kind": kind}, epochs=8, batch_size=32)


@healthy("custom")
def own_step_with_noise() -> Training:
    """A training step by hand that disturbs its inputs."""

    class Noisy(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            clean = self(x, training=True)
            return ops.mean(ops.square(clean - y)) + 0.1 * ops.mean(ops.square(self(0.9 * x) - clean))

    inner = net(8, 1, 32, 32)
    model = Noisy(inner.inputs, inner.outputs)
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **flats(seed=920).parts(), epochs=6, batch_size=32)


@healthy("recurrent")
def level_of_a_river() -> Training:
    model = keras.Sequential(
        [
            keras.Input((20, 1)),
            layers.LSTM(24, return_sequences=True, name="lstm1"),
            layers.LSTM(24, name="lstm2"),
            layers.Dense(1, name="level"),
        ]
    )
    model.compile(optimizers.Adam(5e-3, clipnorm=1.0), "mse")
    return Training(model, **river(seed=921).parts(), epochs=6, batch_size=32, validates=True)


@healthy("recurrent")
def level_in_centimetres() -> Training:
    """A GRU behind a Normalization layer; the target stays in its units and the loss is Huber's."""
    data = river(seed=922, mean=180, spread=30)
    scale = layers.Normalization(axis=None, name="scale")
    scale.adapt(data.x)
    model = keras.Sequential(
        [
            keras.Input((20, 1)),
            scale,
            layers.GRU(32, name="gru"),
            layers.Dense(1, name="level"),
            layers.Rescaling(30.0, 180.0, name="centimetres"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), losses.Huber(10.0))
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@healthy("recurrent")
def beats_with_dropped_states() -> Training:
    model = keras.Sequential(
        [
            keras.Input((32, 2)),
            layers.GRU(32, dropout=0.2, recurrent_dropout=0.2, seed=1, name="gru"),
            layers.Dropout(0.5, seed=2, name="drop"),
            layers.Dense(3, "softmax", name="shape"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **beats(seed=923).parts(), epochs=8, batch_size=24)
