"""Finds the samples of a batch that hold the first NaN or Inf of a site.

Statistics count such values but do not place them, and a later step has spread them over the whole batch. So the writer thread looks
once for each site, at the first step that has any, while it still holds the tensor. Other steps cost one comparison of their counts.

If only some rows or statistics of a tensor leave the step, fitscope names no samples of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fitscope.record import Block, Head
from fitscope.reduce.stats import COUNTS
from fitscope.sites import TRAIN

Array = np.ndarray[Any, Any]

MOST_SITES = 64  #: sites whose bad samples fitscope looks for; after the first NaN they are everywhere
MOST_NAMED = 16  #: samples that the run names; it counts the others

_BAD = [COUNTS.index(name) for name in ("nans", "infs")]


class BadSamples:
    """The samples of the first bad batch of each site."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}  #: the bad samples of each site, as the run stores them
        self._looked: set[str] = set()

    def look(self, block: Block, array: Callable[[int, int], Array | None]) -> None:
        """Looks at the sites of a block that have NaN or Inf for the first time. Passes are left out.

        `array` gives the tensor at one of its steps and of one of its heads, as far as it left the step.
        """
        bad = block.stats.counts[:, _BAD].any(axis=1)
        if not bad.any() or block.heads[0].site.in_pass != TRAIN:
            return
        for at in np.flatnonzero(bad).tolist():
            step, number = divmod(at, len(block.heads))
            head = block.heads[number]
            if head.site in self._looked or len(self.found) >= MOST_SITES:
                continue
            self._looked.add(head.site)
            if head.batched:
                placed = _placed(array(step, number), head)
                if placed is not None:
                    self.found[head.site] = {"step": block.ats[step].step, **placed}


def _placed(array: Array | None, head: Head) -> dict[str, Any] | None:
    """Where the bad samples are; None if a part of the tensor is missing."""
    if array is None or array.size != np.prod(head.shape, dtype=np.int64):
        return None
    with np.errstate(invalid="ignore"):  # bfloat16 computes with NumPy
        rows = np.flatnonzero(~np.isfinite(array.reshape(head.shape[0], -1)).all(axis=1))
    return {"samples": rows[:MOST_NAMED].tolist(), "number": len(rows), "of": head.shape[0]}
