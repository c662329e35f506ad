"""`fitscope check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fitscope.diagnose import RULES

from .conftest import record

Call = Callable[..., Any]


def broken(write: Any) -> None:
    bad = np.ones((4, 3))
    bad[0, 0] = np.nan
    write(extra=(record("activations/conv1", 20, bad), record("loss", 20, np.nan)))


def test_a_finding_is_printed_with_its_cure_and_fails_the_check(call: Call, write: Any) -> None:
    broken(write)
    result = call("check", "runs")
    assert result.exit_code == 1
    assert "✖ NaN born here · conv1  step 20" in result.stdout
    printed = " ".join(result.stdout.split())
    assert "born in the forward pass of conv1 at step 20" in printed
    assert "Cure: " in printed
    assert "28 rules checked, 1 error" in printed


def test_no_sentence_is_cut_in_a_narrow_window(call: Call, write: Any, monkeypatch: Any) -> None:
    broken(write)
    (whole,) = json.loads(call("check", "runs", "--json").stdout)["findings"]
    monkeypatch.setenv("COLUMNS", "40")
    printed = " ".join(call("check", "runs").stdout.split())
    assert whole["message"] in printed
    assert whole["cure"] in printed


def test_the_exit_code_follows_fail_on(call: Call, write: Any) -> None:
    broken(write)
    assert call("check", "--fail-on", "never").exit_code == 0
    assert call("check", "--fail-on", "warning").exit_code == 1
    assert call("check", "--ignore", "nonfinite").exit_code == 0
    assert call("check", "--rules", "dead_relu").exit_code == 0
    wrong = call("check", "--fail-on", "warnings")
    assert wrong.exit_code == 2
    assert "Did you mean 'warning'" in wrong.stderr


def test_a_healthy_run_lists_checked_and_unjudged_rules(call: Call, write: Any) -> None:
    write()
    result = call("check")
    assert result.exit_code == 0
    assert "28 rules checked, nothing found" in result.stdout
    assert "could not be judged (" in result.stdout


def test_json_has_all_of_a_finding(call: Call, write: Any) -> None:
    broken(write)
    found = json.loads(call("check", "--json").stdout)
    assert set(found) == {"summary", "findings", "checked", "not_judged", "expected"}
    (one,) = found["findings"]
    assert (one["rule"], one["layer"], one["first_step"], one["severity"]) == (
        "nonfinite",
        "conv1",
        20,
        "error",
    )
    assert {"site", "last_step", "message", "evidence", "cure", "consequences", "confidence"} <= set(one)


def test_list_prints_every_rule(call: Call) -> None:
    lines = call("check", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [rule.name for rule in RULES]


def test_an_unknown_rule_is_an_error(call: Call, write: Any) -> None:
    write()
    result = call("check", "--rules", "dead_relus")
    assert result.exit_code == 2
    assert "Did you mean 'dead_relu'" in result.stderr


def test_thresholds_come_from_a_file(call: Call, write: Any, tmp_path: Any) -> None:
    write()
    (tmp_path / "bad.toml").write_text("[dead_relu]\nunit = 1\n")
    assert call("check", "--thresholds", "bad.toml").exit_code == 2
    (tmp_path / "good.toml").write_text("[dead_relu]\nunits = 0.9\n")
    assert call("check", "--thresholds", "good.toml").exit_code == 0
