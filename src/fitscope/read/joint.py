"""Joins the batches of one capture into one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.errors import RunError
from fitscope.sites import pass_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Joint:
    """The joined shape, and the position of each batch in it."""

    shape: tuple[int, ...]
    stacked: bool  #: whether it joins several batches or ranks, or batches without samples

    @classmethod
    def of(cls, site: str, parts: Sequence[tuple[bool, tuple[int, ...]]]) -> Joint:
        """Joins these batches, given whether the first axis counts samples, and the shape of each."""
        batched, first = parts[0]
        if len(parts) == 1 and (batched or pass_of(site) is None):
            return cls(first, stacked=False)
        shapes = [shape for _, shape in parts]
        if len({(batched, len(shape)) for batched, shape in parts}) > 1:
            raise RunError(
                f"batches of one number of dimensions at {site!r}",
                f"shapes {sorted(set(shapes))}",
                "Watch the site with statistics only",
            )
        widest = tuple(max(extents) for extents in zip(*shapes, strict=True))
        if batched:
            return cls((sum(shape[0] for shape in shapes), *widest[1:]), stacked=True)
        return cls((len(shapes), *widest), stacked=True)

    def block(self, batch: Array, batched: bool) -> Array:
        """One batch as its stretch along the first axis; padded if batches differ in other axes."""
        if not self.stacked:
            return batch
        block = batch if batched else batch[None]
        return block if block.shape[1:] == self.shape[1:] else _padded(block, (len(block), *self.shape[1:]))


def padding(dtype: np.dtype[Any]) -> float:
    """The fill value beyond the end of a shorter capture."""
    return 0 if dtype.kind in "iub" else np.nan


def _padded(block: Array, shape: tuple[int, ...]) -> Array:
    padded = np.full(shape, padding(block.dtype), block.dtype)
    padded[tuple(slice(extent) for extent in block.shape)] = block
    return padded
