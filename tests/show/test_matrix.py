"""The matrix behind the spectrogram: whatever stood out still does, however few columns there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitscope.show.data.matrix import INF, NAN, VALUE, Cells, Matrix
from fitscope.show.data.measures import LOG, SHARE, ZERO

STEPS = 5000


def filled(numbers: np.ndarray, steps: np.ndarray | None = None, flags: np.ndarray | None = None) -> Matrix:
    rows, wide = numbers.shape
    matrix = Matrix(rows, LOG)
    row, column = np.indices(numbers.shape).reshape(2, -1)
    steps = np.arange(wide) if steps is None else steps
    flags = np.full(numbers.shape, VALUE, np.uint8) if flags is None else flags
    matrix.add(row, steps[column], numbers.ravel(), flags.ravel())
    return matrix


@pytest.mark.parametrize("columns", [16, 100, 1024, 2048, 5000])
def test_one_spike_one_dip_and_one_nan_survive_any_number_of_columns(columns: int) -> None:
    numbers = np.zeros((4, STEPS))
    numbers[1, 1234], numbers[2, 4321] = 9.0, -9.0
    flags = np.full(numbers.shape, VALUE, np.uint8)
    flags[3, 777] |= NAN
    flags[3, 778] |= INF
    matrix = filled(numbers, flags=flags)
    level = matrix.level_for(columns)
    cells = matrix.window(level, 0, matrix.columns(level))
    assert cells.low.shape[1] <= columns
    assert matrix.code.decode(cells.high[1, 1234 >> level]) == pytest.approx(9, abs=0.01)
    assert (matrix.code.decode(cells.high[1]) > 8).sum() == 1
    assert matrix.code.decode(cells.low[2, 4321 >> level]) == pytest.approx(-9, abs=0.01)
    assert (matrix.code.decode(cells.low[2]) < -8).sum() == 1
    assert np.flatnonzero(cells.flags[3] & NAN).tolist() == [777 >> level]
    assert np.flatnonzero(cells.flags[3] & INF).tolist() == [778 >> level]
    assert matrix.starts(level)[1234 >> level] <= 1234 < matrix.starts(level)[1234 >> level] + (1 << level)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_adding_values_in_pieces_gives_the_same_matrix_as_all_at_once(data: st.DataObject) -> None:
    wide = data.draw(st.integers(1, 700))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    numbers = rng.normal(size=(3, wide)) * 10
    steps = np.cumsum(rng.integers(1, 5, wide))
    flags = rng.choice([0, VALUE, VALUE | NAN, INF], (3, wide)).astype(np.uint8)
    whole = filled(numbers, steps, flags)
    grown = Matrix(3, LOG)
    cuts = sorted(data.draw(st.lists(st.integers(0, wide), max_size=5)))
    for a, b in zip([0, *cuts], [*cuts, wide], strict=True):
        row, column = np.indices((3, b - a)).reshape(2, -1)
        grown.add(row, steps[a:b][column], numbers[:, a:b].ravel(), flags[:, a:b].ravel())
    for level in (0, 1, 2, 3, 5, 9):
        one, other = (m.window(level, 0, m.columns(level)) for m in (whole, grown))
        for name in ("low", "high", "flags"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), (level, name)
    assert grown.rewritten == 0


def test_late_steps_are_put_in_their_column() -> None:
    late, whole = Matrix(1, LOG), Matrix(1, LOG)
    order = [*range(0, 400, 2), *range(1, 400, 2)]
    for first in (0, 200):
        steps = np.array(order[first : first + 200])
        late.add(np.zeros(200, int), steps, steps / 50.0, np.full(200, VALUE, np.uint8))
    whole.add(np.zeros(400, int), np.arange(400), np.arange(400) / 50.0, np.full(400, VALUE, np.uint8))
    assert late.rewritten
    for level in (0, 3):
        assert np.array_equal(late.window(level, 0, 400).high, whole.window(level, 0, 400).high)
        assert np.array_equal(late.window(level, 0, 400).low, whole.window(level, 0, 400).low)


def test_several_values_of_one_step_keep_their_extremes() -> None:
    matrix = Matrix(1, LOG)
    matrix.add(np.zeros(3, int), np.array([7, 7, 7]), np.array([1.0, -3.0, 2.0]), np.full(3, VALUE, np.uint8))
    cells = matrix.cells()
    assert matrix.code.decode([cells.low[0, 0], cells.high[0, 0]]).tolist() == [-3.0, 2.0]


def test_zero_is_below_everything_and_a_share_is_exact() -> None:
    assert Matrix(1, LOG).code.encode(np.array([ZERO, -127.9, -30.0])).tolist()[0] == 0
    share = Matrix(1, SHARE).code
    assert share.decode(share.encode(np.array([0.0, 0.5, 1.0]))) == pytest.approx([0, 0.5, 1], abs=1e-5)


def test_an_empty_cell_changes_nothing_when_it_is_merged() -> None:
    cells = Cells.empty(1, 4)
    cells.low[0, 2], cells.high[0, 2], cells.flags[0, 2] = 5, 9, VALUE
    merged = cells.merged(4)
    assert (merged.low[0, 0], merged.high[0, 0], merged.flags[0, 0]) == (5, 9, VALUE)
