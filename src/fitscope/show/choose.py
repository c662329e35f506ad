"""Resolves the arguments of a plot in one run: a quantity, a site, a step. An error lists what the run has."""

from __future__ import annotations

import numpy as np

from fitscope.errors import RunError, one_of
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE, Matrix
from fitscope.show.data.measures import Measure
from fitscope.show.text import meaning


def measure_of(g: Gathered, kind: str | None, stat: str | None) -> Measure:
    """The measure of a kind and a stat. Without a stat: the kind's first; without both: the measure of the worst finding."""
    if not g.measures:
        raise RunError(
            "a run with recorded layers", f"{g.run.id!r}, which has none", "Watch layers: fs.activations()"
        )
    if kind is None and stat is None:
        by_key = {m.key: m for m in g.measures}
        return next((by_key[f.measure] for f in g.findings if f.measure in by_key), g.measures[0])
    of_kind = [m for m in g.measures if kind in (None, m.kind)]
    if not of_kind:
        raise RunError("a kind of site of this run", repr(kind), one_of(_kinds(g), str(kind)))
    fitting = [m for m in of_kind if stat in (None, m.stat)]
    if not fitting:
        stats = list(dict.fromkeys(m.stat for m in of_kind))
        of = f"of {kind!r}" if kind is not None else "of this run"
        raise RunError(f"a stat {of}", repr(stat), one_of(stats, str(stat)))
    return fitting[0]


def place_of(g: Gathered, site: str) -> tuple[str, str, str]:
    """The row, the measure and the full name of a site. The name of a layer means its output."""
    rows = {row.name: row for row in g.rows}
    if site in rows:
        sites = rows[site].sites
        kind = (
            "activations" if "activations" in sites else next(k for k in (*_kinds(g), *sites) if k in sites)
        )
        return site, _first(g, kind), sites[kind][0]
    name = g.run.resolve(site)
    for row in g.rows:
        for kind, there in row.sites.items():
            if name in there:
                return row.name, _first(g, kind), name
    raise RunError("a layer or the site of one", repr(site), one_of(rows, site))


def column_of(matrix: Matrix, step: int | None) -> tuple[int, int]:
    """The column of the newest recorded step up to `step`, and that step."""
    if not matrix.count:
        raise RunError("a recorded step", "a measure without recorded steps", "Wait for the first steps")
    column = matrix.count - 1 if step is None else int(np.searchsorted(matrix.steps, step, side="right")) - 1
    if column < 0:
        raise RunError(f"a step from {matrix.steps[0]} on", str(step), "Name a later one")
    return column, int(matrix.steps[column])


def newest(matrix: Matrix, row: int) -> str | None:
    """The newest value of a row as text."""
    flags = matrix.cells().flags[row]
    seen = np.flatnonzero(flags & (VALUE | INF | NAN))
    if not len(seen):
        return None
    flag = flags[seen[-1]]
    if flag & (NAN | INF):
        return "NaN" if flag & NAN else "Inf"
    return meaning(matrix.scale.kind, float(matrix.code.decode(matrix.cells().high[row, seen[-1]])))


def _kinds(g: Gathered) -> list[str]:
    return list(dict.fromkeys(m.kind for m in g.measures))


def _first(g: Gathered, kind: str) -> str:
    """The measure that shows a kind of site, or any measure of the run if none does."""
    found = [m.key for m in g.measures if m.kind == kind] or [m.key for m in g.measures]
    if not found:
        raise RunError(
            "a run with recorded layers", f"{g.run.id!r}, which has none", "Watch fs.activations()"
        )
    return found[0]
