"""Formats the cost of recording: for the line of facts, the terminal and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def cadence(overhead: Mapping[str, Any]) -> str | None:
    """How often a budget captures: `every 20 steps (budget 2 % + 3 s)`. None without a budget."""
    budget = overhead.get("budget")
    if not isinstance(budget, Mapping) or not isinstance(budget.get("every"), int):
        return None
    often = "every step" if budget["every"] == 1 else f"every {budget['every']:,} steps"
    share = budget.get("share")
    allowance = budget.get("allowance")
    more = f" + {allowance:g} s" if isinstance(allowance, (int, float)) and allowance > 0 else ""
    return f"{often} (budget {_round(share)}{more})" if isinstance(share, (int, float)) else often


def table(overhead: Mapping[str, Any]) -> list[list[Any]]:
    """All known costs, one row each."""
    rows: list[list[Any]] = []
    for name, value in overhead.items():
        if name == "budget" and isinstance(value, Mapping):
            rows += [["cadence", cadence(overhead)]] if cadence(overhead) else []
            decided = [d for d in value.get("decisions") or () if isinstance(d, Mapping)]
            rows += [
                [f"from step {d['step']:,}", f"every {d['every']:,}"]
                for d in decided
                if {"step", "every"} <= set(d)
            ]
            rows += [["trouble", value["trouble"]]] if value.get("trouble") else []
        elif isinstance(value, (list, tuple)):
            rows.append(
                [name, ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in value) or "–"]
            )
        elif isinstance(value, Mapping):
            rows += [[f"{name}: {key}", inner] for key, inner in value.items()]
        else:
            rows.append([name, value])
    return rows


def percent(share: float) -> str:
    """`0.4 %`, `12 %`; only exact values become 0 % or 100 %."""
    if not math.isfinite(share):
        return "–"
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    digits = 1 if 0 < share < 0.1 or 0.99 < share < 1 else 0
    return f"{share * 100:.{digits}f} %"


def _round(share: float) -> str:
    """A share that a user chose: 2 %, not 2.0 %."""
    text = f"{100 * share:.3g}"
    return f"{text} %" if "e" not in text else percent(share)
