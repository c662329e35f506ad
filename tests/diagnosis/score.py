"""Compares findings with what was planted, and prints the table. Needs no backend and no run: rows are plain data.

A finding counts from severity `warning` on; for faults that only their author can know (`note=True`), a note counts as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from diagnosis.case import Expect, Fault

LOUD = ("warning", "error")


@dataclass
class Row:
    """What came of one training."""

    name: str
    variant: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0
    losses: list[str] = field(default_factory=list)
    steps: int = 0

    def loud(self, note: bool = False) -> list[dict[str, Any]]:
        return [one for one in self.findings if one["severity"] in LOUD or note]


@dataclass(frozen=True)
class Verdict:
    """How one fault was judged. `step` is None where none was to be named."""

    first: bool
    rule: bool
    layer: bool
    step: bool | None


def names_layer(finding: dict[str, Any], expected: Expect) -> bool:
    """Whether the finding names a guilty layer, or a layer inside of one."""
    if not expected.layers:
        return True
    return bool(set(str(finding["layer"] or "").split("/")) & set(expected.layers))


def matches(finding: dict[str, Any], expected: Expect) -> bool:
    return finding["rule"] == expected.rule and names_layer(finding, expected)


def judge(fault: Fault, row: Row) -> Verdict:
    loud = row.loud(fault.note)
    rules = {one.rule for one in fault.expected}
    right = [one for one in loud if any(matches(one, each) for each in fault.expected)]
    step = None
    if fault.step is not None:
        begun = [one["first_step"] for one in right]
        step = any(at is not None and 0 <= at - fault.step <= fault.within for at in begun)
    return Verdict(
        bool(right) and right[0] is loud[0], any(one["rule"] in rules for one in loud), bool(right), step
    )


def table(faults: list[Fault], rows: list[Row], title: str) -> str:
    """The figures of one setting, the rules that were found for each planted one, and a line for each miss."""
    found = {row.name: row for row in rows if row.variant == "fault"}
    judged = {one.name: judge(one, found[one.name]) for one in faults if one.name in found}
    placed = [one for one in faults if one.name in judged and any(each.layers for each in one.expected)]
    stepped = [each.step for each in judged.values() if each.step is not None]
    lines = [f"—— {title}", *_share("cause first: rule and layer", [each.first for each in judged.values()])]
    lines += _share("rule, in any warning", [each.rule for each in judged.values()])
    lines += _share("rule and layer, in any warning", [each.layer for each in judged.values()])
    lines += _share("  of those with a guilty layer", [judged[one.name].layer for one in placed])
    lines += _share("step", stepped)
    for variant, words in (("twin", "false alarms, twins"), ("healthy", "false alarms, healthy")):
        lines += _share(words, [bool(row.loud()) for row in rows if row.variant == variant])
    failed = [row for row in rows if row.error]
    lines += _share("failed", [bool(row.error) for row in rows]) if failed else []
    return "\n".join([*lines, *_confusion(faults, found), *_misses(faults, rows, judged)])


def _share(words: str, values: list[bool]) -> list[str]:
    if not values:
        return []
    return [f"  {words:32} {sum(values):3} of {len(values):3}   {100 * sum(values) / len(values):5.1f} %"]


def _confusion(faults: list[Fault], found: dict[str, Row]) -> list[str]:
    """For each planted rule, which rule came first how often."""
    counts: dict[str, Counter[str]] = {}
    for one in faults:
        if one.name in found:
            loud = found[one.name].loud(one.note)
            counts.setdefault(one.expected[0].rule, Counter())[loud[0]["rule"] if loud else "nothing"] += 1
    lines = ["", "  planted → found first"] if counts else []
    for planted, first in sorted(counts.items()):
        lines.append(f"  {planted:32} {', '.join(f'{rule} {n}' for rule, n in first.most_common())}")
    return lines


def _misses(faults: list[Fault], rows: list[Row], judged: dict[str, Verdict]) -> list[str]:
    planted = {one.name: one for one in faults}
    lines = []
    for row in rows:
        if row.error:
            lines.append(f"  {row.name} ({row.variant}): failed: {row.error.splitlines()[-1][:160]}")
        elif row.variant == "fault" and not judged[row.name].first:
            fault = planted[row.name]
            wanted = " or ".join(f"{one.rule}{list(one.layers) or ''}" for one in fault.expected)
            late = "not first: " if judged[row.name].layer else ""
            lines.append(f"  {row.name}: {late}wanted {wanted}, got {_brief(row.loud(fault.note))}")
        elif row.variant != "fault" and row.loud():
            lines.append(f"  {row.name} ({row.variant}): false alarm {_brief(row.loud())}")
    return ["", *lines] if lines else []


def _brief(findings: list[dict[str, Any]]) -> str:
    said = [f"{one['rule']}[{one['layer'] or ''}]@{one['first_step']}" for one in findings]
    return (
        ", ".join(said[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "") if said else "nothing"
    )
