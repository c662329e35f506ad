"""A rule: a name, a description, and a function from evidence to findings.

@fs.rule("loss_too_high", sees="a loss above 5", limits={"most": 5.0})
def too_high(evidence, limit):
    if evidence.loss is not None and evidence.loss.value[-1] > limit.most:
        yield fs.Finding("loss_too_high", "warning", message="The loss is above 5.")

run.findings(rules=[*fs.RULES, too_high])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged

#: A function of the evidence and the rule's thresholds, which are attributes.
Judge = Callable[[Evidence, SimpleNamespace], Iterable[Finding | NotJudged]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the diagnosis. `fs.rule` creates one."""

    name: str
    judge: Judge
    sees: str  #: a description of one line
    limits: Mapping[str, Any]  #: the rule's own thresholds, in addition to the shared ones

    def __call__(self, evidence: Evidence, limits: Mapping[str, Any]) -> list[Finding | NotJudged]:
        """Applies the rule. If it raises, it counts as not judged, so that the other rules still apply."""
        try:
            return list(self.judge(evidence, SimpleNamespace(**{**self.limits, **limits})))
        except Exception as error:
            return [NotJudged(f"the rule failed: {type(error).__name__}: {error}", self.name)]


def rule(name: str, *, sees: str = "", limits: Mapping[str, Any] | None = None) -> Callable[[Judge], Rule]:
    """Makes a function a rule: it takes the evidence and the thresholds, and yields findings.

    Args:
        name: The name of the rule.
        sees: A description of one line.
        limits: Its own thresholds, which the function gets as attributes.
    """

    def made(judge: Judge) -> Rule:
        return Rule(name, judge, sees, limits or {})

    return made
