"""Models and layers that several programs are made of, with names that a verdict can refer to.

`OwnStep` is a model whose training step is written by hand, once for each backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops

SPARSE = "sparse_categorical_crossentropy"
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mlp(
    inputs: int, outputs: int, *, widths: Sequence[int] = (32, 32), activation: Any = "relu", head: Any = "softmax",
    change: Mapping[str, Mapping[str, Any]] | None = None, **common: Any,
) -> Any:  # fmt: skip
    """Dense layers `h1`, `h2`, … and `head`. `common` is for all hidden layers, `change` for single ones, by name."""
    change = change or {}
    inside = []
    for i, width in enumerate(widths, 1):
        settings: dict[str, Any] = {"activation": activation, **common, **change.get(f"h{i}", {})}
        inside.append(layers.Dense(width, name=f"h{i}", **settings))
    settings = {"activation": head, **change.get("head", {})}
    return keras.Sequential(
        [layers.Input((inputs,)), *inside, layers.Dense(outputs, name="head", **settings)]
    )


def convnet(
    outputs: int, *, size: int = 8, activation: Any = "relu", head: Any = "softmax",
    change: Mapping[str, Mapping[str, Any]] | None = None, after: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """`conv1`, `conv2`, `pool`, `head`. `after` puts a layer behind the one named."""
    change, after = change or {}, after or {}
    stack: list[Any] = [layers.Input((size, size, 1))]
    for name, filters, strides in (("conv1", 8, 1), ("conv2", 12, 2)):
        settings: dict[str, Any] = {"activation": activation, "padding": "same", "strides": strides}
        stack.append(layers.Conv2D(filters, 3, name=name, **{**settings, **change.get(name, {})}))
        stack += [after[name]] if name in after else []
    stack.append(layers.Flatten(name="flatten"))
    stack += [after["flatten"]] if "flatten" in after else []
    stack.append(layers.Dense(outputs, name="head", **{"activation": head, **change.get("head", {})}))
    return keras.Sequential(stack)


class Call(layers.Layer):
    """A custom layer that calls a function."""

    def __init__(self, function: Callable[..., Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


class OwnAttention(layers.Layer):
    """Single-head attention as people write it; `mask` (batch, keys) is added to the scores as `masked` where it is 0."""

    def __init__(
        self,
        width: int,
        *,
        axis: int = -1,
        scale: bool = True,
        masked: float = -1e9,
        spread: float = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.width, self.axis, self.scale, self.masked = width, axis, scale, masked
        start = keras.initializers.VarianceScaling(spread, "fan_avg", "uniform")
        self.query = layers.Dense(width, name="query", kernel_initializer=start)
        self.key = layers.Dense(width, name="key", kernel_initializer=start)
        self.value = layers.Dense(width, name="value")

    def build(self, shape: Any) -> None:
        inner = shape[0] if isinstance(shape[0], tuple | list) else shape
        for part in (self.query, self.key, self.value):
            part.build(inner)

    def call(self, x: Any) -> Any:
        x, mask = x if isinstance(x, list | tuple) else (x, None)
        scores = ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1)))
        if self.scale:
            scores = scores / self.width**0.5
        if mask is not None:
            scores = ops.where(mask[:, None, :] > 0, scores, self.masked)
        return ops.matmul(ops.softmax(scores, axis=self.axis), self.value(x))

    def compute_output_shape(self, shape: Any) -> Any:
        inner = shape[0] if isinstance(shape[0], tuple | list) else shape
        return (*inner[:-1], self.width)


def transformer(
    vocabulary: int = 20, length: int = 10, width: int = 16, *, blocks: int = 1, norm_first: bool = True,
    classes: int = 2, **first: Any,
) -> Any:  # fmt: skip
    """A small encoder of tokens: `embedding`, then per block `attn1`, `norm1a`, `ff1`, `norm1b`, and `head`."""
    words = layers.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width, name="embedding", **first)(words)
    for i in range(1, blocks + 1):
        attention = layers.MultiHeadAttention(2, width // 2, name=f"attn{i}")
        near, wide = layers.LayerNormalization(name=f"norm{i}a"), layers.LayerNormalization(name=f"norm{i}b")
        up, down = layers.Dense(2 * width, "gelu", name=f"up{i}"), layers.Dense(width, name=f"down{i}")
        if norm_first:
            inner = near(x)
            x = layers.Add(name=f"add{i}a")([x, attention(inner, inner)])
            x = layers.Add(name=f"add{i}b")([x, down(up(wide(x)))])
        else:
            x = near(layers.Add(name=f"add{i}a")([x, attention(x, x)]))
            x = wide(layers.Add(name=f"add{i}b")([x, down(up(x))]))
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(words, layers.Dense(classes, "softmax", name="head")(x))


class OwnStep(keras.Model):
    """A model with a training step of its own. `objective(x, y)` is the loss; `chosen` are the weights that it trains."""

    def objective(self, x: Any, y: Any) -> Any:
        return self.compute_loss(x=x, y=y, y_pred=self(x, training=True))

    def chosen(self, weight: Any) -> bool:
        """Whether the optimizer gets the gradient of this weight."""
        return True

    def train_step(self, *given: Any) -> Any:
        step = {"jax": self._on_jax, "tensorflow": self._on_tensorflow, "torch": self._on_torch}
        return step[keras.backend.backend()](*given)

    def _on_tensorflow(self, batch: Any) -> Any:
        import tensorflow as tf

        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.objective(x, y)
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        pairs = [pair for pair in zip(gradients, weights, strict=True) if self.chosen(pair[1])]
        self.optimizer.apply_gradients(pairs)
        return self._logs(loss)

    def _on_torch(self, batch: Any) -> Any:
        import torch

        x, y = batch
        self.zero_grad()
        loss = self.objective(x, y)
        loss.backward()
        weights = [one for one in self.trainable_weights if self.chosen(one)]
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in weights], weights)
        return self._logs(loss)

    def _on_jax(self, state: Any, batch: Any) -> Any:
        import jax

        x, y = batch
        trainable, non_trainable, optimizer, _ = state

        def loss_and_state(trainable: Any) -> Any:
            mapping = [
                *zip(self.trainable_variables, trainable, strict=True),
                *zip(self.non_trainable_variables, non_trainable, strict=True),
            ]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                loss = self.objective(x, y)
            return loss, [scope.get_current_value(one) for one in self.non_trainable_variables]

        (loss, non_trainable), gradients = jax.value_and_grad(loss_and_state, has_aux=True)(trainable)
        wanted = [self.chosen(one) for one in self.trainable_variables]
        gradients = [g if yes else ops.zeros_like(g) for g, yes in zip(gradients, wanted, strict=True)]
        moved, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        trainable = [new if yes else old for new, old, yes in zip(moved, trainable, wanted, strict=True)]
        tracker = self.metrics[0]
        mean, others = state[3][: len(tracker.variables)], state[3][len(tracker.variables) :]
        mean = tracker.stateless_update_state(mean, loss)
        return {"loss": tracker.stateless_result(mean)}, (
            trainable,
            non_trainable,
            optimizer,
            [*mean, *others],
        )

    def _logs(self, loss: Any) -> Any:
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}
