"""Which rows of a large tensor its statistics are taken from.

Every 2ᵏ-th row of the batch, beginning with the first, where k is the smallest that leaves few enough. Powers of two nest: whatever the
batch, the rows looked at in a large tensor are among those looked at in a smaller one of the same step, so that what is
seen at two layers is about the same samples. A tensor without samples, a weight, is taken as rows of its last axis; a weight,
its gradient and its update then show the same elements.

A record says how many elements were seen (`count`) and of how many (`shape`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ENOUGH = 16_384  #: elements of one tensor; up to that all are read
FEWEST = 2  #: rows, however long they are
SHORT = 128  #: elements of a row up to which all may be read where only the step itself knows how many rows there are


def most_rows(length: int) -> int:
    """How many rows of this length are read at most."""
    return max(ENOUGH // max(length, 1), FEWEST)


def stride(rows: int, length: int) -> int:
    """Every how many-th of so many rows is read; 1: all of them."""
    most, found = most_rows(length), 1
    while -(-rows // found) > most:
        found *= 2
    return found


def as_rows(shape: Sequence[int], *, batched: bool) -> tuple[int, int]:
    """How many rows a tensor has, and how long they are."""
    if not shape:
        return 1, 1
    if batched or len(shape) == 1:
        return shape[0], math.prod(shape[1:])
    return math.prod(shape[:-1]), shape[-1]
