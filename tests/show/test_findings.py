"""The findings of a run: what is named, with its layer and its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fitscope.show.data import payload
from fitscope.show.data.matrix import INF, NAN

from .conftest import Written, steady
from .gathering import NAMES, gathered


def test_the_first_nan_is_named_with_its_layer_and_exact_step(written: Callable[..., Written]) -> None:
    def broken(step: int) -> dict[str, Any]:
        found = steady(NAMES)(step)
        if step >= 33:
            found["gradients/c"] = np.full((2, 3), np.inf)
            for name in "bc":
                found[f"activations/{name}"][0, 0] = np.nan
        return found

    g = gathered(written().add(range(60), broken))
    worst = g.findings[0]
    assert (worst.severity, worst.row, worst.step, worst.site) == ("error", "b", 33, "activations/b")
    assert "NaN born here · b" in worst.title
    assert "1 of 6 values" in worst.text
    flags = g.matrix("activations.rms").cells().flags
    assert np.flatnonzero(flags[1] & NAN)[0] == 33
    assert np.flatnonzero(g.matrix("gradients.rms").cells().flags[2] & INF)[0] == 33
    assert payload.births(g) == {"b": {"activations": 33}, "c": {"activations": 33, "gradients": 33}}
    lane = next(lane for lane in g.facts.lanes() if lane["name"] == "NaN / Inf")
    assert lane["spans"] == [(33, 59)]


def test_a_gradient_that_breaks_first_is_the_origin_not_a_layer_above(
    written: Callable[..., Written],
) -> None:
    def broken(step: int) -> dict[str, Any]:
        found = steady(NAMES)(step)
        if step >= 5:
            found["gradients/a"] = found["gradients/b"] = np.full((2, 3), np.nan)
        return found

    assert gathered(written().add(range(9), broken)).findings[0].row == "b", "gradients come from behind"


def test_dead_layers_jumps_and_loss_spikes_are_found(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        found = steady(NAMES, lambda s, n, v: 0.0 if n == "c" and s >= 20 else v * (64 if s == 30 else 1))(
            step
        )
        found["loss"] = 5.0 if step == 50 else 1.0 + 0.01 * (step % 3)
        return found

    g = gathered(written().add(range(70), at))
    by_lane = {finding.lane: finding for finding in g.findings}
    assert (by_lane["stays zero"].row, by_lane["stays zero"].step) == ("c", 20)
    assert (by_lane["jumps"].row, by_lane["jumps"].step) == ("a", 30)
    assert by_lane["loss spikes"].step == 50
    assert "error" not in [finding.severity for finding in g.findings]


def test_each_time_a_layer_stays_zero_is_told_as_it_was(written: Callable[..., Written]) -> None:
    """That it is so again makes the first time neither go on nor be worse or better than it was."""

    def at(step: int) -> dict[str, Any]:
        found = np.ones((10, 10))
        if step <= 30:
            found[:] = 0
        elif step >= 50:
            found[:, 1:] = found[1:, 0] = 0  # 99 of 100
        return {"activations/a": found}

    run = written(("a",))
    for first in range(0, 80, 20):  # in parts: a streak goes on from one to the next
        run.add(range(first, first + 20), at)
    told = [finding.text for finding in gathered(run).findings if finding.lane == "stays zero"]
    assert told == [
        "all of its output is zero, steps 0 to 30",
        "99 % or more of its output is zero, since step 50",
    ]


def test_a_run_in_which_nothing_happens_has_no_findings(written: Callable[..., Written]) -> None:
    assert gathered(written().add(range(80), steady(NAMES))).findings == []
