"""The one thing that crosses every border: what was seen at one site at one step.

The capturing side makes records, the store keeps them, the reading side gets them back. Kinds of sites are
data (the site's name), never methods: a store has one `write`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.reduce.stats import Stats


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in the training something was seen."""

    step: int  #: the optimizer's iteration count before the step
    epoch: int
    batch: int  #: index of the batch within its epoch
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
