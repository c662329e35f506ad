"""Draws the views as text, and with matplotlib. Each function uses the same numbers as the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fitscope.errors import StoreError
from fitscope.show.colour import SCALE, rgb, viridis
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE, Array, Matrix
from fitscope.show.overview import far, grid
from fitscope.show.squeeze import Grid
from fitscope.show.text import Pen, clean, curve, meaning, number, spectrogram

_DIVERGING = ("past", "change", "start", "run", "cosine")


def spectrogram_text(g: Gathered, matrix: Matrix, what: str, width: int, pen: Pen) -> RenderableType:
    """Layers by steps in half blocks; the colours span the scale of the measure."""
    kind, low, high = matrix.scale.kind, matrix.scale.low, matrix.scale.high
    rows = _with_something(matrix)
    labels = [clean(g.rows[row].name) for row in rows]
    longest = min(max(map(len, labels), default=0), max(width // 5, 8))
    shown = grid(matrix, max(width - longest - 2, 10))
    share = np.clip((shown.values[rows] - low) / (high - low), 0, 1)
    placed = Grid(SCALE[0] + share * (SCALE[1] - SCALE[0]), shown.marks[rows])
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis", width=longest)
    table.add_column(no_wrap=True)
    for label, line in spectrogram(placed, labels, max(width - longest - 2, 10), pen):
        table.add_row(Text(label), line)
    ends = f"{meaning(kind, low)} … {meaning(kind, high)}"
    steps = (
        f"{matrix.count:,} steps, {matrix.steps[0]:,} to {matrix.steps[-1]:,}" if matrix.count else "no steps"
    )
    return Group(table, Text(f"{what}, {len(labels)} layers (top: input) × {steps}; {ends}", "dim"))


def _with_something(matrix: Matrix) -> list[int]:
    """The rows to show: rows with a value of the measure, as on the page, or all if none has one."""
    level = matrix.level_for(64)
    cells = matrix.window(level, 0, matrix.columns(level))
    there: list[int] = np.flatnonzero((cells.flags & (VALUE | NAN | INF)).any(axis=1)).tolist()
    return there or list(range(matrix.rows))


def curve_text(steps: Array, values: Array, width: int, pen: Pen) -> RenderableType:
    """A line over the steps."""
    lines, log = curve(values, max(width, 10), 8, pen)
    real = values[np.isfinite(values)]
    span = f"{number(float(real.min()))} … {number(float(real.max()))}" if len(real) else "nothing finite"
    end = f"steps {steps[0]:,} to {steps[-1]:,}; " if len(steps) else ""
    return Group(*lines, Text(f"{end}{span}{' (log)' if log else ''}", "dim"))


def bars_text(
    labels: Sequence[str], shares: Array, said: Sequence[str], width: int, pen: Pen
) -> RenderableType:
    """A bar for each label."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim", overflow="ellipsis", max_width=max(width // 4, 8))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    room = max(width - max(width // 4, 8) - 14, 6)
    for label, share, text in zip(labels, shares, said, strict=True):
        filled = 0 if np.isnan(share) else round(float(np.clip(share, 0, 1)) * room)
        style = rgb(viridis(float(share))) if pen.colour and not np.isnan(share) else ""
        table.add_row(Text(clean(label)), text, Text(("█" if pen.unicode else "#") * filled, style))
    return table


def _is_number(cell: Any) -> bool:
    """Whether a cell holds a number, or a text that begins with one."""
    text = "" if cell is None else str(cell).lstrip("+-")
    return isinstance(cell, int | float) or text[:1].isdigit() or text.startswith(("NaN", "Inf"))


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> RenderableType:
    """A table as text. If it is too wide, sentences wrap; the names in the first column stay whole up to 24 characters."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    longest = max((len(clean(row[0])) for row in rows), default=0)
    for i, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if i and any(_is_number(row[i]) for row in rows) else "left",
            no_wrap=i == 0,
            overflow="ellipsis",
            min_width=min(longest, 24) if i == 0 else None,
        )
    for row in rows:
        table.add_row(
            *(
                Text(clean(number(cell) if isinstance(cell, float) else "–" if cell is None else cell))
                for cell in row
            )
        )
    return table


# ---- matplotlib ---------------------------------------------------------------------------------------------


def figure(wide: float = 9, tall: float = 4) -> tuple[Any, Any]:
    """A figure outside pyplot, so that drawing opens no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise StoreError(
            "matplotlib", "an environment without it", "Install it: pip install 'fitscope[matplotlib]'"
        ) from problem
    made = Figure(figsize=(wide, tall), layout="constrained")
    return made, made.add_subplot()


def spectrogram_figure(g: Gathered, matrix: Matrix, what: str) -> Any:
    """The spectrogram, with separate colours for NaN and Inf."""
    rows = _with_something(matrix)
    made, axes = figure(9, min(max(0.12 * len(rows), 3), 9))
    level = matrix.level_for(1600)
    cells = matrix.window(level, 0, matrix.columns(level))
    starts = np.append(matrix.starts(level), matrix.steps[-1] + 1 if matrix.count else 1)
    values = far(matrix, cells)[rows]
    colours = "RdBu_r" if matrix.scale.kind in _DIVERGING else "viridis"
    edges = np.arange(len(rows) + 1)
    image = axes.pcolormesh(
        starts, edges, np.ma.masked_invalid(values), cmap=colours, vmin=matrix.scale.low, vmax=matrix.scale.high,
        rasterized=True,
    )  # fmt: skip
    for flag, colour in ((INF, "#ff5f1f"), (NAN, "#ff00b3")):
        there = np.where((cells.flags[rows] & flag) > 0, 1.0, np.nan)
        if np.isfinite(there).any():
            from matplotlib.colors import ListedColormap

            axes.pcolormesh(
                starts, edges, np.ma.masked_invalid(there), cmap=ListedColormap([colour]), rasterized=True
            )
    axes.invert_yaxis()
    every = max(len(rows) // 30, 1)
    names = [_plain(g.rows[row].name) for row in rows[::every]]
    axes.set_yticks(np.arange(0, len(rows), every) + 0.5, names, fontsize=7)
    axes.set_xlabel("step")
    bar = made.colorbar(image, ax=axes)
    bar.ax.yaxis.set_major_formatter(lambda value, _: meaning(matrix.scale.kind, value))
    axes.set_title(what)
    return made


def curve_figure(steps: Array, values: Array, what: str) -> Any:
    made, axes = figure(9, 3)
    axes.plot(steps, values, linewidth=0.8)
    real = values[np.isfinite(values)]
    if len(real) and real.min() > 0 and real.max() / real.min() > 30:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_title(what)
    return made


def bars_figure(labels: Sequence[str], values: Array, what: str, *, log: bool) -> Any:
    made, axes = figure(6, min(max(0.16 * len(labels), 2.5), 12))
    axes.barh(np.arange(len(labels)), np.where(np.isfinite(values), values, 0))
    axes.invert_yaxis()
    if log and np.nanmax(values, initial=0) > 0:
        axes.set_xscale("log")
    every = max(len(labels) // 40, 1)
    axes.set_yticks(
        np.arange(0, len(labels), every), [_plain(label) for label in labels[::every]], fontsize=7
    )
    axes.set_title(what)
    return made


def distribution_figure(starts: Array, labels: Sequence[str], share: Array, what: str) -> Any:
    """Buckets of values × steps."""
    made, axes = figure(9, 3.5)
    axes.pcolormesh(starts, np.arange(len(share) + 1), share, cmap="viridis", rasterized=True)
    every = max(len(labels) // 12, 1)
    axes.set_yticks(np.arange(0, len(labels), every) + 0.5, labels[::every], fontsize=7)
    axes.set_xlabel("step")
    axes.set_title(what)
    return made


def table_figure(columns: Sequence[str], rows: Sequence[Sequence[Any]], what: str) -> Any:
    made, axes = figure(9, 0.3 * len(rows) + 1)
    axes.axis("off")
    cells = [
        [_plain(number(c) if isinstance(c, float) else "–" if c is None else c) for c in row] for row in rows
    ]
    if cells:
        axes.table(cells, colLabels=list(columns), loc="center").auto_set_font_size(value=True)
    axes.set_title(what)
    return made


def _plain(text: object) -> str:
    """Escapes dollar signs, which would start a formula."""
    return clean(text).replace("$", r"\$")
