"""The findings of a run: what is named, with its layer and its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fitscope.show.data import page_facts
from fitscope.show.data.facts import missed
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
    assert page_facts.births(g) == {"b": {"activations": 33}, "c": {"activations": 33, "gradients": 33}}
    lane = next(lane for lane in page_facts.now(g)["lanes"] if lane["name"] == "NaN / Inf")
    assert lane["spans"] == [(33, 59)]


def test_a_gradient_that_breaks_first_is_the_origin_not_a_layer_above(
    written: Callable[..., Written],
) -> None:
    def broken(step: int) -> dict[str, Any]:
        found = steady(NAMES)(step)
        if step >= 5:
            found["gradients/a"] = found["gradients/b"] = np.full((2, 3), np.nan)
        return found

    assert gathered(written().add(range(9), broken)).findings[0].row == "c", (
        "the layer that consumes b made its gradient"
    )


def test_findings_get_a_row_a_step_a_measure_a_curve_and_a_lane(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        found = steady(NAMES, lambda s, n, v: 0.0 if n == "c" and s >= 20 else v)(step)
        found["loss"] = 5.0 if step == 50 else 2.0 - step / 70 + 0.01 * (step % 3)
        return found

    g = gathered(written().add(range(70), at))
    by_rule = {finding.rule: finding for finding in g.findings}
    dead = by_rule["dead_relu"]
    assert (dead.row, dead.step, dead.measure) == ("c", 20, "activations.zeros")
    assert "100 % of the output of c is zero for every sample since step 20" in dead.text
    assert dead.cure
    assert 1 < len(dead.curve) <= 32
    assert by_rule["loss_spike"].step == 50
    assert (50, 5.0) in by_rule["loss_spike"].curve, "what stands out is in the small picture"
    lanes = {lane["name"]: lane["spans"] for lane in page_facts.now(g)["lanes"]}
    assert lanes["dead relu"] == [(20, 69)]
    assert lanes["loss spike"] == [(50, 50)]


@pytest.mark.parametrize("lane", ["odd batch", "loss spike"])
def test_the_lane_of_single_events_is_empty_between_them(written: Callable[..., Written], lane: str) -> None:
    """A batch that is odd once in an epoch is not odd all the time from the first to the last."""

    def at(step: int) -> dict[str, Any]:
        odd = step in (20, 45, 70)
        inputs = np.full((4, 3), 300.0 if odd and lane == "odd batch" else 1.0) + np.arange(3) / 10
        loss = 9.0 if odd and lane == "loss spike" else 2.0 - step / 70
        return {**steady(NAMES)(step), "inputs": inputs, "loss": loss}

    facts = page_facts.now(gathered(written().add(range(90), at)))
    spans = {found["name"]: found["spans"] for found in facts["lanes"]}
    assert spans[lane] == [(20, 20), (45, 45), (70, 70)]


def test_what_a_run_cannot_have_is_no_problem() -> None:
    unseen = {"classes/targets": "the loss is not one of classes", "validation/features/range": "text"}
    assert missed(unseen) == {}
    assert missed({**unseen, "gradients/a": "no gradient reaches it"}) == {
        "gradients/a": "no gradient reaches it"
    }


def test_findings_follow_a_run_that_grows(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        found = steady(NAMES)(step)
        if step >= 30:
            found["activations/b"][0, 0] = np.nan
        return found

    run = written().add(range(20), at)
    g = gathered(run)
    assert g.findings == []
    run.add(range(20, 40), at)
    g.update()
    assert [(finding.rule, finding.row, finding.step) for finding in g.findings] == [("nonfinite", "b", 30)]


def test_findings_that_the_recording_process_noted_are_shown_as_they_are(
    written: Callable[..., Written],
) -> None:
    from fitscope.diagnose import Finding, Findings
    from fitscope.pipeline.diagnosis import stored

    run = written().add(range(20), steady(NAMES))
    noted = Findings(
        [Finding("dead_relu", "warning", "activations/b", "b", 3, 9, "It is dead.")], ("dead_relu",)
    )
    run.writer.note(findings=stored(noted, 19))
    run.writer.flush()
    g = gathered(run)
    assert [(finding.rule, finding.row, finding.step, finding.end) for finding in g.findings] == [
        ("dead_relu", "b", 3, 9)
    ]
    assert page_facts.now(g)["checked"] == "1 rule checked, 1 warning"


def test_a_run_in_which_nothing_happens_has_no_findings(written: Callable[..., Written]) -> None:
    def at(step: int) -> dict[str, Any]:
        return {**steady(NAMES)(step), "loss": 2.0 - step / 80}

    g = gathered(written().add(range(80), at))
    assert g.findings == []
    assert "28 rules checked, nothing found" in page_facts.now(g)["checked"]
