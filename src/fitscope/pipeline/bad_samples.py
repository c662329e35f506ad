"""Which samples of a batch hold the first NaN or Inf of a site.

Statistics count such values but do not place them, and a later step has spread them over the whole batch. So the writer thread looks
once for each site, at the first step that has any, while it still holds the tensor. Other steps cost one comparison of their counts.

A tensor of which only some rows or statistics leave the step is left out: nothing is said about samples that nobody looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from fitscope.record import Head, Moment
from fitscope.reduce.stats import COUNTS, Columns
from fitscope.sites import TRAIN

Array = np.ndarray[Any, Any]

MOST_SITES = 64  #: that are placed; after the first NaN a training has them everywhere
MOST_NAMED = 16  #: samples that are named, the others are counted

_BAD = [COUNTS.index(name) for name in ("nans", "infs")]


class Step(Protocol):
    """One captured step whose tensors are still there."""

    @property
    def at(self) -> Moment: ...
    def array(self, index: int) -> Array | None:
        """The tensor of one of its heads, as far as it was taken out of the step."""


class BadSamples:
    """The samples of the first bad batch of each site."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}  #: by site, as the run stores it
        self._looked: set[str] = set()

    def look(self, steps: list[Any], heads: tuple[Head, ...], columns: Columns) -> None:
        """Looks at the sites that have NaN or Inf for the first time."""
        bad = columns.counts[:, _BAD].any(axis=1)
        if not bad.any() or heads[0].site.in_pass != TRAIN:
            return
        for at in np.flatnonzero(bad).tolist():
            step, head = steps[at // len(heads)], heads[at % len(heads)]
            if head.site in self._looked or len(self.found) >= MOST_SITES:
                continue
            self._looked.add(head.site)
            if head.batched:
                for placed in _placed(step.array(at % len(heads)), head):
                    self.found[head.site] = {"step": step.at.step, **placed}


def _placed(array: Array | None, head: Head) -> Iterator[dict[str, Any]]:
    """Where the bad samples are, if the whole tensor is there."""
    if array is None or array.size != np.prod(head.shape, dtype=np.int64):
        return
    with np.errstate(invalid="ignore"):  # bfloat16 asks NumPy
        rows = np.flatnonzero(~np.isfinite(array.reshape(head.shape[0], -1)).all(axis=1))
    yield {"samples": rows[:MOST_NAMED].tolist(), "number": len(rows), "of": head.shape[0]}
