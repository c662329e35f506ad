"""What a picture relates its values to: the past, the start, another run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import NAN

from .conftest import Written, steady
from .gathering import NAMES, gathered, numbers


def test_modes_are_log2_ratios(written: Callable[..., Written]) -> None:
    run = written().add(range(60), steady(NAMES, lambda s, n, v: v * (8 if (s, n) == (40, "b") else 1)))
    g = gathered(run)
    change, start, past = (numbers(g, "activations.rms", mode) for mode in ("change", "start", "past"))
    assert change[1, 40] == pytest.approx(3, abs=0.01)
    assert change[1, 41] == pytest.approx(-3, abs=0.01)
    assert start[1, 40] == pytest.approx(3, abs=0.01)
    assert past[1, 40] > 10
    assert np.nanmax(np.abs(past[[0, 2]])) < 0.1
    assert np.isnan(change[:, 0]).all()


def test_a_run_is_compared_by_name_and_step(written: Callable[..., Written]) -> None:
    one = gathered(written(name="one").add(range(0, 40, 2), steady(NAMES, lambda s, n, v: 4 * v)))
    other = gathered(written(("b", "c", "d"), name="other").add(range(30), steady("bcd")))
    ratio = numbers(one, "activations.rms", "run", other=other)
    assert np.isnan(ratio[0]).all(), "the other run has no layer a"
    assert ratio[1, :15] == pytest.approx(np.full(15, 1.0), abs=0.01), "b is 4 × 1/2 here and 1 there"
    assert np.isnan(ratio[1, 16:]).all(), "beyond the end of the other run there is nothing to compare with"


def compared(one: Gathered, other: Gathered, level: int = 0) -> list[np.ndarray]:
    matrix = one.matrix("activations.rms", "run", other)
    cells = matrix.window(level, 0, matrix.columns(level))
    return [cells.low, cells.high, cells.flags]


def test_a_comparison_follows_the_other_run(written: Callable[..., Written]) -> None:
    tensors = steady(NAMES, lambda s, n, v: v * (1 + s % 5))
    ours, growing = written(name="one").add(range(2000), tensors), written(name="other")
    one, other = gathered(ours), gathered(growing)
    told = set()
    for first, stop in ((0, 0), (0, 90), (90, 91), (91, 100), (100, 1400), (1400, 2000), (2000, 2100)):
        growing.add(range(first, stop), steady(NAMES, lambda s, n, v: v * (1 + s % 3)))
        other.update()
        for level in range(8):
            now = compared(one, other, level)
            fresh = compared(gathered(ours), gathered(growing), level)
            assert all(map(np.array_equal, now, fresh)), (stop, level)
        assert np.isfinite(numbers(one, "activations.rms", "run", other=other)[1, : min(stop, 2000)]).all()
        told.add(one.matrix("activations.rms", "run", other).rewritten)
    assert len(told) == 6, "what the other had not reached is told to have changed, the rest is not touched"


def test_a_comparison_sees_that_the_other_run_got_a_row_or_was_rewritten(
    written: Callable[..., Written],
) -> None:
    one = gathered(written(name="one").add(range(20), steady(NAMES)))
    growing = written(name="other").add(range(20), steady("ab"))
    other = gathered(growing)
    assert np.isnan(numbers(one, "activations.rms", "run", other=other)[2]).all()
    growing.add(range(10, 20), lambda step: {"activations/c": np.full((2, 3), 0.25)})
    other.update()
    assert np.isfinite(numbers(one, "activations.rms", "run", other=other)[2, 10:]).all()
    growing.add([15], lambda step: {"activations/c": np.full((2, 3), 4.0)})
    other.update()
    assert numbers(one, "activations.rms", "run", other=other)[2, 15] == pytest.approx(-2, abs=0.01)


@pytest.mark.parametrize("mode", ["past", "change", "start", "run"])
def test_a_mode_marks_rewritten_columns(written: Callable[..., Written], mode: str) -> None:
    run = written(name="one").add(range(20), steady(NAMES))
    g, other = gathered(run), gathered(written(name="other").add(range(30), steady(NAMES)))
    before = g.matrix("activations.rms", mode, other).rewritten
    run.add(range(20, 22), steady(NAMES))
    g.update()
    assert g.matrix("activations.rms", mode, other).rewritten == before
    for times in (1, 2):
        run.add([7], lambda step: {"activations/b": np.full((2, 3), np.nan)})
        g.update()
        matrix = g.matrix("activations.rms", mode, other)
        assert matrix.rewritten > before, times
        assert matrix.cells().flags[1, 7] & NAN
        before = matrix.rewritten
