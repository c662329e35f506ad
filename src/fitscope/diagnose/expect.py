"""Expected findings, which are not reported.

scope = fs.Scope("runs", notes=fs.expect("frozen base", layers="base*"))
run.findings(expect=[fs.expect("sorted on purpose", rules="unshuffled")])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fitscope.diagnose.finding import Finding

#: The result of `expect`.
Expectation = Mapping[str, list[dict[str, Any]]]

KEY = "fitscope.expect"  #: the key in the notes of a run

#: Words in the reason that name a rule, so that `fs.expect("frozen base")` needs no `rules`.
_WORDS = {
    "frozen": "layer_not_learning", "freeze": "layer_not_learning", "sorted": "unshuffled", "ordered": "unshuffled",
    "unshuffled": "unshuffled", "imbalance": "label_problem", "dead": "dead_relu", "spike": "loss_spike",
    "fine-tun": "updates_too_small", "small learning rate": "updates_too_small",
}  # fmt: skip


def expect(reason: str, *, rules: str | Iterable[str] = (), layers: str | Iterable[str] = "*") -> Expectation:
    """Declares findings as expected, so that they are not reported. Pass the result to `Scope(notes=…)` or `run.findings(expect=…)`.

    Args:
        reason: The reason in your words. If it names a rule ("frozen base"), you need no `rules`.
        rules: The rules not to report, by name or glob.
        layers: The layers not to report, by path or glob.
    """
    named = [rules] if isinstance(rules, str) else list(rules)
    named = named or [rule for word, rule in _WORDS.items() if word in reason.lower()]
    return {
        KEY: [
            {
                "reason": reason,
                "rules": named or ["*"],
                "layers": [layers] if isinstance(layers, str) else list(layers),
            }
        ]
    }


@dataclass(frozen=True, slots=True)
class Expected:
    """One kind of expected finding."""

    reason: str
    rules: tuple[str, ...]
    layers: tuple[str, ...]

    def covers(self, finding: Finding) -> bool:
        layer = finding.layer or ""
        return any(fnmatchcase(finding.rule, rule) for rule in self.rules) and any(
            glob == "*" or fnmatchcase(layer, glob) for glob in self.layers
        )


def expected(given: Any) -> list[Expected]:
    """The expectations in notes, or in a list of `fs.expect(…)`."""
    return [
        Expected(
            str(one.get("reason", "")), tuple(one.get("rules") or ("*",)), tuple(one.get("layers") or ("*",))
        )
        for one in _said(given)
    ]


def _said(given: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(given, Mapping):
        for one in given.get(KEY) or ():
            if isinstance(one, Mapping):
                yield one
        for key, value in given.items():
            if key != KEY:
                yield from _said(value)
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _said(one)
