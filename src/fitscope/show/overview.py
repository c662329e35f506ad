"""The data of the terminal view: the layers, their measures over the steps, and the newest values.

They are the same numbers as on the page: read part by part, reduced to extremes, and updated with new parts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import numpy as np

from fitscope.show.data import exact
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE, Array, Cells, Matrix
from fitscope.show.data.measures import Columns, Groups
from fitscope.show.data.rows import AFTER, BEFORE, Row
from fitscope.show.squeeze import INF as INF_MARK
from fitscope.show.squeeze import MISSING, Grid
from fitscope.show.squeeze import NAN as NAN_MARK
from fitscope.show.squeeze import VALUE as VALUE_MARK
from fitscope.sites import OF_LAYERS, OF_WEIGHTS

#: The measures that the terminal shows, if the run has them.
SHOWN = ("activations.rms", "gradients.rms", "updates.ratio", "activations.zeros")

_COLUMNS = ("mean", "rms", "zeros", "count", "nans", "infs")


class Overview:
    """The numbers of one run for the terminal view."""

    def __init__(self, gathered: Gathered) -> None:
        self.run = gathered.run
        self.loss = gathered.survey.loss
        self.epoch = max(gathered.survey.epochs, default=None)
        self.findings = gathered.findings
        self.checked = gathered.diagnosis.summary
        self._first = gathered.survey.facts.first
        self._place = {row.name: i for i, row in enumerate(gathered.rows)}
        self.layers = [row for row in gathered.rows if _is_layer(row)]
        self._measures = {m.key: m for m in gathered.measures if m.key in SHOWN}
        self._matrices = gathered.matrices(list(self._measures))
        steps = [matrix.steps for matrix in self._matrices.values()]
        self.steps: Array = np.unique(np.concatenate(steps)) if steps else np.empty(0, np.int64)
        sites = [site for row in self.layers for kind in _NEEDED for site in row.sites.get(kind, ())]
        last = gathered.survey.last_step
        self._newest = {} if last is None else exact.rows_at(gathered, sites, last, _COLUMNS)

    def chosen(self, pattern: str | None) -> list[Row]:
        """The layers whose names match a glob."""
        return [layer for layer in self.layers if pattern is None or fnmatch.fnmatchcase(layer.name, pattern)]

    def measures(self) -> list[str]:
        """The keys of the measures to draw as layers by steps, the most important first."""
        return [key for key in SHOWN[:2] if key in self._matrices and self._matrices[key].count]

    def grid(self, key: str, layers: Sequence[Row], columns: int) -> Grid:
        """A measure of layers in a number of columns, in the domain of its scale; None without such a measure."""
        matrix = self._matrices.get(key)
        if matrix is None or not matrix.count:
            return Grid(np.zeros((len(layers), 1)), np.full((len(layers), 1), MISSING))
        whole = grid(matrix, columns)
        places = [self._place[layer.name] for layer in layers]
        return Grid(whole.values[places], whole.marks[places])

    def newest(self, key: str, layer: Row) -> tuple[float, int] | None:
        """The newest exact value of a measure, in the domain of its scale, with its mark. None if there is none."""
        measure = self._measures.get(key)
        rows = [
            (kind, self._newest[site][0])
            for kind, name in enumerate(measure.kinds if measure is not None else ())
            for site in layer.sites.get(name, ())
            if site in self._newest
        ]
        if measure is None or not rows:
            return None
        c: Columns = {name: np.array([row[name] for _, row in rows], float) for name in _COLUMNS}
        c["kind"] = np.array([kind for kind, _ in rows])
        value = float(measure.value(c, Groups(np.array([0]), len(rows)))[0])
        for name, mark in (("nans", NAN_MARK), ("infs", INF_MARK)):
            if c[name].any():
                return value, mark
        return None if np.isnan(value) else (value, VALUE_MARK)

    def mean(self, layer: Row) -> float | None:
        """The newest mean of the finite values of a layer's output."""
        site = layer.sites.get("activations", ("",))[0]
        found = self._newest[site][0]["mean"] if site in self._newest else None
        return None if found is None else float(found)

    def first(self, layer: Row, stat: str) -> tuple[int, str] | None:
        """The first step with a NaN (`nans`) or Inf (`infs`) at a site of a layer, and the kind of that site."""
        found = [
            (self._first[stat][site], order, kind)
            for order, kind in enumerate((*OF_LAYERS, *OF_WEIGHTS))
            for site in layer.sites.get(kind, ())
            if site in self._first[stat]
        ]
        return (min(found)[0], min(found)[2]) if found else None


_NEEDED = ("activations", "gradients", "updates", "weights")  # kinds of site whose newest numbers are shown


def _is_layer(row: Row) -> bool:
    """Whether a row belongs in the table: a row of the training that is not an input or a target."""
    return row.type not in (*BEFORE, *AFTER) and any(kind in row.sites for kind in (*OF_LAYERS, *OF_WEIGHTS))


def grid(matrix: Matrix, columns: int) -> Grid:
    """A matrix in a number of columns; each cell is the value farthest from the middle of its row."""
    level = matrix.level_for(max(4 * columns, 64))
    cells = matrix.window(level, 0, matrix.columns(level))
    marks = np.where(cells.flags & VALUE, VALUE_MARK, MISSING)
    marks[(cells.flags & INF) > 0] = INF_MARK
    marks[(cells.flags & NAN) > 0] = NAN_MARK
    return Grid(far(matrix, cells), marks).columns(columns)


def far(matrix: Matrix, cells: Cells) -> Array:
    """The lowest or highest value of each cell, whichever is farther from the middle of its row; NaN if there is none."""
    known = (cells.flags & VALUE) > 0
    low, high = (np.where(known, matrix.code.decode(side), np.nan) for side in (cells.low, cells.high))
    seen = [row[flags] for row, flags in zip((low + high) / 2, known, strict=True)]
    middle = np.array([np.median(row) if len(row) else 0.0 for row in seen])[:, None]
    return np.where(np.abs(high - middle) >= np.abs(low - middle), high, low)
