"""Computes the share of each class among the targets and the predictions of a batch, and the log loss of each sample.

The loss of an output defines its classes: labels, one-hot rows, or one probability (or logit) for two classes. Without such a
loss, as in a custom step, integer targets are labels of as many classes as the output has units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST = 4_096  #: classes
ENOUGH = 65_536  #: predicted numbers that a log loss reads: the first samples of a large batch suffice
# The upper limit of a log loss, which is infinite for a probability of zero; Keras clips it at 16.
_UTMOST = 50.0


class NotDerived(Exception):  # noqa: N818 - a reason, not an error
    """The reason why something cannot be derived from a tensor."""


class Classes:
    """Interprets batches with the losses and outputs of a model."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        self._losses: list[Mapping[str, Any]] = list(configuration.get("losses") or ())
        self._outputs: list[Mapping[str, Any]] = list(configuration.get("outputs") or ())

    def targets(self, part: str, targets: Array | None, predictions: Array | None) -> Array:
        """The share of each class among the targets of one output."""
        if targets is None:
            raise NotDerived("the step was given no targets")
        kind, classes = self._kind(part, targets, predictions)
        if kind == "labels":
            return _shares(targets.reshape(-1), classes)
        if kind == "binary":
            return _shares((targets.reshape(-1) >= 0.5).astype(np.int64), 2)
        return _shares(_largest(targets), classes)

    def predictions(self, part: str, targets: Array | None, predictions: Array | None) -> Array:
        """The share of each class among the predictions of one output."""
        if predictions is None:
            raise NotDerived("the step does not call the model")
        kind, classes = self._kind(part, targets, predictions)
        if kind != "binary":
            return _shares(_largest(predictions), classes)
        values = predictions.reshape(-1)
        bound = 0.0 if self._loss(part).get("from_logits") else 0.5
        return _shares((values[~np.isnan(values.astype(np.float32))] > bound).astype(np.int64), 2)

    def log_loss(self, part: str, targets: Array | None, predictions: Array | None) -> Array:
        """−log of the predicted probability of the true class, for each sample (and position)."""
        if targets is None or predictions is None:
            raise NotDerived("the step has no targets or no predictions")
        if not str(self._loss(part).get("class")).endswith("Crossentropy"):
            raise NotDerived("the loss is not a cross-entropy")
        kind, classes = self._kind(part, targets, predictions)
        logits = bool(self._loss(part).get("from_logits"))
        if kind == "binary":
            return _log_loss_of_two(
                targets.reshape(-1) >= 0.5, predictions.reshape(-1)[:ENOUGH], logits=logits
            )
        labels = targets.reshape(-1) if kind == "labels" else targets.reshape(-1, classes).argmax(axis=1)
        return _log_loss(labels, predictions.reshape(-1, classes)[: max(ENOUGH // classes, 1)], logits=logits)

    def of_steps(self, part: str, targets: Array, predictions: Array) -> tuple[Array, Array, Array] | None:
        """Targets, predictions and log loss of several steps, stacked; None if they must be computed step by step."""
        kind, classes = self._kind(part, targets[0], predictions[0])
        steps, labels = len(targets), targets.reshape(len(targets), -1)
        rows = predictions.reshape(steps, -1, classes)
        plain = kind == "labels" and targets.dtype.kind in "iu" and predictions.dtype.kind == "f"
        if not plain or predictions.dtype.itemsize < 4 or labels.shape[1] != rows.shape[1]:
            return None
        if (labels < 0).any() or (labels >= classes).any() or np.isnan(rows).any():
            return None
        if not str(self._loss(part).get("class")).endswith("Crossentropy"):
            return None
        some = rows[:, : max(ENOUGH // classes, 1)]
        logits = bool(self._loss(part).get("from_logits"))
        log_loss = _log_loss(
            labels[:, : some.shape[1]].reshape(-1), some.reshape(-1, classes), logits=logits
        ).reshape(steps, -1)
        return _shares_of_steps(labels, classes), _shares_of_steps(rows.argmax(axis=2), classes), log_loss

    def by_data(self, part: str) -> bool:
        """Whether the values of a step, and not only shape and dtype, decide what can be derived from it."""
        return self._loss(part).get("classification") in ("one-hot", "binary")

    def _kind(self, part: str, targets: Array | None, predictions: Array | None) -> tuple[str, int]:
        """The form of the targets ("labels", "one-hot", "binary"), and the number of classes."""
        kind = self._loss(part).get("classification")
        units = (
            predictions.shape[-1] if predictions is not None and predictions.ndim > 1 else self._units(part)
        )
        whole = targets is not None and targets.dtype.kind in "iub"
        if kind is None and not (whole and not self._losses and units is not None and units > 1):
            raise NotDerived("the loss is not one of classes")
        if units is None:
            raise NotDerived("the number of classes is not known")
        if units > MOST:
            raise NotDerived(f"there are more than {MOST:,} classes")
        if units == 1:
            if kind == "binary":
                return "binary", 2
            raise NotDerived("one output unit has no classes with this loss")
        if kind is None:
            kind = "labels"
        if kind == "labels" and targets is not None and predictions is not None:
            labels = targets.ndim < predictions.ndim or targets.shape[-1] == 1
            if not labels:
                raise NotDerived("the targets are not one label for each prediction")
        if kind in ("one-hot", "binary"):
            if targets is not None and not _one_hot(targets, units):
                raise NotDerived("a sample may have several classes: its targets are not one-hot")
            kind = "one-hot"
        return kind, units

    def _loss(self, part: str) -> Mapping[str, Any]:
        return _at(self._losses, "output", part)

    def _units(self, part: str) -> int | None:
        shape = _at(self._outputs, "name", part).get("shape")
        return shape[-1] if shape else None


def _log_loss_of_two(labels: Array, predictions: Array, *, logits: bool) -> Array:
    values = predictions.astype(np.float64)
    with np.errstate(all="ignore"):  # what is broken gives NaN
        ones = values if logits else np.log(values) - np.log1p(-values)
        found = np.logaddexp(0, np.where(_matching(labels, values), -ones, ones))
    return np.minimum(found, _UTMOST).astype(np.float32)


def _log_loss(labels: Array, predictions: Array, *, logits: bool) -> Array:
    values = predictions.astype(np.float64)
    labels = _matching(labels, values).astype(np.int64)
    known = (labels >= 0) & (labels < values.shape[1])
    values, labels = values[known], labels[known]
    with np.errstate(all="ignore"):  # what is broken gives NaN
        logs = values if logits else np.log(values)
        found = np.logaddexp.reduce(logs, axis=1) - logs[np.arange(len(labels)), labels]
    cut: Array = np.minimum(found, _UTMOST).astype(np.float32)
    return cut


def _matching(labels: Array, values: Array) -> Array:
    if len(labels) < len(values):
        raise NotDerived("the targets are not one label for each prediction")
    return labels[: len(values)]


def _at(things: list[Mapping[str, Any]], key: str, part: str) -> Mapping[str, Any]:
    """The item of an output, by the end of its site's name: "", "/name" or "[0]"."""
    if not part:
        return things[0] if len(things) == 1 else {}
    if part.startswith("[") and part[1:-1].isdigit():
        number = int(part[1:-1])
        return things[number] if number < len(things) else {}
    return next((thing for thing in things if thing.get(key) == part[1:]), {})


def _one_hot(targets: Array, classes: int) -> bool:
    """Whether each row describes one class; soft labels, which sum to one, count too."""
    rows = targets.reshape(-1, targets.shape[-1]) if targets.ndim > 1 else targets.reshape(-1, 1)
    return rows.shape[1] == classes and bool(
        np.abs(rows.sum(axis=1, dtype=np.float64) - 1).max(initial=0.0) < 1e-3
    )


def _largest(values: Array) -> Array:
    """The class of each row; rows with NaN have none."""
    rows = values.reshape(-1, values.shape[-1])
    if rows.dtype.kind == "V" or rows.dtype.itemsize < 4:  # NumPy has no maximum of bfloat16
        rows = rows.astype(np.float32)
    found: Array = rows.argmax(axis=1)
    best = rows[np.arange(len(rows)), found]
    there: Array = ~np.isnan(best) if rows.dtype.kind == "f" else np.ones(len(rows), bool)
    return found[there]


def _shares(labels: Array, classes: int) -> Array:
    """The share of each class among all labels. Unknown labels count only in the total."""
    total = len(labels)
    if labels.dtype.kind == "f" or labels.dtype.kind == "V":
        labels = labels.astype(np.float64)
        labels = labels[np.isfinite(labels)].astype(np.int64)
    labels = labels[(labels >= 0) & (labels < classes)].astype(np.int64)
    return (np.bincount(labels, minlength=classes) / max(total, 1)).astype(np.float32)


def _shares_of_steps(labels: Array, classes: int) -> Array:
    """The share of each class at each step; all labels are known ones."""
    steps, total = labels.shape
    places = labels.astype(np.int64) + classes * np.arange(steps)[:, None]
    counts = np.bincount(places.reshape(-1), minlength=steps * classes).reshape(steps, classes)
    shares: Array = (counts / max(total, 1)).astype(np.float32)
    return shares
