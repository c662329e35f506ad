"""Defines the measures that can be shown for each row over the steps, and computes them from the table.

A measure takes the rows of the stats table for one moment and one row of the picture (a layer has several weights). It returns
one number in the domain of its drawing: log2 if the scale is logarithmic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.show.data.rows import Row
from fitscope.sites import PASSES

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

ZERO = -200.0  #: log2 of zero: below every number that a float can be, and still a number
NOTES = ("nans", "infs")  #: columns that are always read, for the marks


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a drawn number. `low` and `high` are fixed, so that a colour means the same in every run."""

    kind: str  #: log2, share (0 to 1), cosine (-1 to 1), or a relative one: see `modes`
    low: float
    high: float


LOG = Scale("log2", float(np.log2(1e-9)), float(np.log2(1e2)))
ACTIVATION = Scale("log2", float(np.log2(1e-4)), float(np.log2(1e3)))
RATIO = Scale("log2", float(np.log2(1e-8)), float(np.log2(1.0)))
SHARE = Scale("share", 0.0, 1.0)
COSINE = Scale("cosine", -1.0, 1.0)


class Groups:
    """The rows of a table that belong to one moment: consecutive, from each of `starts` on."""

    def __init__(self, starts: Array, count: int) -> None:
        self.starts = starts
        self.single = len(starts) == count  #: one row each: nothing to merge

    def sum(self, values: Array) -> Array:
        values = np.asarray(values, float)
        return values if self.single else np.add.reduceat(values, self.starts)

    def max(self, values: Array) -> Array:
        return values if self.single else np.fmax.reduceat(values, self.starts)


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity to show. Its key is a kind of site, a dot and a stat: `gradients.rms`."""

    key: str
    title: str
    kinds: tuple[str, ...]
    columns: tuple[str, ...]
    scale: Scale
    value: Callable[[Columns, Groups], Array]  #: among the columns is `kind`: the place in `kinds`

    @property
    def kind(self) -> str:
        """The kind of site that it shows, the first of its kinds."""
        return self.kinds[0]

    @property
    def stat(self) -> str:
        return self.key.removeprefix(f"{self.kind}.")


def _rms(c: Columns, of: Groups) -> Array:
    finite = _finite(c)
    return _log2(_root(of.sum(_squares(c, finite)), of.sum(finite)))


def _largest(c: Columns, of: Groups) -> Array:
    return _log2(of.max(np.fmax(np.abs(c["min"]), np.abs(c["max"]))))


def _std(c: Columns, of: Groups) -> Array:
    finite = _finite(c)
    return _log2(_root(of.sum(np.nan_to_num(c["std"]) ** 2 * finite), of.sum(finite)))


def _zeros(c: Columns, of: Groups) -> Array:
    count = of.sum(c["count"])
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Array = of.sum(c["zeros"]) / count
    return share


def _moved(c: Columns, of: Groups) -> Array:
    """The norm of the update divided by the norm of the weights."""
    squares = _squares(c, _finite(c))
    updates, weights = (
        of.sum(np.where(c["kind"] == 0, squares, 0)),
        of.sum(np.where(c["kind"] == 1, squares, 0)),
    )
    both = (of.sum(c["kind"] == 0) > 0) & (of.sum(c["kind"] == 1) > 0)
    return _log2(np.where(both, _root(updates, weights), np.nan))


def _cosine(c: Columns, of: Groups) -> Array:
    known = ~np.isnan(c["cosine"])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Array = of.sum(np.nan_to_num(c["cosine"])) / of.sum(known)
    return mean


_SQUARES = ("rms", "count", "nans", "infs")

#: In the order of the menu. The first that a run has is shown first.
MEASURES: tuple[Measure, ...] = (
    Measure("gradients.rms", "gradient RMS", ("gradients",), _SQUARES, LOG, _rms),
    Measure("activations.rms", "activation RMS", ("activations",), _SQUARES, ACTIVATION, _rms),
    Measure("activations.std", "activation spread", ("activations",), ("std", *_SQUARES[1:]), ACTIVATION, _std),
    Measure("activations.max", "largest activation", ("activations",), ("min", "max"), ACTIVATION, _largest),
    Measure("activations.zeros", "zeros in activations", ("activations",), ("zeros", "count"), SHARE, _zeros),
    Measure("gradients.max", "largest gradient", ("gradients",), ("min", "max"), LOG, _largest),
    Measure("gradients.zeros", "zeros in gradients", ("gradients",), ("zeros", "count"), SHARE, _zeros),
    Measure("updates.ratio", "update / weight", ("updates", "weights"), _SQUARES, RATIO, _moved),
    Measure("weight_gradients.rms", "weight-gradient RMS", ("weight_gradients",), _SQUARES, LOG, _rms),
    Measure("weights.rms", "weight RMS", ("weights",), _SQUARES, ACTIVATION, _rms),
    Measure("updates.rms", "update RMS", ("updates",), _SQUARES, LOG, _rms),
    Measure("changes/activations.rms", "change of activations", ("changes/activations",), _SQUARES, LOG, _rms),
    Measure("changes/activations.cosine", "likeness to the batch before", ("changes/activations",), ("cosine",), COSINE, _cosine),
    *(
        Measure(f"{walk}/activations.{what}", f"{walk}: {title}", (f"{walk}/activations",), columns, scale, value)
        for walk in PASSES
        for what, title, columns, scale, value in (
            ("rms", "activation RMS", _SQUARES, ACTIVATION, _rms),
            ("zeros", "zeros in activations", ("zeros", "count"), SHARE, _zeros),
        )
    ),
)  # fmt: skip


def offered(rows: Sequence[Row], columns: Sequence[str]) -> list[Measure]:
    """The measures that a run with these rows, and a table with these columns, can show."""
    there = {kind for row in rows for kind in row.sites}
    return [m for m in MEASURES if there.issuperset(m.kinds) and set(m.columns) <= set(columns)]


def _finite(c: Columns) -> Array:
    return c["count"] - c["nans"] - c["infs"]


def _squares(c: Columns, finite: Array) -> Array:
    return np.nan_to_num(c["rms"]) ** 2 * finite


def _root(squares: Array, over: Array) -> Array:
    """The square root of a quotient; NaN if the divisor is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        root: Array = np.where(over > 0, np.sqrt(squares / over), np.nan)
    return root


def _log2(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(x == 0, ZERO, np.log2(x))
