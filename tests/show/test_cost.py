"""What watching cost, in words, whatever is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from fitscope.show.data.cost import cadence, table


@pytest.mark.parametrize(
    ("overhead", "said"),
    [
        ({"budget": {"share": 0.02, "every": 20, "decisions": []}}, "every 20 steps (budget 2 %)"),
        ({"budget": {"share": 0.005, "every": 1}}, "every step (budget 0.5 %)"),
        ({"budget": {"share": 0.02, "every": 7, "allowance": 3.0}}, "every 7 steps (budget 2 % + 3 s)"),
        ({"budget": {"share": 0.02, "every": 7, "allowance": 0.0}}, "every 7 steps (budget 2 %)"),
        ({"budget": {"every": 1500}}, "every 1,500 steps"),
        ({"budget": {"share": 0.02}}, None),
        ({"budget": None}, None),
        ({"cpu_share": 0.1}, None),
        ({}, None),
    ],
)
def test_the_cadence_is_shown_if_a_budget_decides(overhead: dict[str, Any], said: str | None) -> None:
    assert cadence(overhead) == said


def test_the_table_of_costs_has_a_line_for_each_cost() -> None:
    decided = [{"step": 0, "every": 10}, {"step": 1200, "every": 20}, "?", {"step": 7}]
    overhead = {
        "steps": 100,
        "first_call_seconds": [0.51234, 2.0],
        "queue": {"peak": 3},
        "budget": {"share": 0.02, "every": 20, "decisions": decided, "trouble": "watch less"},
    }
    assert table(overhead) == [
        ["steps", 100],
        ["first_call_seconds", "0.512, 2"],
        ["queue: peak", 3],
        ["cadence", "every 20 steps (budget 2 %)"],
        ["from step 0", "every 10"],
        ["from step 1,200", "every 20"],
        ["trouble", "watch less"],
    ]
    assert table({}) == []
