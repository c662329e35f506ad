"""Computes the numbers for the page, each answer as facts and arrays for `pack`: a matrix, a tick, a moment, a distribution.

The live server and the report use the same answers, so the page treats both alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fitscope.errors import RunError
from fitscope.show.data import exact
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE, Array, Matrix
from fitscope.show.data.series import GrowingSeries

Payload = tuple[dict[str, Any], dict[str, Array]]

COLUMNS = 2048  #: the most columns of a picture: the width of a wide screen
MOVED = 12  #: the most rows listed as those that moved most

_STATS = (
    "epoch",
    "batch",
    "shape",
    "count",
    "mean",
    "min",
    "max",
    "rms",
    "zeros",
    "negatives",
    "nans",
    "infs",
)


class Cell(NamedTuple):
    """A cell of a picture, and which of its values is shown."""

    row: str
    level: int
    column: int
    mark: str  #: low, high, inf or nan


def matrix(
    g: Gathered,
    measure: str,
    mode: str = "absolute",
    other: Gathered | None = None,
    *,
    columns: int = COLUMNS,
    span: tuple[float, float] | None = None,
) -> Payload:
    """One measure in a mode, over all steps or a span of them, in at most `columns` columns."""
    held = g.matrix(measure, mode, other)
    first, stop = _places(held, span)
    level = held.level_for(max(columns, 16), first, stop)
    return _columns(held, g, measure, mode, level, first >> level, ((max(stop, 1) - 1) >> level) + 1)


def tail(g: Gathered, measure: str, mode: str, other: Gathered | None, level: int, first: int) -> Payload:
    """The columns of a level from number `first` on, for a picture that has all columns before it."""
    held = g.matrix(measure, mode, other)
    return _columns(held, g, measure, mode, level, first, held.columns(level))


def single(
    g: Gathered,
    measure: str,
    mode: str,
    other: Gathered | None,
    step: int,
    by: int = 0,
    cell: Cell | None = None,
) -> Payload:
    """All rows at one recorded step: the newest up to `step`, `by` steps after it, or the one that a cell shows."""
    if not measure:  # the run has only a loss
        return {"step": int(g.survey.loss.steps[_moved_by(g.survey.loss.steps, step, by)])}, {}
    held = g.matrix(measure, mode, other)
    place = _moved_by(held.steps, step, by) if cell is None else _shown(held, g.row(cell.row), cell)
    facts, arrays = _columns(held, g, measure, mode, 0, place, place + 1)
    return {**facts, "step": int(held.steps[place])}, arrays


def _moved_by(steps: Array, step: int, by: int) -> int:
    """The index of a recorded step: `by` steps after the newest one up to `step`."""
    if not len(steps):
        raise RunError("a run with recorded steps", "none yet", "Wait for the first captured step")
    place = int(np.searchsorted(steps, step, side="right")) - 1
    if by < 0 and place >= 0 and steps[place] < step:
        by += 1  # between two recorded steps, the previous one is one step back
    return min(max(place + by, 0), len(steps) - 1)


def _shown(held: Matrix, row: int, cell: Cell) -> int:
    """The index of the first step whose value or mark a cell of many steps shows."""
    first = cell.column << cell.level
    cells = held.cells(first, (cell.column + 1) << cell.level)
    if first < 0 or not cells.flags.shape[1]:
        raise RunError("a column of the picture", str(cell.column), "Load the page again")
    low, high, flags = cells.low[row], cells.high[row], cells.flags[row]
    there = {
        "low": (low == low.min()) & (flags & VALUE > 0),
        "high": (high == high.max()) & (flags & VALUE > 0),
        "inf": flags & INF > 0,
        "nan": flags & NAN > 0,
    }
    return first + int(np.argmax(there.get(cell.mark, flags > 0)))


def _columns(
    held: Matrix, g: Gathered, measure: str, mode: str, level: int, first: int, stop: int
) -> Payload:
    cells = held.window(level, first, stop)
    facts = {
        "measure": measure,
        "mode": mode,
        "level": level,
        "first": first,
        "count": held.count,
        "rewritten": held.rewritten,
        "generation": g.generation,
        "end": _end(held.steps),
        "code": [held.code.offset, held.code.step],
        # The scale of the reference too: a difference of logarithms is a factor, one of shares is not.
        "scale": [held.scale.kind, held.scale.low, held.scale.high, g.matrix(measure).scale.kind],
    }
    arrays = {
        "start": held.starts(level, first, stop).astype(np.float64),
        "low": cells.low,
        "spread": cells.high - cells.low,  # 1 for a cell without a value: 0 - 65535 in uint16
        "flags": cells.flags,
    }
    if level:  # in a column of one step, the last step is the first
        arrays["last"] = held.lasts(level, first, stop).astype(np.float64)
    return facts, arrays


def series(g: Gathered, site: str = "loss", level: int | None = None, first: int = 0) -> Payload:
    """A scalar in columns. With a level, only the columns from number `first` on."""
    held = g.survey.scalar(site)
    if held is None:
        return {"title": site, "level": 0, "first": 0, "count": 0, "end": 0}, {}
    return columns_of(held, site, level, first)


def columns_of(held: GrowingSeries, title: str, level: int | None = None, first: int = 0) -> Payload:
    """The columns of any scalar over the steps."""
    level = held.level_for(COLUMNS) if level is None else level
    bins = held.bins(level, first)
    facts = {
        "title": "loss per batch" if title == "loss" else title,
        "level": level,
        "first": first,
        "count": held.count,
        "rewritten": held.rewritten,
        "end": _end(held.steps),
    }
    return facts, {
        "start": bins.start.astype(np.float64),
        "low": bins.low.astype(np.float32),
        "high": bins.high.astype(np.float32),
        "broken": np.minimum(bins.broken, 255).astype(np.uint8),
    }


def moment(g: Gathered, row: str, step: int, measure: str) -> dict[str, Any]:
    """The exact numbers of one row at one step: each of its sites, now and at the previous recorded step, and the rows that moved most."""
    about = g.rows[g.row(row)]
    sites = [(kind, site) for kind, of in about.sites.items() for site in of]
    found = exact.rows_at(g, [site for _, site in sites], step, [*_STATS, "buckets", "counts"])
    return {
        "row": row,
        "step": step,
        "sites": [
            {"kind": kind, "site": site, "now": found[site][0], "before": next(iter(found[site][1:]), None)}
            for kind, site in sites
            if site in found
        ],
        "moved": moved(g, measure, step),
    }


def moved(g: Gathered, measure: str, step: int, most: int = MOVED) -> list[dict[str, Any]]:
    """The rows that were farthest from their own history at a step, in standard deviations."""
    held = g.matrix(measure, "past")
    at = int(np.searchsorted(held.steps, step, side="right")) - 1
    if at < 1:
        return []
    cells = held.cells(at, at + 1)
    low, high = (held.code.decode(side[:, 0]) for side in (cells.low, cells.high))
    far = np.where(np.abs(low) > np.abs(high), low, high)
    size = np.where(cells.flags[:, 0] & VALUE, np.abs(far), 0)
    size[(cells.flags[:, 0] & ~np.uint8(VALUE)) > 0] = math.inf
    order = np.argsort(-size, kind="stable")[:most]
    return [
        {"row": g.rows[i].name, "sigma": None if math.isinf(size[i]) else float(far[i])}
        for i in order.tolist()
        if size[i] >= 1.5
    ]


def main_site(g: Gathered, row: str, measure: str) -> str | None:
    """The site of a row that the measure reads. Without one: the first activation of the row, else its first site."""
    about = g.rows[g.row(row)]
    kinds = next((m.kinds for m in g.measures if m.key == measure), ())
    for kind in (*kinds, "activations", *about.sites):
        if about.sites.get(kind):
            return about.sites[kind][0]
    return None


def distribution(g: Gathered, sites: Sequence[str], columns: int = 120) -> dict[str, Payload]:
    """For each site, the distribution of its values over the training: the share of each power-of-two bucket in each column, as bytes."""
    found: dict[str, Payload] = {}
    for site, (steps, counts) in exact.histograms(g, sites, columns).items():
        wide = -(-len(steps) // columns)
        starts = np.arange(0, len(steps), wide)
        summed = np.add.reduceat(counts, starts, axis=0).astype(float)
        used = np.flatnonzero(summed.any(axis=0))
        low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (256, 257)
        share = summed[:, low:high] / np.maximum(summed.sum(axis=1, keepdims=True), 1)
        # The square root, so that rare values stay visible beside common ones. Only an empty bucket is 0.
        level = np.where(share > 0, np.maximum(np.rint(np.sqrt(share) * 255), 1), 0)
        facts = {"site": site, "low": low - 256, "end": _end(steps)}
        last = steps[np.append(starts[1:], len(steps)) - 1]
        found[site] = (
            facts,
            {
                "start": steps[starts].astype(np.float64),
                "last": last.astype(np.float64),
                "share": level.astype(np.uint8),
            },
        )
    return found


def _places(held: Matrix, span: tuple[float, float] | None) -> tuple[int, int]:
    if span is None or not held.count:
        return 0, held.count
    first, stop = np.searchsorted(held.steps, span, side="left").tolist()
    return max(min(first, held.count - 1), 0), max(min(stop, held.count), first + 1)


def _end(steps: Array) -> int:
    """The end of the last column: the step after its last recorded step."""
    return int(steps[-1]) + 1 if len(steps) else 0
