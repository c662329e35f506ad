"""Keras layers for use inside a model: `Tap` and `BatchChange`.

Keras saves, loads, clones and exports them with the model, on every backend. `Tap`, and `BatchChange` with output="input", return
their input unchanged.

This module imports Keras, so Python loads it on first use; `import fitscope` alone does not. Before you load a saved model that
contains these layers, run `import fitscope.layers`, so that Keras knows them.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, Literal

import keras
from keras import ops

from fitscope.capture.tap import tap
from fitscope.errors import ModelError, WatchError, one_of

__all__ = ["BatchChange", "ResetBatchChange", "Tap"]

PACKAGE = "fitscope"  #: the package name that Keras stores in a saved model


@keras.saving.register_keras_serializable(PACKAGE)
class Tap(keras.layers.Layer):
    """Returns its input unchanged and records it as the site `taps/<name of the layer>`.

    The input is a tensor or any structure of tensors, of any dtype; masks pass through. Without a scope, and in steps that are not
    captured, the compiled model is the same as without the layer.
    """

    shows_itself = True  #: so `fs.activations()` skips it unless you name it

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        # The output must equal the input, whatever the dtype policy.
        super().__init__(name=name, **{**kwargs, "autocast": False})
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        return tap(self.name, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.tree.map_structure(_spec, inputs)


@keras.saving.register_keras_serializable(PACKAGE)
class BatchChange(keras.layers.Layer):
    """The change of its input from the previous training batch.

    Args:
        output: What the layer returns: `"input"` (unchanged) or `"change"` (the input minus that of the previous batch).
        batch_size: The largest number of rows in a training batch. Required unless the model has a fixed batch size.

    The layer compares row by row. The change is zero for the first batch, and for rows that the previous batch did not have. Gradients
    flow through the current input only. After each training batch the layer also holds

        layer.mean_change   the mean of |change| over the rows that both batches have; 0 after the first batch
        layer.max_change    its maximum

    and a scope records the change itself as `taps/<name of the layer>`.

    The previous batch is part of the model's state, like the moving statistics of `BatchNormalization`. Only training updates it, and
    Keras saves it with the model. In evaluation and prediction, `"input"` does nothing, and `"change"` compares with the newest
    training batch (further rows: zero). The first batch of an epoch is compared with the last batch of the epoch before. To avoid
    that, add `ResetBatchChange()` to the callbacks or call `layer.reset()`.

    Use one layer object in one place only: called twice in a step, it compares the second call with the first.
    """

    def __init__(
        self, output: Literal["input", "change"] = "input", batch_size: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{**kwargs, "autocast": False})  # casting would round the values
        self.supports_masking = True
        if output not in ("input", "change"):
            raise WatchError(
                "one of the choices for `output`", repr(output), one_of(("input", "change"), str(output))
            )
        if batch_size is not None and (not isinstance(batch_size, Integral) or int(batch_size) < 1):
            raise WatchError(
                "`batch_size` to be a number of rows", repr(batch_size), "Write BatchChange(batch_size=32)"
            )
        self.gives = output  # not `output`: Keras uses that name for a tensor
        self.batch_size = None if batch_size is None else int(batch_size)

    def build(self, input_shape: Any) -> None:
        if not all(n is None or isinstance(n, int) for n in input_shape):
            raise ModelError(
                f"BatchChange {self.name!r} to be given one tensor",
                f"inputs of shapes {input_shape}",
                "Use one BatchChange for each",
            )
        shape = tuple(input_shape)  # a loaded model passes a list
        rows = self.batch_size or shape[0]
        if rows is None:
            raise ModelError(
                f"BatchChange {self.name!r} to know how many rows a batch has at most",
                f"an input of shape {shape}",
                "Write BatchChange(batch_size=32), with the batch size you train with",
            )
        if None in shape[1:]:
            raise ModelError(
                f"BatchChange {self.name!r} to be given rows of one shape",
                f"an input of shape {shape}",
                "fitscope cannot subtract rows of different lengths. Place BatchChange where the length is fixed, "
                "or pad all rows to the same length",
            )
        dtype = self._kept_dtype()
        state = {"initializer": "zeros", "trainable": False, "autocast": False}
        self.previous = self.add_weight(name="previous", shape=(rows, *shape[1:]), dtype=dtype, **state)
        # The number of rows of `previous` that count.
        self.rows = self.add_weight(name="rows", shape=(), dtype="int", **state)
        self.mean_change = self.add_weight(name="mean_change", shape=(), dtype=dtype, **state)
        self.max_change = self.add_weight(name="max_change", shape=(), dtype=dtype, **state)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.gives == "input" and not training:
            return inputs
        self._check(inputs, most=self.previous.shape[0] if training else None)
        now = ops.cast(inputs, self._kept_dtype())
        change = self._change(now)
        if training:
            self._keep(ops.stop_gradient(now), ops.abs(ops.stop_gradient(change)))
        change = tap(self.name, ops.cast(change, self._output_dtype(inputs)))
        return change if self.gives == "change" else inputs

    def reset(self) -> None:
        """Forgets the previous batch, so the next one counts as the first. Call it between batches, not during a step."""
        self.rows.assign(0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:  # noqa: ARG002
        return keras.KerasTensor(inputs.shape, dtype=self._output_dtype(inputs))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "output": self.gives, "batch_size": self.batch_size}

    def _output_dtype(self, inputs: Any) -> str:
        """The dtype of the output: that of the input. The change of whole numbers may be negative, so it is a float."""
        dtype: str = keras.backend.standardize_dtype(inputs.dtype)
        keeps = self.gives == "input" or keras.backend.is_float_dtype(dtype)
        return dtype if keeps else self._kept_dtype()

    def _kept_dtype(self) -> str:
        """The dtype of the difference and its mean: at least float32."""
        return str(keras.backend.result_type(self.variable_dtype, "float32"))

    def _change(self, now: Any) -> Any:
        # Gathered, not sliced: the number of rows may be known only when the step runs (TensorFlow) or be a symbol (export).
        row = ops.arange(ops.shape(now)[0], dtype="int32")
        before = ops.take(self.previous, ops.minimum(row, self.previous.shape[0] - 1), axis=0)
        had = ops.reshape(row < ops.cast(self.rows, "int32"), (-1, *[1] * (len(now.shape) - 1)))
        return ops.where(had, now - ops.stop_gradient(before), ops.zeros_like(now))

    def _keep(self, now: Any, size: Any) -> None:
        """Keeps this batch, to compare the next one with it."""
        rows, features = ops.shape(now)[0], math.prod(self.previous.shape[1:])
        both = ops.minimum(ops.cast(rows, "int32"), ops.cast(self.rows, "int32"))
        count = ops.cast(ops.maximum(both, 1), size.dtype) * features
        self.mean_change.assign(ops.sum(size) / count)
        self.max_change.assign(ops.max(size))
        # TensorFlow traces a step for any number of rows. If there are too many, this fails and names the scope.
        with keras.name_scope(f"{self.name}_got_a_batch_of_more_than_{self.previous.shape[0]}_rows"):
            latest = ops.concatenate([now, self.previous[rows:]])
            self.previous.assign(ops.reshape(latest, self.previous.shape))
        self.rows.assign(ops.cast(rows, self.rows.dtype))

    def _check(self, inputs: Any, most: int | None) -> None:
        rows, *features = inputs.shape
        held = tuple(self.previous.shape[1:])
        wrong: ModelError | None = None
        if len(features) != len(held) or any(n not in (None, m) for n, m in zip(features, held, strict=True)):
            wrong = ModelError(
                f"BatchChange {self.name!r} to be given rows of shape {held}, as in its first batch",
                f"an input of shape {tuple(inputs.shape)}",
                "Use one BatchChange for each shape",
            )
        elif most is not None and isinstance(rows, int) and rows > most:
            wrong = ModelError(
                f"BatchChange {self.name!r} to be given at most {most} rows"
                + ("" if self.batch_size else ", as many as its first batch had"),
                f"a batch of {rows}",
                f"Write BatchChange(batch_size={rows})",
            )
        if wrong is not None:
            # Keras 3.15 replaces an exception from call() with a new one, unless the exception has this attribute.
            wrong._keras_call_info_injected = True  # type: ignore[attr-defined]
            raise wrong


class ResetBatchChange(keras.callbacks.Callback):
    """A callback that resets every `BatchChange` of the model at the start of each epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        for layer in self.model._flatten_layers():
            if isinstance(layer, BatchChange) and layer.built:
                layer.reset()


def _spec(tensor: Any) -> Any:
    return keras.KerasTensor(tensor.shape, dtype=tensor.dtype, sparse=getattr(tensor, "sparse", False))
