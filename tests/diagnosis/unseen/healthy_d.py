"""Healthy trainings by the way they are run: tiny batches, few rows, early stops, two fits, generators, weights, policies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import callbacks, layers, losses, ops, optimizers

from diagnosis.case import Training, healthy
from diagnosis.data import Array
from diagnosis.models import LOGITS, SPARSE, OwnStep, mlp
from diagnosis.unseen.toys import crops, documents, glyphs, species


@healthy("dense")
def batches_of_four() -> Training:
    """The loss of a batch jumps by half of its size; its mean falls."""
    model = mlp(8, 1, widths=(32, 16), activation="gelu", head=None)
    model.compile(optimizers.SGD(0.01, momentum=0.5), "mse")
    return Training(model, **crops(noise=0.5, seed=1401).parts(), epochs=8, batch_size=4)


@healthy("dense")
def three_epochs_on_few_rows() -> Training:
    """Far more weights than rows, and stopped long before the rows are known by heart."""
    model = mlp(10, 3, widths=(64, 64))
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    data = species(160, classes=3, spread=0.5, seed=1402)
    return Training(model, **data.parts(), epochs=3, batch_size=4, validates=True)


@healthy("dense")
def stops_early_and_restores() -> Training:
    """Validation decides: ten epochs without progress, and the best weights come back."""
    model = mlp(10, 4, widths=(64, 64), activation="silu")
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    stop = callbacks.EarlyStopping(patience=3, restore_best_weights=True)
    return Training(
        model, **species(480, spread=1.0, seed=1403).parts(), epochs=40, batch_size=24, validates=True,
        callbacks=[stop],
    )  # fmt: skip


@healthy("dense")
def rate_falls_on_plateaus() -> Training:
    model = mlp(8, 1, widths=(32, 32), activation="tanh", head=None)
    model.compile(optimizers.SGD(0.2), "mse")
    slower = callbacks.ReduceLROnPlateau(monitor="loss", factor=0.3, patience=2, min_delta=0.01)
    return Training(model, **crops(seed=1404).parts(), epochs=25, batch_size=32, callbacks=[slower])


class Evaluated(Training):
    """Fits twice, looks at the validation data in between, and halves the rate for the second."""

    def fit(self, *callbacks: Any, validate: bool = False) -> dict[str, list[float]]:
        assert self.validation is not None
        history: dict[str, list[float]] = {}
        for _ in range(2):
            part = super().fit(*callbacks, validate=validate)
            history = {name: [*history.get(name, []), *values] for name, values in part.items()}
            self.model.evaluate(*self.validation, verbose=0)
            self.model.predict(self.validation[0][:8], verbose=0)
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2
        return history


@healthy("dense")
def evaluated_between_two_fits() -> Training:
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(48, name="h1"),
            layers.BatchNormalization(momentum=0.9, name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Dropout(0.2, name="drop1"),
            layers.Dense(4, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(4e-3), SPARSE, metrics=["accuracy"])
    return Evaluated(model, **species(seed=1405).parts(), epochs=6, batch_size=20)


class Mixed(keras.utils.PyDataset):
    """Batches of mixed pairs: a picture is a part of one and the rest of another, and so is its target (mixup)."""

    def __init__(self, x: Array, y: Array, size: int) -> None:
        super().__init__()
        self.x, self.y, self.size, self.rng = x, y, size, np.random.default_rng(6)

    def __len__(self) -> int:
        return len(self.x) // self.size

    def __getitem__(self, i: int) -> tuple[Array, Array]:
        one, other = (self.rng.choice(len(self.x), self.size, replace=False) for _ in range(2))
        share = self.rng.beta(0.3, 0.3, self.size).astype("float32")
        x = share[:, None, None, None] * self.x[one] + (1 - share[:, None, None, None]) * self.x[other]
        return x, share[:, None] * self.y[one] + (1 - share[:, None]) * self.y[other]


@healthy("conv")
def mixed_pictures_from_a_generator() -> Training:
    data = glyphs(seed=1406).map_y(lambda y: np.eye(5, dtype="float32")[y])
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(24, 3, activation="relu", name="conv2"),
            layers.Flatten(name="flat"),
            layers.Dense(5, "softmax", name="sign"),
        ]
    )
    model.compile(optimizers.Adam(2e-3), "categorical_crossentropy", metrics=["accuracy"])
    return Training(model, Mixed(data.x, data.y, 24), validation=data.validation, epochs=10)


@healthy("dense")
def accumulated_and_ten_steps_at_once() -> Training:
    """Gradients of four batches add up to an update, clipped at a norm of 1; Keras runs ten batches in one call."""
    model = mlp(10, 4, widths=(48, 48), activation="silu", head=None)
    model.compile(
        optimizers.Adam(4e-3, gradient_accumulation_steps=4, global_clipnorm=1.0), LOGITS,
        metrics=["accuracy"], steps_per_execution=10,
    )  # fmt: skip
    return Training(model, **species(seed=1407).parts(), epochs=30, batch_size=16)


@healthy("dense")
def documents_by_muon() -> Training:
    """Muon for the square weights of the body, Adam for the rest, as Keras divides them."""
    model = mlp(300, 4, widths=(48, 48), head=None)
    model.compile(
        optimizers.Muon(
            learning_rate=3e-3, exclude_layers=["head"], weight_decay=1e-3
        ), LOGITS, metrics=["accuracy"],
    )  # fmt: skip
    return Training(model, **documents(seed=1408).parts(), epochs=8, batch_size=32)


@healthy("dense")
def old_rows_weigh_less() -> Training:
    """Sample weights from 0.2 to 1: the older a row, the noisier its target."""
    data = crops(seed=1409)
    age = np.linspace(1, 0, len(data.x)).astype("float32")
    noise = np.random.default_rng(9).normal(size=data.y.shape) * age[:, None]
    model = mlp(8, 1, widths=(32, 32), head=None)
    model.compile(optimizers.RMSprop(2e-3, momentum=0.5), "mse")
    return Training(
        model, data.x, (data.y + 0.5 * noise).astype("float32"), data.validation, epochs=12, batch_size=16,
        sample_weight=1 - 0.8 * age,
    )  # fmt: skip


@healthy("custom")
def student_of_a_wide_teacher() -> Training:
    """Half of the loss is the divergence from the teacher at a temperature of 3, half the labels."""
    data = species(800, classes=5, seed=1410)
    teacher = mlp(10, 5, widths=(128, 128), head=None)
    teacher.compile(optimizers.Adam(2e-3), LOGITS)
    teacher.fit(data.x, data.y, epochs=8, batch_size=32, verbose=0)
    soft = ops.convert_to_numpy(ops.softmax(teacher.predict(data.x, verbose=0) / 3.0))
    hard = np.eye(5, dtype="float32")[data.y]

    def taught(y: Any, p: Any) -> Any:
        apart = losses.kl_divergence(y[:, :5], ops.softmax(p / 3.0)) * 9.0
        return 0.5 * apart + 0.5 * losses.categorical_crossentropy(y[:, 5:], p, from_logits=True)

    model = mlp(10, 5, widths=(24,), head=None)
    model.compile(optimizers.Adam(5e-3), taught)
    return Training(model, data.x, np.concatenate([soft, hard], axis=1), epochs=12, batch_size=25)


@healthy("custom")
def policy_by_its_rewards() -> Training:
    """REINFORCE on a bandit with a context: the policy draws an arm, the loss is -log p times the reward above its mean.

    The loss stays around zero while the reward grows, and a little entropy keeps the policy curious.
    """
    data = species(1280, classes=3, spread=0.5, seed=1411)

    class Policy(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            logits = self(x, training=True)
            drawn = keras.random.categorical(logits, 1, seed=self.get_layer("drawn").seed_generator)
            drawn = ops.one_hot(ops.squeeze(drawn, axis=-1), 3)
            reward = ops.sum(drawn * ops.one_hot(ops.cast(y, "int32"), 3), axis=-1)
            likely = ops.log_softmax(logits)
            better = ops.stop_gradient(reward - ops.mean(reward))
            chaos = -ops.mean(ops.sum(ops.exp(likely) * likely, axis=-1))
            return -ops.mean(better * ops.sum(drawn * likely, axis=-1)) - 0.01 * chaos

    inputs = keras.Input((10,))
    x = layers.GaussianNoise(0.01, name="drawn")(inputs)
    x = layers.Dense(32, "tanh", name="h1")(x)
    x = layers.Dense(32, "tanh", name="h2")(x)
    model = Policy(inputs, layers.Dense(3, name="arms")(x))
    model.compile(optimizers.Adam(3e-3))
    return Training(model, data.x, data.y, epochs=20, batch_size=32)


@healthy("dense")
def lamb_on_a_net_with_group_norms() -> Training:
    stack: list[Any] = [keras.Input((10,))]
    for i in range(3):
        stack += [
            layers.Dense(48, use_bias=False, name=f"h{i}"),
            layers.GroupNormalization(6, name=f"norm{i}"),
        ]
        stack.append(layers.Activation("mish", name=f"mish{i}"))
    model = keras.Sequential([*stack, layers.Dense(4, name="head")])
    model.compile(optimizers.Lamb(1e-2), LOGITS, metrics=["accuracy"])
    return Training(model, **species(seed=1412).parts(), epochs=10, batch_size=32)
