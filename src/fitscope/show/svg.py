"""Parts of a static SVG picture: text, a chart of curves over the steps, and a heat map as an embedded PNG.

A picture has no script, no ids and no link, so a notebook can save it and any site can show it. Colours are classes with the light
colour as attribute: a dark theme changes them by the style sheet of the picture, and a site that removes the style sheet shows the
light ones. Names come from people, so all text is escaped.
"""

from __future__ import annotations

import base64
import html
import struct
import textwrap
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.show.colour import COLOURS, SCALE, rgb, viridis
from fitscope.show.squeeze import INF, NAN, VALUE, Grid
from fitscope.show.text import clean, number

Array = np.ndarray[Any, Any]

#: Class → its colour in a light and in a dark theme, those of the page.
INKS = {
    "back": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#656d76", "#8b949e"),
    "line": ("#d8dee4", "#30363d"),
    "loss": ("#0969da", "#58a6ff"),
    "val": ("#bc4c00", "#f0883e"),
    "good": ("#1a7f37", "#3fb950"),
    "warning": ("#9a6700", "#d29922"),
    "error": ("#d1242f", "#ff7b72"),
}
NAME = "fitscope-picture"  #: the class of a picture
PIXELS = 2  #: width of one column of a band
RELIEF = 0.6  #: powers of ten from the median of a row at which a cell is nearly as light or dark as possible
LETTER = 6.4  #: pixels of a letter of the usual size, a little more than the average

_COLOURS = np.array([viridis(i / 255) for i in range(256)], np.uint8)


def picture(wide: int, tall: int, parts: Sequence[str], label: str) -> str:
    """The whole SVG of these parts."""
    dark = "".join(
        f".{NAME} .{ink}{{fill:{d}}}.{NAME} .s-{ink}{{stroke:{d}}}" for ink, (_, d) in INKS.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{NAME}" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" '
        f'role="img" aria-label="{_safe(label)}" font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" '
        f'font-size="12" style="max-width:100%;height:auto"><style>@media(prefers-color-scheme:dark){{{dark}}}</style>'
        f"{box(0, 0, wide, tall, 'back')}{''.join(parts)}</svg>"
    )


def text(
    x: float,
    y: float,
    said: object,
    ink: str = "text",
    *,
    size: int = 12,
    bold: bool = False,
    at: str = "start",
) -> str:
    """One line of text. `at` is the point of the text at x: "start", "middle" or "end"."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" class="{ink}" fill="{INKS[ink][0]}" font-size="{size}"{weight} '
        f'text-anchor="{at}">{_safe(said)}</text>'
    )


def line(x: float, y: float, *pieces: tuple[object, str, bool]) -> str:
    """Pieces of text one after the other, each with its ink and whether it is bold."""
    spans = "".join(
        f'<tspan class="{ink}" fill="{INKS[ink][0]}" font-weight="{600 if bold else 400}">{_safe(said)}</tspan>'
        for said, ink, bold in pieces
    )
    return f'<text x="{x:.0f}" y="{y:.0f}" xml:space="preserve">{spans}</text>'


def cut(said: object, wide: float, size: int = 12) -> str:
    """Text cut to about this many pixels."""
    most = max(int(wide / (LETTER * size / 12)), 4)
    whole = " ".join(clean(said).split())
    return whole if len(whole) <= most else whole[: most - 1].rstrip() + "…"


def wrapped(said: object, wide: float, lines: int) -> list[str]:
    """Text in at most `lines` lines of about `wide` pixels."""
    found = textwrap.wrap(
        " ".join(clean(said).split()), max(int(wide / LETTER), 4), max_lines=lines, placeholder="…"
    )
    return found or [""]


def box(x: float, y: float, wide: float, tall: float, ink: str, *, round: float = 0) -> str:  # noqa: A002 - as SVG says
    size = f'width="{max(wide, 0):.1f}" height="{tall:.1f}" rx="{round}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} class="{ink}" fill="{INKS[ink][0]}"/>'


def rule(x1: float, y1: float, x2: float, y2: float, ink: str = "line") -> str:
    """A thin straight line."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="s-{ink}" stroke="{INKS[ink][0]}" fill="none"/>'


# ---- curves -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers over the steps. `dots` marks each number; `band` shows the extremes of each pixel behind their median."""

    steps: Array
    values: Array
    ink: str
    dots: bool = False
    band: bool = False
    low: Array | None = None  #: the lowest and the highest value behind each number, if it stands for several
    high: Array | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chart is, and the steps it spans."""

    x: float
    y: float
    wide: float
    tall: float
    first: int
    last: int

    def across(self, steps: Array | float) -> Any:
        return self.x + (np.asarray(steps, float) - self.first) / max(self.last - self.first, 1) * self.wide


def chart(place: Place, curves: Sequence[Curve], ends: Sequence[int] = ()) -> list[str]:
    """Curves on one scale, a log scale if they span more than 30 times. `ends` are steps at which an epoch ended."""
    finite = [v[np.isfinite(v)] for c in curves for v in (c.values, c.low, c.high) if v is not None]
    numbers = np.concatenate([*finite, np.empty(0)])
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    log = low > 0 and high / low > 30
    scale = np.log10 if log else np.asarray
    bottom, top = float(scale(low)), float(scale(high))
    if top - bottom < 1e-9 * max(abs(top), 1e-9):
        bottom, top = bottom - (abs(bottom) or 1) / 2, top + (abs(top) or 1) / 2

    def down(values: Array) -> Array:
        return place.y + place.tall * (1 - (scale(values) - bottom) / (top - bottom))

    parts = [rule(place.x, place.y + place.tall, place.x + place.wide, place.y + place.tall)]
    if 0 < len(ends) <= 60:
        parts += [rule(x, place.y, x, place.y + place.tall) for x in place.across(np.array(ends)).tolist()]
    if len(numbers):
        parts.append(text(place.x - 6, place.y + 9, number(high), "faint", size=11, at="end"))
        parts.append(text(place.x - 6, place.y + place.tall, number(low), "faint", size=11, at="end"))
    if log:
        parts.append(text(place.x - 6, place.y + place.tall / 2 + 4, "log", "faint", size=11, at="end"))
    for curve in curves:
        parts += _drawn(curve, place, down)
    return parts


def _drawn(curve: Curve, place: Place, down: Any) -> list[str]:
    parts = []
    broken = ~np.isfinite(curve.values)
    fine = curve.values[~broken], curve.steps[~broken]
    if curve.band and len(fine[0]):
        column = (place.across(fine[1]) / PIXELS).astype(np.int64)
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        low, high = (fine[0] if c is None else c[~broken] for c in (curve.low, curve.high))
        x = PIXELS * column[starts]
        if len(starts) < len(column):
            lowest, highest = down(np.minimum.reduceat(low, starts)), down(np.maximum.reduceat(high, starts))
            ends = zip(x.tolist(), highest.tolist(), lowest.tolist(), strict=True)
            bars = "".join(f"M{a} {b:.1f}V{c + 0.6:.1f}" for a, b, c in ends)
            parts.append(_path(bars, curve.ink, PIXELS, 0.4))
        else:  # each pixel has a column
            parts.append(_path(_through(x, down(fine[0])), curve.ink, 1, 0.4))
        middle = _running_median(fine[0])
        parts.append(_path(_through(x, down(middle[starts])), curve.ink, 1.6, 1))
    elif len(fine[0]):
        x, y = place.across(fine[1]), down(fine[0])
        parts.append(_path(_through(x, y), curve.ink, 1.6, 1))
        if curve.dots and len(x) <= 200:
            dot = "".join(f"M{a:.1f} {b:.1f}h.01" for a, b in zip(x.tolist(), y.tolist(), strict=True))
            parts.append(_path(dot, curve.ink, 5, 1))
    if broken.any():
        x = np.unique(place.across(curve.steps[broken]).astype(np.int64))
        bars = "".join(f"M{a} {place.y:.1f}v8" for a in x.tolist())
        parts.append(f'<path d="{bars}" stroke="{rgb(COLOURS[NAN])}" stroke-width="2" fill="none"/>')
    return parts


def _through(x: Array, y: Array) -> str:
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return "M" + "L".join(points if len(points) > 1 else points * 2)


def _path(drawn: str, ink: str, wide: float, opacity: float) -> str:
    return (
        f'<path d="{drawn}" class="s-{ink}" stroke="{INKS[ink][0]}" stroke-width="{wide}" stroke-opacity="{opacity}" '
        'fill="none" stroke-linecap="round" stroke-linejoin="round"/>'
    )


def _running_median(values: Array) -> Array:
    """The median of each value and its neighbours, about a fortieth of all."""
    side = max(len(values) // 80, 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, side, mode="edge"), 2 * side + 1)
    medians: Array = np.median(windows, axis=1)
    return medians


# ---- heat maps ----------------------------------------------------------------------------------------------


def heat(x: float, y: float, wide: float, tall: float, grid: Grid, *, relief: bool = True) -> str:
    """Rows by columns in the fixed colours, with relief. `grid` holds log10 of the values; missing values are left blank."""
    values = np.nan_to_num(grid.values, nan=0.0, neginf=SCALE[0], posinf=SCALE[1])
    shade = np.clip((values - SCALE[0]) / (SCALE[1] - SCALE[0]) * 255, 0, 255).astype(np.uint8)
    pixels = np.zeros((*grid.values.shape, 4), np.uint8)
    pixels[..., :3] = _relief(_COLOURS[shade], values, grid.marks == VALUE) if relief else _COLOURS[shade]
    pixels[..., 3] = np.where(grid.marks == VALUE, 255, 0)
    for mark in (NAN, INF):
        pixels[grid.marks == mark] = (*COLOURS[mark], 255)
    return (
        f'<image x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{tall:.0f}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"/>'
    )


def _relief(colours: Array, values: Array, there: Array) -> Array:
    """Makes cells lighter above the median of their row and darker below it, so that a change by a factor of two is visible."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row without a value has no median
        middle = np.nanmedian(np.where(there, values, np.nan), axis=1, keepdims=True)
    off = np.tanh(np.nan_to_num(values - middle) / RELIEF)[..., None]
    towards = np.where(off > 0, 255.0, 0.0)
    shaded: Array = colours + (towards - colours) * 0.35 * np.abs(off)
    return shaded


def legend(x: float, y: float, wide: float) -> list[str]:
    """The scale of the colours."""
    ramp = Grid(np.linspace(*SCALE, 64)[None, :], np.full((1, 64), VALUE))
    ends = (
        text(x - 4, y + 9, f"1e{SCALE[0]:.0f}", "faint", size=11, at="end"),
        text(x + wide + 4, y + 9, f"1e{SCALE[1]:.0f}", "faint", size=11),
    )
    return [heat(x, y, wide, 10, ramp, relief=False), *ends]


def _png(pixels: Array) -> bytes:
    """An RGBA image as PNG."""
    tall, wide, _ = pixels.shape
    # Each line begins with the number of its filter: 0, none.
    lines = np.zeros((tall, 1 + 4 * wide), np.uint8)
    lines[:, 1:] = pixels.reshape(tall, -1)

    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", wide, tall, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + piece(b"IHDR", head)
        + piece(b"IDAT", zlib.compress(lines.tobytes(), 6))
        + piece(b"IEND", b"")
    )


def _safe(said: object) -> str:
    return html.escape(clean(said), quote=True)
