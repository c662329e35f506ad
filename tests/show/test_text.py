"""Drawing with characters: always as wide as asked for, and never in the way of hostile numbers or names."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fitscope.show.colour import COLOURS, SCALE, VIRIDIS, colour, rgb
from fitscope.show.data.cost import percent
from fitscope.show.squeeze import INF, MISSING, NAN, VALUE, Grid, log10
from fitscope.show.text import Pen, clean, curve, legend, number, spectrogram, trend


def pen(colour: bool = True, encoding: str = "utf-8") -> Pen:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Pen.of(Console(file=file, force_terminal=True, color_system="truecolor" if colour else None))


PENS = {"colour": pen(), "plain": pen(colour=False), "ascii": pen(colour=False, encoding="ascii")}


@pytest.mark.parametrize("name", PENS)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=120), width=st.integers(10, 60))
def test_a_curve_of_any_numbers_fills_the_width(name: str, values: list[float], width: int) -> None:
    lines, _ = curve(values, width, 3, PENS[name])
    assert all(line.cell_len == width for line in lines)
    grid = Grid.of(np.array([values, values]))
    for _, line in spectrogram(log10(grid), ["a", "b"], width, PENS[name]):
        assert line.cell_len == width
    assert trend(grid, width, PENS[name]).cell_len == min(width, len(values))


def test_the_three_marks_differ_from_all_levels() -> None:
    grid = Grid.of(np.array([1.0, np.nan, np.inf, 1.0]), nans=np.array([0, 0, 0, 1]))
    assert trend(grid, 4, PENS["plain"]).plain[1:] == "·∞✖"
    assert trend(grid, 4, PENS["ascii"]).plain[1:] == "?IN"
    for drawn in PENS.values():
        assert not set(drawn.ramp) & set(drawn.marks.values())


def test_a_colour_means_the_same_everywhere() -> None:
    for value, share in ((SCALE[0], 0), (SCALE[1], -1), (-math.inf, 0), (99.0, -1)):
        assert colour(value, VALUE) == VIRIDIS[share]
    assert not set(COLOURS.values()) & set(VIRIDIS)
    assert colour(0.0, NAN) == COLOURS[NAN]


def test_the_cell_of_a_nan_has_its_colour() -> None:
    values, nans = np.ones((3, 20)), np.zeros((3, 20))
    nans[1, 7] = 1
    grid = log10(Grid.of(values, nans))
    label, line = spectrogram(grid, ["a", "b", "c"], 20, PENS["colour"])[1]
    assert label == "b"
    marked = [
        i for i in range(20) if line.get_style_at_offset(Console(), i).bgcolor.name == rgb(COLOURS[NAN])
    ]  # type: ignore[union-attr]
    assert marked == [7]


def test_deep_models_have_two_rows_on_a_line_and_then_merge_rows() -> None:
    labels = [f"layer{i}" for i in range(300)]
    grid = log10(Grid.of(np.ones((300, 30))))
    assert len(spectrogram(grid, labels, 30, PENS["colour"], 20)) == 20
    lines = spectrogram(Grid.of(np.ones((31, 30))), labels, 30, PENS["colour"], 20)
    assert [label for label, _ in lines] == [f"layer{i}" for i in range(0, 31, 2)]
    assert lines[0][1].plain == "▀" * 30
    assert len(spectrogram(grid, labels, 30, PENS["plain"], 20)) == 20


def test_a_curve_marks_nan_and_inf() -> None:
    lines, log = curve([1.0, 2.0, np.nan, np.inf], 4, 2, PENS["plain"])
    assert lines[0].plain[2:] == "✖∞"
    assert not log
    assert curve([1e-3, 1.0], 4, 2, PENS["plain"])[1]


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x07", "a\rb", "\u202e", "\u200b", "\u2028", "\ud800", "\x9b1m"]
)
def test_clean_escapes_control_characters(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert "\\" in shown


def test_clean_leaves_other_text_unchanged() -> None:
    assert clean("größe [red] 層/conv#2") == "größe [red] 層/conv#2"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (1e-5, "1.0e-05"),
        (math.nan, "–"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short_and_readable(value: float, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.9999, ">99.9 %"),
        (1e-5, "<0.1 %"),
        (0.018, "1.8 %"),
        (0.5, "50 %"),
        (0.995, "99.5 %"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(share: float, said: str) -> None:
    assert percent(share) == said


def test_the_legend_names_the_marks_in_use() -> None:
    assert "Inf" not in legend(PENS["colour"], [NAN, MISSING]).plain
    assert legend(PENS["plain"], [INF]).plain == "∞ Inf"
