"""`constant_or_duplicate_features`: input columns that are constant, or equal to another.

Looks at the standard deviation of each feature over all samples so far, and how many features equal another one.

False alarms: the border pixels of images and rare one-hot columns are constant by nature. With many features, or inputs that are mostly
zero, this is a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule


@rule("constant_or_duplicate_features", sees="input columns that are constant, or copies of another")
def constant_or_duplicate_features(
    evidence: Evidence, limit: SimpleNamespace
) -> Iterator[Finding | NotJudged]:
    spread = evidence.history("features/inputs")
    if spread is None or len(spread) < limit.captures:
        yield NotJudged(
            "features of the inputs were not recorded" if spread is None else "too few recorded steps"
        )
        return
    copies = evidence.history("features/duplicates")
    features, constant = int(spread.count[-1]), int(spread.zeros[-1])
    same = int(copies.value[-1]) if copies is not None and len(copies) else 0
    if not constant and not same:
        return
    inputs = next(evidence.of("inputs"), None)
    sparse = inputs is not None and float(inputs.zeros[-1]) > 0.5 * float(inputs.count[-1])
    telling = (features <= limit.few and not sparse) or (constant >= limit.share * features and not sparse)
    parts = [f"{constant:,} of {features:,} input features never change" if constant else ""]
    parts.append(f"{same:,} are the same as another one" if same else "")
    yield Finding(
        "constant_or_duplicate_features",
        "warning" if telling else "note",
        site="features/inputs" if constant else "features/duplicates",
        first_step=int(spread.steps[0]),
        last_step=int(spread.steps[-1]),
        message=" and ".join(filter(None, parts)).capitalize() + ", in all samples seen so far.",
        evidence={"features": features, "constant": constant, "duplicates": same},
        cure="Check how the columns are made; a join or a scaling may have gone wrong. Drop them if they are meant to be so.",
        confidence=0.9 if telling else 0.5,
        series=Series.from_history(spread, "zeros"),
    )
