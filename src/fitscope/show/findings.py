"""Prints findings in the terminal: each with its message, a sparkline of its evidence, its cure and its consequences."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fitscope.diagnose import RULES, Finding, Findings, Series
from fitscope.show.text import clean

STYLES = {"error": ("✖", "bold red"), "warning": ("▲", "yellow"), "note": ("●", "dim")}
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def told(found: Findings) -> RenderableType:
    """All findings, and one line with the checked rules."""
    sign = Text("✔ " if not found else "", "green")
    return Group(*(finding(one) for one in found), Text.assemble(sign, (clean(found.summary), "dim")))


def finding(one: Finding) -> RenderableType:
    """One finding."""
    sign, style = STYLES[one.severity]
    head = Text.assemble((f"{sign} ", style), (clean(one.title), f"bold {style}"), (f"  {one.steps}", "dim"))
    lines: list[RenderableType] = [Text(clean(one.message))]
    curve = sparkline(one.series) if one.series is not None else ""
    if curve and one.series is not None:
        finite = [v for v in one.series.values if math.isfinite(v)]
        lines.append(
            Text.assemble(
                (curve, style), (f"  {clean(one.series.name)}, {finite[0]:.3g} to {finite[-1]:.3g}", "dim")
            )
        )
    if one.cure:
        lines.append(Text.assemble(("Cure: ", "bold"), clean(one.cure)))
    lines += [Text.assemble(("→ ", "dim"), (clean(each.message), "dim")) for each in one.consequences]
    return Group(head, Padding(Group(*lines), (0, 0, 1, 2)))


def sparkline(series: Series) -> str:
    """The series as blocks: the largest value of each stretch, × for NaN and Inf, on a log scale if it spans several powers of ten."""
    finite = [v for v in series.values if math.isfinite(v)]
    if len(finite) < 2:
        return ""
    logarithmic = min(finite) > 0 and max(finite) / min(finite) > 100
    scale = math.log10 if logarithmic else float
    low, high = scale(min(finite)), scale(max(finite))
    size = -(-len(series.values) // _WIDTH)
    parts = [series.values[i : i + size] for i in range(0, len(series.values), size)]
    drawn = ""
    for part in parts:
        if all(map(math.isfinite, part)):
            share = (scale(max(part)) - low) / ((high - low) or 1)
            drawn += _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]
        else:
            drawn += "×"
    return drawn


def listed() -> RenderableType:
    """Every rule with its description."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("rule", no_wrap=True)
    table.add_column("sees")
    for rule in RULES:
        table.add_row(rule.name, rule.sees)
    return table
