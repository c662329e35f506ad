"""The facts, known when `fit` begins, about the loss that Keras will log at the end of each batch (see `pipeline/batch_loss`).

It only reads existing objects: the data adapter in the frame of `fit` knows the batch size, and the class of the model shows
whether its training step is Keras's. If a fact is unknown, the error bounds are wider.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np

from fitscope.capture.exceptions import iterator_in
from fitscope.pipeline.batch_loss import BatchLoss, Sizes

#: The methods that decide which loss Keras logs. A model that overrides one may log anything.
_DECIDES = (
    "train_step",
    "compute_metrics",
    "get_metrics_result",
    "metrics",
    "reset_metrics",
    "make_train_function",
)


def logged_loss(model: Any, sizes: Sizes) -> BatchLoss | None:
    """The object that derives the loss of every batch of a training of this model; None if the logs do not contain it."""
    if not _alike(model, sizes):
        return None
    return BatchLoss(custom=_custom(model), unit=_unit(model), sizes=sizes)


def sizes_in(frame: FrameType | None) -> Sizes:
    """The sizes of the batches of the coming `fit`, from its frame."""
    iterator = iterator_in(frame) if frame is not None else None
    data = getattr(iterator, "data_adapter", None)
    try:
        batch, batches = data.batch_size, data.num_batches  # type: ignore[union-attr]
        last = data.partial_batch_size if data.has_partial_batch else None  # type: ignore[union-attr]
        # A dataset that does not describe its last batch has one size for all batches, in its shapes, or none.
        runs_on = getattr(iterator, "steps_per_epoch", None) is not None
        return Sizes(int(batch), last or None, batches, runs_on)
    except Exception:  # an unknown object gives no facts
        return Sizes()


def _alike(model: Any, sizes: Sizes) -> bool:
    """Whether every replica of `tf.distribute` has as many rows: Keras logs the mean of their means, each over its own rows."""
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    known = sizes.batch is not None and sizes.batch % replicas == 0
    return replicas == 1 or (known and (sizes.last or 0) % replicas == 0)


def _custom(model: Any) -> bool:
    for name in _DECIDES:
        there = getattr(type(model), name, None)
        there = there.fget if isinstance(there, property) else there
        if name in vars(model) and name != "metrics":
            return True
        if not str(getattr(there, "__module__", "")).startswith("keras."):
            return True
    return False


def _unit(model: Any) -> float:
    """The rounding unit of the sum of losses."""
    dtype = getattr(getattr(model, "_loss_tracker", None), "dtype", None) or "float32"
    try:
        return float(ml_dtypes.finfo(np.dtype(dtype)).eps) / 2
    except (TypeError, ValueError):
        return float(np.finfo(np.float32).eps) / 2
