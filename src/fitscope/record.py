"""The one thing that crosses every border: what was seen at one site at one step.

The capturing side makes records, the store keeps them, the reading side gets them back. Kinds of sites are
data (the site's name), never methods: a store has one `write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.reduce.stats import Stats

#: Walks over data that do not train. Their sites have the same names under `validation/…` and so on.
PASSES = ("validation", "evaluate", "predict")


def pass_of(site: str) -> str | None:
    """The pass that a site belongs to; None for one of the training."""
    head, slash, _ = site.partition("/")
    return head if slash and head in PASSES else None


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in the training something was seen.

    All batches of one pass (`PASSES`) share one step: that of the weights they were computed with.
    """

    step: int  #: the optimizer's iteration count before the step
    epoch: int
    batch: int  #: index of the batch within its epoch, or within its pass
    time: float  #: seconds since 1970, when the step was handed over


@dataclass(frozen=True, slots=True)
class Record:
    """What was seen at one site at one step.

    `shape` and `dtype` are those of the whole tensor in the step. `tensor` holds the values that are kept,
    in that dtype; where only the first samples are kept its first axis is shorter than `shape[0]`. Nobody
    writes into `tensor` after the record was made.
    """

    site: str
    at: Moment
    shape: tuple[int, ...]
    dtype: str
    stats: Stats | None = None
    tensor: np.ndarray[Any, Any] | None = None
    batched: bool = True  #: the first axis of the tensor counts samples
    cosine: float | None = None  #: cosine similarity with the batch before, where that was asked for


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What was seen of each sample of one batch, at one output. Whatever is None was not asked for.

    Nobody writes into the arrays after this was made.
    """

    at: Moment
    phase: str  #: "train", or one of `PASSES`
    output: str = ""  #: the name of the model's output, where it has several
    ids: Sequence[str] | None = None  #: one for each sample
    loss: np.ndarray[Any, Any] | None = None  #: (n,) float64
    weight: np.ndarray[Any, Any] | None = None  #: (n,) float64
    target: np.ndarray[Any, Any] | None = None  #: (n, k)
    prediction: np.ndarray[Any, Any] | None = None  #: (n, m)

    def __len__(self) -> int:
        columns = (self.ids, self.loss, self.weight, self.target, self.prediction)
        return next((len(column) for column in columns if column is not None), 0)

    @property
    def site(self) -> str:
        """The name under which they are counted, where any are lost."""
        return "samples" if self.phase == "train" else f"{self.phase}/samples"
