"""Draws with characters: a curve, a trend, a strip of colours, the spectrogram.

Every function takes numbers and returns rich's `Text`, for the terminal, a file or a notebook. Nothing here depends on a run. A
`Pen` describes the abilities of the surface: without colour or Unicode the same picture is drawn with simpler characters, never
with an error.

Layer names come from people and files: `clean` makes sure that they are shown and never interpreted.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.text import Text

from fitscope.show.colour import COLOURS, SCALE, colour, rgb, viridis
from fitscope.show.data.cost import percent
from fitscope.show.squeeze import INF, MISSING, NAN, VALUE, Array, Grid, log10, shares, squeezed

WORDS = {NAN: "NaN", INF: "Inf", MISSING: "not recorded"}


WIDEST = 1000  #: the most characters of a line: a wider window would take memory, and nobody could read it


def terminal(width: int | None = None, **settings: Any) -> Console:
    """The terminal, or what stands in for it, with a width that can be drawn."""
    console = Console(highlight=False, width=width, **settings)
    console.width = min(console.width, WIDEST)
    return console


@dataclass(frozen=True, slots=True)
class Pen:
    """The characters and colours that a terminal or file can show."""

    ramp: str  #: from low to high
    marks: dict[int, str]
    unicode: bool
    colour: bool

    @property
    def halves(self) -> bool:
        """Whether one character can show two rows."""
        return self.colour and self.unicode

    @classmethod
    def of(cls, console: Console) -> Pen:
        """The abilities of a console."""
        colour = console.color_system is not None and not console.no_color
        if console.options.ascii_only:
            return cls("_.-=+*#", {NAN: "N", INF: "I", MISSING: "?"}, unicode=False, colour=colour)
        # No full block: it would touch the block of the line above.
        return cls("▁▂▃▄▅▆▇", {NAN: "✖", INF: "∞", MISSING: "·"}, unicode=True, colour=colour)

    def mark(self, mark: int) -> Text:
        """One mark in its colour."""
        return Text(self.marks[mark], rgb(COLOURS[mark]) if self.colour else "")


def clean(text: object) -> str:
    """Makes text safe to print: it spells out characters that would move the cursor, reverse the text or hide it."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNPRINTABLE else char
        for char in str(text)
    )


_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def number(value: float) -> str:
    """Three digits: `0.123`, `12.3`, `4.6e-05`."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else f"{value}"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e3:
        return f"{value:.3g}"
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e4 else f"{value:.1e}"


def meaning(kind: str, value: float) -> str:
    """A matrix value as text."""
    if kind == "share":
        return percent(value)
    if kind == "log2":
        return "0" if value <= -128 else number(2.0**value)
    return f"{value:+.1f} σ" if kind == "past" else f"{value:+.2f}"


def trend(grid: Grid, width: int, pen: Pen) -> Text:
    """One row as a line of bars between its lowest and highest value, on a log scale."""
    row = log10(grid).columns(width)
    values, marks = row.values[0], row.marks[0]
    real = values[(marks == VALUE) & np.isfinite(values)]
    low, high = (float(real.min()), float(real.max())) if len(real) else (0.0, 0.0)
    if high - low < 0.1:  # a change by less than a quarter is a flat line
        middle = (low + high) / 2
        low, high = middle - 0.15, middle + 0.15
    return _bars(values, marks, low, high, pen)


def strip(grid: Grid, row: int, width: int, pen: Pen) -> Text:
    """One row of the spectrogram on a line: colours on the fixed scale, or bars on the grid's own scale."""
    cells = _wide(grid, row, width)
    if not pen.colour:
        values, marks = (np.array([cell[i] for cell in cells]) for i in (0, 1))
        return _bars(values, marks, *span(grid), pen)
    text = Text()
    for value, mark in cells:
        text.append(" ", Style(bgcolor=rgb(colour(value, mark))))
    return text


def half_strips(grid: Grid, row: int, width: int, pen: Pen) -> Text:  # noqa: ARG001 - as `strip`
    """Two rows of the spectrogram on one line. Requires a pen with halves."""
    text = Text()
    below = _wide(grid, row + 1, width) if row + 1 < len(grid.values) else None
    for i, (value, mark) in enumerate(_wide(grid, row, width)):
        upper = rgb(colour(value, mark))
        text.append("▀", Style(color=upper, bgcolor=rgb(colour(*below[i])) if below else None))
    return text


def spectrogram(
    grid: Grid, labels: Sequence[str], width: int, pen: Pen, most_lines: int = 26
) -> list[tuple[str, Text]]:
    """Rows (the input on top) by steps, as lines with labels. `grid` holds log10 of the values.

    Few rows get one line each. More rows share lines in half-block characters. Even more are merged with their neighbours by
    their extremes.
    """
    grid, rows = grid.columns(width), len(grid.values)
    each = 1 if rows <= most_lines or not pen.halves else 2  # rows per line
    grid = grid.rows(each * most_lines)
    draw = strip if each == 1 else half_strips
    first = [part.start for part in shares(rows, len(grid.values))]
    return [(labels[first[i]], draw(grid, i, width, pen)) for i in range(0, len(grid.values), each)]


def span(grid: Grid) -> tuple[float, float]:
    """The lowest and highest finite value of a grid."""
    real = grid.values[(grid.marks == VALUE) & np.isfinite(grid.values)]
    return (float(real.min()), float(real.max())) if len(real) else (0.0, 0.0)


def legend(pen: Pen, marks: Sequence[int] = (NAN, INF, MISSING)) -> Text:
    """The meaning of a spectrogram's colours and of these marks."""
    text = Text()
    if pen.colour:
        text.append(f"1e{SCALE[0]:.0f} ", "dim")
        for i in range(22):
            text.append(" ", Style(bgcolor=rgb(viridis(i / 21))))
        text.append(f" 1e{SCALE[1]:.0f}", "dim")
    for mark in marks:
        text.append("   " if text else "")
        text.append_text(Text(" ", Style(bgcolor=rgb(COLOURS[mark]))) if pen.colour else pen.mark(mark))
        text.append(f" {WORDS[mark]}", "dim")
    return text


def curve(values: Any, width: int, height: int, pen: Pen, style: str = "cyan") -> tuple[list[Text], bool]:
    """A curve, top line first, and whether its scale is logarithmic.

    A column that covers several steps spans from the smallest to the largest value.
    """
    numbers = np.asarray(values, float)
    real = numbers[np.isfinite(numbers)]
    log = len(real) > 0 and bool(real.min() > 0) and float(real.max() / real.min()) > 30
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.log10(numbers) if log else numbers
    low, high = squeezed(drawn, 2 * width if pen.unicode else width)
    found = np.isfinite(low).any()
    bottom, top = (float(np.nanmin(low)), float(np.nanmax(high))) if found else (0.0, 0.0)
    marks = _broken(numbers, width)
    if not pen.unicode:
        return [_bars(high, np.array(marks), bottom, top, pen)], log
    dots = _dots(low, high, bottom, top, 4 * height)
    nothing = [VALUE] * width
    lines = [
        _braille(dots[4 * i : 4 * i + 4], pen, style, marks if i == 0 else nothing) for i in range(height)
    ]
    return lines, log


# ---- the small parts --------------------------------------------------------------------------------------


def _bars(values: Array, marks: Array, low: float, high: float, pen: Pen) -> Text:
    text = Text()
    span = (high - low) or 1.0
    for value, mark in zip(values, marks, strict=True):
        if mark != VALUE:
            text.append_text(pen.mark(int(mark)))
            continue
        share = 0.0 if value == -math.inf else min(max((value - low) / span, 0.0), 1.0)
        text.append(pen.ramp[round(share * (len(pen.ramp) - 1))])
    return text


def _wide(grid: Grid, row: int, width: int) -> list[tuple[float, int]]:
    """Repeats the cells of a row to fill the width."""
    columns = grid.values.shape[1]
    at = np.arange(width) * columns // width if columns else []
    return [(float(grid.values[row, i]), int(grid.marks[row, i])) for i in at]


def _broken(numbers: Array, width: int) -> list[int]:
    """The mark of each column: whether it contains NaN or Inf."""
    found = []
    for part in shares(len(numbers), width):
        some = numbers[part]
        found.append(NAN if np.isnan(some).any() else INF if np.isinf(some).any() else VALUE)
    return found


def _dots(low: Array, high: Array, bottom: float, top: float, height: int) -> Array:
    """The picture as dots; each column continues from the middle of the previous one."""
    dots = np.zeros((height, len(low)), bool)
    span, before = (top - bottom) or 1.0, math.nan
    for x, (a, b) in enumerate(zip(low, high, strict=True)):
        if not math.isnan(a):
            near, far = np.fmin(a, before), np.fmax(b, before)
            lowest, highest = (round((v - bottom) / span * (height - 1)) for v in (near, far))
            dots[height - 1 - highest : height - lowest, x] = True
        before = (a + b) / 2
    return dots


def _braille(dots: Array, pen: Pen, style: str, marks: list[int]) -> Text:
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
    text = Text()
    for cell, mark in enumerate(marks):
        if mark != VALUE:
            text.append_text(pen.mark(mark))
            continue
        code = sum(bits[y][x] for y in range(4) for x in range(2) if dots[y, 2 * cell + x])
        text.append(chr(0x2800 + code), style if pen.colour else "")
    return text
