"""Findings: the result of a diagnosis. A list of findings, with the rules that were checked or could not be judged."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fitscope.diagnose.finding import SEVERITIES, Finding, NotJudged


class Findings(list[Finding]):
    """The findings of a run, the worst first, then the earliest."""

    def __init__(
        self,
        found: Iterable[Finding] = (),
        checked: tuple[str, ...] = (),
        not_judged: tuple[NotJudged, ...] = (),
        expected: int = 0,
    ) -> None:
        super().__init__(found)
        self.checked = checked  #: the names of the applied rules
        self.not_judged = not_judged  #: the rules that could not be judged, with the reason
        self.expected = expected  #: the number of expected findings, which are left out

    @property
    def worst(self) -> str | None:
        """The worst severity; None without findings."""
        return next((s for s in SEVERITIES if any(f.severity == s for f in self)), None)

    @property
    def summary(self) -> str:
        """One line: the number of checked rules, the findings, and the rules that could not be judged with the reason."""
        counts = Counter(finding.severity for finding in self)
        found = ", ".join(f"{counts[s]} {s}{'s' if counts[s] != 1 else ''}" for s in SEVERITIES if counts[s])
        silent = {one.rule for one in self.not_judged}
        judged, every = sum(name not in silent for name in self.checked), len(self.checked)
        rules = f"{every} rule{'s' if every != 1 else ''} checked"
        parts = [rules if judged == every else f"{judged} of {rules}", found or "nothing found"]
        if self.not_judged:
            reasons = Counter(one.reason for one in self.not_judged)
            why = "; ".join(reason for reason, _ in reasons.most_common(3))
            parts.append(
                f"{len(self.not_judged)} could not be judged ({why}{'; …' if len(reasons) > 3 else ''})"
            )
        if self.expected:
            parts.append(f"{self.expected} expected")
        return ", ".join(parts)

    def joined(self, others: Findings) -> Findings:
        """These and others, the worst first. A rule that both checked counts once."""
        found = sorted([*self, *others], key=lambda f: (SEVERITIES.index(f.severity), f.first_step))
        silent = tuple({one.rule: one for one in (*self.not_judged, *others.not_judged)}.values())
        checked = tuple(dict.fromkeys((*self.checked, *others.checked)))
        return Findings(found, checked, silent, self.expected + others.expected)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "summary": self.summary,
            "findings": [finding.as_dict() for finding in self],
            "checked": list(self.checked),
            "not_judged": {one.rule: one.reason for one in self.not_judged},
            "expected": self.expected,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Restores findings from the result of `as_dict`."""
        silent = (data.get("not_judged") or {}).items()
        return cls(
            (Finding.from_dict(one) for one in data.get("findings") or ()),
            tuple(data.get("checked") or ()),
            tuple(NotJudged(str(reason), str(rule)) for rule, reason in silent),
            int(data.get("expected") or 0),
        )

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self), self.summary])

    def _repr_html_(self) -> str:
        return "".join(finding._repr_html_() for finding in self) + f"<p>{html.escape(self.summary)}</p>"
