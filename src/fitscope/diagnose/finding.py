"""Finding: one problem of a training, with its layer, steps, evidence and cure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from fitscope.diagnose import picture
from fitscope.diagnose.history import History

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  #: from worst to mildest

#: Titles of findings, if the name of the rule alone would read oddly.
TITLES = {
    "dead_relu": "Dead ReLU units",
    "saturated": "Saturated units",
    "layer_not_learning": "Not learning",
    "input_not_normalised": "Input not normalised",
    "constant_or_duplicate_features": "Constant or duplicate features",
    "output_loss_mismatch": "Output does not fit the loss",
    "batchnorm": "Batch normalisation",
    "unshuffled": "Data not shuffled",
    "wrong_axis": "Wrong axis",
    "rank_differs": "A rank differs",
    "optimizer_misconfigured": "Optimizer misconfigured",
}

MOST_POINTS = 64  #: the most points of a series that is kept as evidence


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series of numbers by step, as evidence. Two series are equal if all their values are equal, NaN included."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Series):
            return NotImplemented
        return (self.name, self.steps, repr(self.values)) == (other.name, other.steps, repr(other.values))

    def __hash__(self) -> int:
        return hash((self.name, self.steps))

    @classmethod
    def of(cls, name: str, steps: Sequence[int] | Any, values: Sequence[float] | Any) -> Series:
        """Keeps at most `MOST_POINTS` points: from each stretch the one farthest from the median, so that no spike is lost."""
        pairs = [(int(s), float(v)) for s, v in zip(steps, values, strict=True)]
        if len(pairs) > MOST_POINTS:
            finite = sorted(v for _, v in pairs if math.isfinite(v))
            middle = finite[len(finite) // 2] if finite else 0.0
            size = -(-len(pairs) // MOST_POINTS)
            stretches = (pairs[i : i + size] for i in range(0, len(pairs), size))
            pairs = [
                max(s, key=lambda p: math.inf if math.isnan(p[1]) else abs(p[1] - middle)) for s in stretches
            ]
        return cls(name, tuple(s for s, _ in pairs), tuple(v for _, v in pairs))

    @classmethod
    def from_history(cls, history: History, stat: str) -> Series:
        name = str(history.site) if stat == "value" else f"{history.site} {stat}"
        return cls.of(name, history.steps, getattr(history, stat))


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a training: where it is, since when, the evidence, and the cure."""

    rule: str  #: the name of the rule that found it
    severity: Severity  #: "error", "warning" or "note"
    site: str | None = None  #: the site that shows it best
    layer: str | None = None  #: the layer at fault; None if no layer is
    first_step: int = 0  #: the first step with the problem
    last_step: int = 0  #: the last step with the problem
    message: str = ""  #: one sentence with layer, step and number
    evidence: Mapping[str, Any] = field(default_factory=dict)  #: the numbers behind it
    cure: str = ""  #: what to do
    consequences: tuple[Finding, ...] = ()  #: findings caused by this one
    confidence: float = 0.8  #: 0 to 1
    series: Series | None = None  #: the evidence as a curve

    @property
    def title(self) -> str:
        """The rule in words, and the layer."""
        words, place = TITLES.get(self.rule, self.rule.replace("_", " ").capitalize()), self.layer
        if self.rule == "nonfinite":
            words = f"{'NaN' if self.evidence.get('nans') else 'Inf'} born here"
            place = self.layer or self.site  # no layer: the data, or the loss
        return f"{words} · {place}" if place else words

    @property
    def steps(self) -> str:
        if self.first_step == self.last_step:
            return f"step {self.first_step:,}"
        return f"steps {self.first_step:,}–{self.last_step:,}"

    def but(self, **changed: Any) -> Finding:
        return replace(self, **changed)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become text."""
        found: dict[str, Any] = _plain(
            {**asdict(self), "consequences": [c.as_dict() for c in self.consequences]}
        )
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        known = {f.name for f in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        given["consequences"] = tuple(cls.from_dict(c) for c in data.get("consequences") or ())
        series = data.get("series")
        if series:
            values = tuple(math.nan if v is None else float(v) for v in series["values"])
            given["series"] = Series(series["name"], tuple(series["steps"]), values)
        return cls(**given)

    def __repr__(self) -> str:
        sign = {"error": "✖", "warning": "▲", "note": "●"}[self.severity]
        lines = [
            f"{sign} {self.severity}: {self.rule}{f' at {self.layer}' if self.layer else ''} ({self.steps})"
        ]
        lines.append(f"  {self.message}")
        if self.cure:
            lines.append(f"  Cure: {self.cure}")
        if self.consequences:
            lines.append("  Leads to: " + ", ".join(_short(c) for c in self.consequences))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return picture.html(self)


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could not be applied, with the reason."""

    reason: str
    rule: str = ""


def _short(finding: Finding) -> str:
    return finding.rule + (f" at {finding.layer}" if finding.layer else "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
