"""Selects the rows of a large tensor for its statistics.

It takes every 2ᵏ-th row of the batch, starting with the first, with the smallest k that leaves few enough. Powers of two nest:
the rows read in a larger tensor are among those read in a smaller one of the same step. So statistics of two layers describe the
same samples. A tensor without samples, such as a weight, counts as rows of its last axis. So for a weight, its gradient and its
update the same elements are read.

A record holds the number of elements read (`count`) and the full `shape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ENOUGH = 16_384  #: elements of a tensor up to which all are read
FEWEST = 2  #: rows that are read, however long they are
SHORT = 128  #: elements of a row up to which all rows may be read if only the step itself knows their number


def most_rows(length: int) -> int:
    """The maximum number of rows of this length to read."""
    return max(ENOUGH // max(length, 1), FEWEST)


def stride(rows: int, length: int) -> int:
    """The stride between the rows to read; 1 means all rows."""
    most, found = most_rows(length), 1
    while -(-rows // found) > most:
        found *= 2
    return found


def as_rows(shape: Sequence[int], *, batched: bool) -> tuple[int, int]:
    """The number of rows of a tensor, and their length."""
    if not shape:
        return 1, 1
    if batched or len(shape) == 1:
        return shape[0], math.prod(shape[1:])
    return math.prod(shape[:-1]), shape[-1]
