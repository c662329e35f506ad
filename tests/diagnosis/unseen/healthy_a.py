"""Healthy trainings on tables: optimizers, depth, losses for counts, quantiles and grades, rare classes, sparse inputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, losses, ops, optimizers, regularizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.data import parted
from diagnosis.models import LOGITS, SPARSE, mlp
from diagnosis.unseen.toys import HELD, crops, documents, species


class Weighted(Training):
    """A training with a weight for each class, as `fit` takes them."""

    def fit(self, *callbacks: Any, validate: bool = False) -> dict[str, list[float]]:
        common = 0.5 / (1 - self.y.mean())
        weights = {0: common, 1: 0.5 / self.y.mean()}
        history = self.model.fit(
            self.x, self.y, batch_size=self.batch_size, epochs=self.epochs, class_weight=weights,
            validation_data=self.validation if validate or self.validates else None,
            callbacks=[*callbacks], verbose=0,
        )  # fmt: skip
        return dict(history.history)


@healthy("dense")
def crops_by_plain_descent() -> Training:
    model = mlp(8, 1, widths=(64, 32), activation="tanh", head=None)
    rate = schedules.ExponentialDecay(0.1, decay_steps=200, decay_rate=0.5)
    model.compile(optimizers.SGD(rate), "mse", metrics=["mae"])
    return Training(model, **crops(seed=1101).parts(), epochs=15, batch_size=16)


@healthy("dense")
def species_by_momentum_and_warm_up() -> Training:
    model = mlp(10, 4, widths=(48, 48, 48), head=None)
    rate = schedules.CosineDecay(0.0, 200, warmup_target=0.05, warmup_steps=40)
    model.compile(optimizers.SGD(rate, momentum=0.9, nesterov=True), LOGITS, metrics=["accuracy"])
    return Training(model, **species(seed=1102).parts(), epochs=12, batch_size=32, validates=True)


@healthy("dense")
def species_by_lion() -> Training:
    model = mlp(10, 4, widths=(64, 64), activation="gelu", head=None)
    model.compile(optimizers.Lion(3e-4, weight_decay=0.01), LOGITS, metrics=["accuracy"])
    return Training(model, **species(seed=1103).parts(), epochs=12, batch_size=16)


@healthy("dense")
def crops_by_adafactor() -> Training:
    """With its own rule: the rate is relative to the size of a weight."""
    model = mlp(8, 1, widths=(64, 64), activation="silu", head=None)
    model.compile(optimizers.Adafactor(learning_rate=0.02), "mse")
    return Training(model, **crops(seed=1104).parts(), epochs=12, batch_size=20)


@healthy("dense")
def species_by_nadam_and_elu() -> Training:
    model = mlp(10, 5, widths=(40, 40, 40), activation="elu", kernel_initializer="he_normal")
    model.compile(optimizers.Nadam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **species(classes=5, seed=1105).parts(), epochs=12, batch_size=20)


@healthy("dense")
def thirty_layers_in_residual_pairs() -> Training:
    """Each of fourteen blocks adds two dense layers behind a norm to its input; at first they add little."""
    x = inputs = keras.Input((10,))
    x = layers.Dense(24, name="stem")(x)
    for i in range(14):
        y = layers.LayerNormalization(name=f"norm{i}")(x)
        y = layers.Dense(24, "gelu", name=f"wide{i}")(y)
        y = layers.Dense(24, name=f"back{i}", kernel_initializer=initializers.VarianceScaling(0.05))(y)
        x = layers.Add(name=f"add{i}")([x, y])
    x = layers.LayerNormalization(name="norm")(x)
    model = keras.Model(inputs, layers.Dense(4, name="head")(x))
    rate = schedules.CosineDecay(1e-4, 260, warmup_target=2e-3, warmup_steps=40)
    model.compile(optimizers.AdamW(rate, weight_decay=1e-2, clipnorm=1.0), LOGITS, metrics=["accuracy"])
    return Training(model, **species(seed=1106).parts(), epochs=15, batch_size=32)


@healthy("dense")
def every_layer_sees_all_before() -> Training:
    """Dense connections: the input of a layer is the outputs of all layers before it."""
    x = inputs = keras.Input((8,))
    for i in range(6):
        y = layers.Dense(12, "silu", name=f"grow{i}")(x)
        x = layers.Concatenate(name=f"join{i}")([x, y])
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.RMSprop(1e-3), losses.Huber(), metrics=["mae"])
    return Training(model, **crops(seed=1107).parts(), epochs=10, batch_size=16)


@healthy("dense")
def selu_with_alpha_dropout() -> Training:
    stack: list[Any] = [keras.Input((10,))]
    for i in range(6):
        stack.append(layers.Dense(40, "selu", kernel_initializer="lecun_normal", name=f"h{i}"))
        stack.append(layers.AlphaDropout(0.05, name=f"drop{i}"))
    model = keras.Sequential([*stack, layers.Dense(4, "softmax", name="head")])
    model.compile(optimizers.SGD(0.02, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **species(seed=1108).parts(), epochs=15, batch_size=32)


@healthy("dense")
def freight_around_ten_thousand() -> Training:
    """Targets of 4,000 to 16,000 in their own units; the model ends with the scaling back."""
    data = crops(seed=1109).map_y(lambda y: 10_000 + 2_000 * y)
    model = mlp(8, 1, widths=(48, 48), head=None)
    model.add(layers.Rescaling(float(data.y.std()), float(data.y.mean()), name="in_euros"))
    model.compile(optimizers.Adam(3e-3), "mae")
    return Training(model, **data.parts(), epochs=12, batch_size=16, validates=True)


@healthy("dense")
def one_bearing_in_twenty_fails() -> Training:
    """95 to 5, with a weight for each class."""
    rng = np.random.default_rng(1110)
    x = rng.normal(size=(1600 + HELD, 9)).astype("float32")
    risk = 1.5 * x[:, 0] + x[:, 1] ** 2 - x[:, 2] * x[:, 3] + 0.3 * rng.normal(size=len(x))
    y = (risk > np.quantile(risk, 0.95)).astype("float32")
    data = parted(x, y, 1600)
    model = mlp(9, 1, widths=(32, 32), head="sigmoid")
    model.compile(optimizers.Adam(2e-3), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return Weighted(model, **data.parts(), epochs=10, batch_size=32)


@healthy("custom")
def claims_by_exposure() -> Training:
    """Poisson: the logarithm of the time insured is added to the logarithm of the rate."""
    rng = np.random.default_rng(1111)
    n = 960 + HELD
    x, time = rng.normal(size=(n, 6)).astype("float32"), rng.uniform(0.2, 3.0, (n, 1)).astype("float32")
    y = rng.poisson(time[:, 0] * np.exp(0.3 + 0.5 * x[:, 0] - 0.4 * x[:, 1] * x[:, 2])).astype("float32")
    rows, insured = keras.Input((6,), name="rows"), keras.Input((1,), name="insured")
    h = layers.Dense(32, "relu", name="h1")(rows)
    h = layers.Dense(32, "relu", name="h2")(h)
    rate = layers.Dense(1, name="log_rate")(h)
    count = layers.Add(name="log_count")([rate, layers.Lambda(ops.log, name="log_time")(insured)])
    model = keras.Model([rows, insured], layers.Activation("exponential", name="count")(count))
    model.compile(optimizers.Adam(2e-3), "poisson")
    held = ([x[960:], time[960:]], y[960:, None])
    return Training(model, [x[:960], time[:960]], y[:960, None], held, epochs=10, batch_size=32)


@healthy("dense")
def delays_by_three_quantiles() -> Training:
    """The 10, 50 and 90 % quantiles of a delay whose spread depends on the inputs."""
    rng = np.random.default_rng(1112)
    x = rng.normal(size=(960 + HELD, 5)).astype("float32")
    y = x[:, :1] + np.exp(0.6 * x[:, 1:2]) * rng.gumbel(size=(len(x), 1)) * 0.5
    data = parted(x, np.repeat(y, 3, 1).astype("float32"), 960)
    share = np.array([0.1, 0.5, 0.9], "float32")

    def pinball(y: Any, p: Any) -> Any:
        return ops.mean(ops.maximum(share * (y - p), (share - 1) * (y - p)), axis=-1)

    model = mlp(5, 3, widths=(48, 48), head=None)
    model.compile(optimizers.Adam(3e-3), pinball)
    return Training(model, **data.parts(), epochs=12, batch_size=32)


@healthy("dense")
def grades_in_their_order() -> Training:
    """Five grades as four questions: is it better than 1, than 2, …? The thresholds are the biases."""
    data = crops(800, seed=1113)
    steps = np.quantile(data.y, [0.2, 0.4, 0.6, 0.8])
    data = data.map_y(lambda y: (y > steps).astype("float32"))
    inputs = keras.Input((8,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    x = layers.Dense(32, "relu", name="h2")(x)
    x = layers.Dense(1, use_bias=False, name="merit")(x)
    x = layers.Concatenate(name="copies")([x, x, x, x])
    bars = layers.EinsumDense("ab,b->ab", 4, bias_axes="b", name="bars")
    model = keras.Model(inputs, layers.Activation("sigmoid", name="better")(bars(x)))
    bars.set_weights([np.ones(4, "float32"), np.array([0.6, 0.2, -0.2, -0.6], "float32")])
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=12, batch_size=20)


@healthy("dense")
def sparse_documents() -> Training:
    """Nine inputs of ten are zero; dropout and a little weight decay."""
    model = keras.Sequential(
        [
            keras.Input((300,)),
            layers.Dense(48, "relu", name="h1", kernel_regularizer=regularizers.L2(1e-5)),
            layers.Dropout(0.3, name="drop"),
            layers.Dense(4, "softmax", name="topic"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **documents(seed=1114).parts(), epochs=8, batch_size=16)


@healthy("dense")
def boards_as_one_hot_fields() -> Training:
    """Boards of 9 fields, each one of three states, flattened to 27 columns; who has more lines?"""
    rng = np.random.default_rng(1115)
    board = rng.integers(0, 3, (1600 + HELD, 9))
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    full = [np.stack([(board[:, line] == who).sum(1) >= 2 for line in lines]).sum(0) for who in (1, 2)]
    x = np.eye(3, dtype="float32")[board].reshape(len(board), 27)
    data = parted(x, (full[0] > full[1]).astype("float32")[:, None], 1600)
    model = mlp(27, 1, widths=(64, 64), head=None)
    loss = losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.05)
    model.compile(optimizers.Adamax(4e-3), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
    return Training(model, **data.parts(), epochs=10, batch_size=32)


@healthy("dense")
def most_relus_are_off() -> Training:
    """Biases of -0.5 and an L1 penalty on the activations keep about 70 % of the values at zero; no unit is dead."""
    model = keras.Sequential(
        [
            keras.Input((10,)),
            *(
                layers.Dense(
                    96, "relu", name=name, kernel_initializer="he_normal",
                    bias_initializer=initializers.Constant(-0.5),
                    activity_regularizer=regularizers.L1(1e-5),
                )
                for name in ("h1", "h2")
            ),
            layers.Dense(4, "softmax", name="head"),
        ]
    )  # fmt: skip
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **species(seed=1116).parts(), epochs=10, batch_size=20)
