"""The facts that the pictures mark: findings with their places, and the exact first NaN and Inf.

The findings are those of `run.findings()`; here each gets the row, step and measure that show it best. NaN and Inf come from the
rows of the table, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fitscope import diagnose
from fitscope.show.data.matrix import Array
from fitscope.show.data.rows import Row
from fitscope.sites import OF_LAYERS, OF_WEIGHTS, Site

CURVE = 32  #: the most points in a finding's small picture
DERIVED = ("classes", "features")  #: kinds of `fs.data()`
MOST_LANES = 6  #: the most lanes of findings

#: The measure that shows a finding of this rule best; otherwise the rms of its kind.
_MEASURES = {
    "dead_relu": "activations.zeros",
    "updates_too_large": "updates.ratio",
    "updates_too_small": "updates.ratio",
    "vanishing_gradient": "gradients.rms",
    "exploding_gradient": "gradients.rms",
}


@dataclass(frozen=True, slots=True)
class PlacedFinding:
    """A finding in the picture."""

    severity: str  #: error, warning or note
    title: str
    text: str
    cure: str
    rule: str
    step: int
    end: int  #: the last step of the evidence
    row: str | None = None
    site: str | None = None
    measure: str | None = None  #: the measure that shows it best
    follows: tuple[str, ...] = ()  #: the titles of its consequences
    curve: tuple[tuple[int, float], ...] = ()  #: its evidence as a few (step, value)
    curve_of: str = ""
    at: tuple[int, ...] = ()  #: the steps of single events; empty: the whole stretch

    @property
    def lane(self) -> str:
        return self.rule.replace("_", " ")

    def as_dict(self) -> dict[str, Any]:
        """For the page. The lanes show its last step, which changes at every tick, and its single steps."""
        return {name: value for name, value in asdict(self).items() if name not in ("end", "at")}


def placed(findings: Iterable[diagnose.Finding], rows: Sequence[Row]) -> list[PlacedFinding]:
    """The findings with their places among these rows."""
    found = list(findings)
    layers = {row.name: row.name for row in rows}
    layers |= _inside({one.layer for one in found if one.layer} - layers.keys(), rows)
    sites = {site: row.name for row in reversed(rows) for some in row.sites.values() for site in some}
    return [_placed(one, layers.get(one.layer or "") or sites.get(one.site or "")) for one in found]


def _placed(finding: diagnose.Finding, row: str | None) -> PlacedFinding:
    kind = Site.parse(finding.site).base if finding.site else ""
    measure = _MEASURES.get(finding.rule) or (f"{kind}.rms" if kind in (*OF_LAYERS, *OF_WEIGHTS) else None)
    series = finding.series
    points = list(zip(series.steps, series.values, strict=True)) if series is not None else []
    size = -(-len(points) // CURVE)
    some = [_furthest(points[i : i + size]) for i in range(0, len(points), size)] if points else []
    return PlacedFinding(
        finding.severity, finding.title, finding.message, finding.cure, finding.rule, finding.first_step, finding.last_step,
        row, finding.site, measure if row is not None else None,
        tuple(dict.fromkeys(each.title for each in finding.consequences)),
        tuple((step, float(f"{value:.3g}")) for step, value in some if math.isfinite(value)),
        series.name if series is not None else "", _events(finding),
    )  # fmt: skip


def _events(finding: diagnose.Finding) -> tuple[int, ...]:
    """The steps that a finding names one by one, with nothing wrong between them."""
    steps = finding.evidence.get("steps")
    if not isinstance(steps, list | tuple) or not all(isinstance(step, int) for step in steps):
        return ()
    return tuple(steps)


def _inside(layers: set[str], rows: Sequence[Row]) -> dict[str, str]:
    """The first row inside each of these layers, which have no row themselves."""
    found: dict[str, str] = {}
    for row in rows if layers else ():
        around = row.name
        while "/" in around:
            around = around.rpartition("/")[0]
            if around in layers:
                found.setdefault(around, row.name)
    return found


def _furthest(points: list[tuple[int, float]]) -> tuple[int, float]:
    """The largest point of a stretch by absolute value, because an outlier must be visible."""
    return max(points, key=lambda p: abs(p[1]) if math.isfinite(p[1]) else -1.0)


class Facts:
    """The NaN and Inf of one run."""

    def __init__(self) -> None:
        self.first: dict[str, dict[str, int]] = {"nans": {}, "infs": {}}  #: the exact first step of each site
        self.broken: set[int] = set()  #: steps with a value that is not finite

    def take(self, site: str, step: Array, nans: Array, infs: Array) -> None:
        """Rows of the table about one site."""
        for name, counts in (("nans", nans), ("infs", infs)):
            at = np.flatnonzero(counts > 0)
            if len(at):
                self.broken.update(step[at].tolist())
                first = int(step[at].min())
                self.first[name][site] = min(first, self.first[name].get(site, first))


def lanes(facts: Facts, findings: Sequence[PlacedFinding]) -> list[dict[str, Any]]:
    """The steps of each finding: stretches, or single steps."""
    spans: dict[str, list[tuple[int, int]]] = {}
    severities: dict[str, str] = {}
    for finding in findings:
        if finding.rule != "nonfinite":
            events = [(step, step) for step in finding.at] or [(finding.step, finding.end)]
            spans.setdefault(finding.lane, []).extend(events)
            severities.setdefault(finding.lane, finding.severity)
    broken = {"name": "NaN / Inf", "severity": "error", "spans": _stretches(sorted(facts.broken))}
    found = [
        {"name": name, "severity": severities[name], "spans": _united(some)} for name, some in spans.items()
    ]
    return [broken, *found[:MOST_LANES]]


def _stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Steps as stretches. A gap of up to twice the usual one does not end a stretch."""
    if not steps:
        return []
    gaps = np.diff(np.asarray(steps))
    usual = 2 * float(np.median(gaps)) if len(gaps) else 0
    ends = np.flatnonzero(gaps > usual)
    begins = [0, *(ends + 1).tolist()]
    return [
        (int(steps[a]), int(steps[b])) for a, b in zip(begins, [*ends.tolist(), len(steps) - 1], strict=True)
    ]


def _united(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united


def missed(unseen: Mapping[str, str]) -> dict[str, str]:
    """The unseen sites that are worth a warning. The default watches also ask for classes and features, but a regression has no
    classes and text has no features, which is no problem."""
    return {site: why for site, why in unseen.items() if Site.parse(site).base not in DERIVED}


def by_name(findings: Sequence[PlacedFinding]) -> Mapping[str, list[PlacedFinding]]:
    """The findings by the row they name."""
    found: dict[str, list[PlacedFinding]] = {}
    for finding in findings:
        if finding.row is not None:
            found.setdefault(finding.row, []).append(finding)
    return found
