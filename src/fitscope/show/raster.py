"""Computes the numbers of a small heat map, layers by steps, from the evidence of a training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fitscope.diagnose import Evidence
from fitscope.diagnose.history import History
from fitscope.show.squeeze import INF, MISSING, NAN, VALUE, Grid

COLUMNS = 150  #: columns of the map
WIDEST = 8  #: columns that one captured step may fill


def raster(rows: Sequence[History | None], first: int, last: int) -> Grid:
    """The rms of each row in columns of equally many steps, the largest in a column.

    A captured step fills the columns up to the next one, but at most `WIDEST`: nothing was recorded between distant captures.
    """
    values = np.full((len(rows), COLUMNS), np.nan)
    marks = np.full((len(rows), COLUMNS), MISSING)
    each = COLUMNS / (last - first + 1)  # the number of columns of one step
    columns = np.arange(COLUMNS)
    for i, history in enumerate(rows):
        if history is None or not len(history):
            continue
        at = np.clip(((history.steps - first) * each).astype(np.int64), 0, COLUMNS - 1)
        np.fmax.at(values[i], at, history.peak)
        np.maximum.at(marks[i], at, np.where(history.nans > 0, NAN, np.where(history.infs > 0, INF, VALUE)))
        there = np.flatnonzero(marks[i] != MISSING)
        # Before the first step, index -1 is the last one.
        newest = there[np.searchsorted(there, columns, side="right") - 1]
        near = (newest <= columns) & (columns - newest < max(WIDEST, np.ceil(each)))
        values[i] = np.where(near, values[i][newest], np.nan)
        marks[i] = np.where(near, marks[i][newest], MISSING)
    return Grid(values, marks)


def by_layer(evidence: Evidence, kind: str) -> dict[str, History]:
    """The first history of each layer."""
    found: dict[str, History] = {}
    for history in evidence.of(kind):
        if history.site.layer:
            found.setdefault(history.site.layer, history)
    return found
