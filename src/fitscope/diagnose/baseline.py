"""The loss of a model that ignores its inputs and always predicts the average target, in the recorded batches.

The loss of a batch is compared with that of the average in the same batch, so that easy and hard batches do not matter. It is known
for a squared error and for a binary cross-entropy on labels of 0 and 1; for an absolute error the standard deviation is an upper
bound. Several columns of targets share one average here,
which makes the baseline too high, never too low: a model that is no better has learned nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitscope.diagnose.curves import mean, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.history import Array, History
from fitscope.diagnose.setup import BINARY, SQUARED, only_head

LEAST = 10  #: the fewest batches


class Baseline(NamedTuple):
    """The last third of a training against a model that always predicts the average."""

    loss: float  #: the loss of the training
    average: float  #: the loss of a model that predicts the average
    words: str

    @property
    def share(self) -> float:
        return self.loss / self.average


def baseline(evidence: Evidence) -> Baseline | None:
    """The comparison; None if the loss is not of a known kind, has penalties, or too little was recorded."""
    head, loss = only_head(evidence), evidence.loss
    every = list(evidence.of("targets"))
    if head is None or loss is None or len(every) != 1 or _penalised(evidence):
        return None
    if head.loss in SQUARED:
        expected, words = _of_squares(every[0]), "always predicting the mean of the targets"
    elif head.loss == "MeanAbsoluteError":
        expected, words = _of_squares(every[0]) ** 0.5, "always predicting the mean of the targets (at most)"
    elif head.loss in BINARY and _binary(every[0]):
        expected, words = _of_shares(every[0]), "always predicting the share of the positive class"
    else:
        return None
    begin = loss.steps[0] + 2 * (loss.steps[-1] - loss.steps[0]) / 3
    of_batch = History(every[0].site, "", (), every[0].steps, expected[None])
    seen, other = shared(loss, of_batch)
    late = (seen.steps >= begin) & np.isfinite(seen.value) & np.isfinite(other.data[0])
    if np.count_nonzero(late) < LEAST or not mean(other.data[0][late]) > 1e-12:
        return None
    return Baseline(mean(seen.value[late]), mean(other.data[0][late]), words)


def _of_squares(targets: History) -> Array:
    """For each batch, the mean squared distance of its targets from the mean of all."""
    middle, spread = targets.mean.astype(np.float64), targets.std.astype(np.float64)
    found: Array = spread**2 + (middle - mean(middle)) ** 2
    return found


def _of_shares(targets: History) -> Array:
    """For each batch, the cross-entropy of its labels with the shares of all labels."""
    share = targets.mean.astype(np.float64)
    usual = min(max(mean(share), 1e-7), 1 - 1e-7)
    found: Array = -(share * np.log(usual) + (1 - share) * np.log(1 - usual))
    return found


def _binary(targets: History) -> bool:
    """Whether all targets are 0 or 1: then the variance of each batch follows from its mean."""
    share, spread = targets.mean.astype(np.float64), targets.std.astype(np.float64)
    return bool(np.nanmax(np.abs(spread**2 - share * (1 - share))) < 1e-3 * max(mean(share), 1e-3))


def _penalised(evidence: Evidence) -> bool:
    """Whether the loss has terms that are not about targets."""
    names = (
        "kernel_regularizer",
        "bias_regularizer",
        "activity_regularizer",
        "recurrent_regularizer",
        "embeddings_regularizer",
    )
    layers = evidence.network.layers.values()
    return any(
        layer.get("adds_loss")
        or layer.get("class") == "ActivityRegularization"
        or any(layer.get(name) for name in names)
        for layer in layers
    )
