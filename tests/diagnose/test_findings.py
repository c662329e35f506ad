"""Causes before consequences, thresholds, own rules, and what a finding looks like."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import fitscope as fs
from diagnose.made import STEPS, Made
from diagnose.test_rules import dying, flat, vanishing
from fitscope.diagnose import Findings
from fitscope.errors import RunError


def test_a_flat_loss_is_listed_under_the_vanishing_gradient() -> None:
    (found,) = vanishing(Made()).loss(flat).findings()
    assert found.rule == "vanishing_gradient"
    assert [c.rule for c in found.consequences] == ["loss_not_decreasing"]


def test_an_earlier_symptom_is_not_a_consequence() -> None:
    made = Made(optimizer={"learning_rate": 1e-3}).loss(np.concatenate([flat, flat]))
    late = dying(made)  # the units die at step 65; the loss was flat from the start
    assert {f.rule for f in late.findings()} == {"dead_relu", "loss_not_decreasing"}


def test_a_schedule_that_ends_early_explains_a_flat_loss() -> None:
    made = Made(optimizer={"learning_rate": {"class": "PolynomialDecay"}}).loss(flat)
    (found,) = made.scalar("learning_rate", STEPS, np.where(STEPS < 20, 1e-3, 0.0)).findings()
    assert found.rule == "optimizer_misconfigured"
    assert [c.rule for c in found.consequences] == ["loss_not_decreasing"]


def test_an_overflow_in_the_first_steps_follows_from_initial_weights() -> None:
    made = Made().loss([135.0, *[np.nan] * 199])
    for layer, rms in zip(("dense", "dense_1", "dense_2"), (1.0, 40.0, 1600.0), strict=True):
        made.put(f"activations/{layer}", rms=rms)
    made.broken("activations/dense_2", 5, infs=4)
    made.broken("loss", 1, nans=1)
    (found,) = made.findings()
    assert found.rule == "bad_initial_loss"
    assert "nonfinite" in {c.rule for c in found.consequences}


def test_the_worst_comes_first_then_the_earliest() -> None:
    made = dying(Made(dense_2__class="Dropout", dense_2__rate=0.95))
    made.broken("activations/out", 150, nans=1)
    made.loss(np.where(np.arange(200) < 150, made.sites["loss"]["value"], math.nan))
    assert [f.rule for f in made.findings()] == ["nonfinite", "dropout_too_high", "dead_relu"]


def test_thresholds_can_be_changed_in_python_and_in_a_file(tmp_path: Path) -> None:
    made = dying(Made())
    assert made.findings("dead_relu")
    assert not made.findings("dead_relu", thresholds={"dead_relu": {"units": 0.99}})
    assert not made.findings("dead_relu", thresholds={"dead_relu.units": 0.99})
    file = tmp_path / "limits.toml"
    file.write_text("[dead_relu]\nunits = 0.99\n")
    assert not made.findings("dead_relu", thresholds=file)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dead_rely": {"units": 1}}, "Did you mean 'dead_relu'"),
        ({"dead_relu": {"unit": 1}}, "Did you mean 'units'"),
        ({"dead_relu.units": "all"}, "a number for dead_relu.units"),
        ("missing.toml", "a TOML file of thresholds"),
    ],
)
def test_an_invalid_threshold_is_an_error(given: object, message: str) -> None:
    with pytest.raises(RunError, match=message):
        Made().findings(thresholds=given)


def test_rules_are_chosen_and_ignored_by_name() -> None:
    made = dying(Made()).loss(flat)
    assert {f.rule for f in made.findings("dead_relu")} == {"dead_relu"}
    assert {f.rule for f in made.findings(ignore=["dead_relu"])} == {"loss_not_decreasing"}
    with pytest.raises(RunError, match="Did you mean 'dead_relu'"):
        made.findings("dead_rel")
    with pytest.raises(RunError, match="Did you mean 'dead_relu'"):
        made.findings(ignore=["dead_rel"])


def test_a_custom_rule_takes_five_lines() -> None:
    @fs.rule("too_high", sees="a loss above 1", limits={"most": 1.0})
    def too_high(evidence, limit):  # type: ignore[no-untyped-def]
        if evidence.loss.value[0] > limit.most:
            yield fs.Finding("too_high", "warning", message="The loss is above 1.")

    from fitscope.diagnose import diagnose

    (found,) = diagnose(Made().evidence(), rules=[*fs.RULES, too_high])
    assert found.rule == "too_high"
    assert not diagnose(Made().evidence(), rules=[too_high], thresholds={"too_high.most": 5})


def test_an_error_in_a_rule_costs_only_that_rule() -> None:
    @fs.rule("broken")
    def broken(evidence, limit):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError("oops")

    from fitscope.diagnose import diagnose

    found = diagnose(dying(Made()).evidence(), rules=[broken, *fs.RULES])
    assert [f.rule for f in found] == ["dead_relu"]
    assert found.not_judged[0].reason == "the rule failed: ZeroDivisionError: oops"


def test_a_finding_reads_well_and_shows_its_evidence() -> None:
    found = dying(Made()).findings()
    text = repr(found)
    assert "▲ warning: dead_relu at dense_1 (steps 65–195)" in text
    assert "30 of 32 units of dense_1 are zero for every sample since step 65" in text
    assert "Cure: " in text
    assert "28 rules checked, 1 warning" in text
    html = found._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "dead units of dense_1" in html


def test_names_are_escaped_in_html() -> None:
    evil = fs.Finding("dead_relu", "warning", layer="<b>", message="<script>")
    assert "<script>" not in evil._repr_html_()
    assert "<b>·" not in evil._repr_html_()


def test_findings_survive_json() -> None:
    made = vanishing(Made()).loss(flat)
    made.broken("activations/out", 150, infs=1)
    found = made.findings()
    again = Findings.from_dict(json.loads(json.dumps(found.as_dict(), allow_nan=False)))
    assert again == found
    assert again.summary == found.summary


def test_evidence_of_a_long_history_stays_small_and_keeps_the_spike() -> None:
    values = np.full(4000, 1.0)
    values[2345] = 50.0
    found = Made().loss(np.linspace(2, 1, 4000) * values).findings("loss_spike")
    assert found[0].series is not None
    assert len(found[0].series.values) <= 64
    assert max(found[0].series.values) > 40
    assert STEPS[0] == 0
