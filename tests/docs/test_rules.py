"""Every rule has its section in docs/rules.md, with its thresholds and when it is a false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitscope.diagnose import RULES, THRESHOLDS

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0].strip(): part for part in PAGE.split("\n## ")[1:]}


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_a_rule_is_described_with_its_thresholds_and_false_alarms(rule: object) -> None:
    name = rule.name  # type: ignore[attr-defined]
    assert name in SECTIONS, f"docs/rules.md has no section {name!r}"
    assert "**False alarms.**" in SECTIONS[name]
    for threshold, value in THRESHOLDS[name].items():
        assert f"`{threshold}` {value:g}" in SECTIONS[name]


def test_the_page_describes_only_existing_rules() -> None:
    others = {"Severity", "Thresholds", "Your own rule"}
    assert set(SECTIONS) - others == {rule.name for rule in RULES}
