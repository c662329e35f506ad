"""`class_collapse`: a classifier that predicts one class for every input.

Sees the share of the class predicted most often in each recorded batch, against the share of the most common class in the targets.
With rare classes it is why the loss stays where it is; otherwise it is a consequence of a loss that does not fall.

False alarms: the first steps of a training; data of which nearly all samples are of one class. Neither is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import mean
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule


@rule("class_collapse", sees="a classifier that predicts the same class for every sample")
def class_collapse(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    predicted = evidence.history("classes/predictions")
    wanted = evidence.history("classes/targets")
    if predicted is None or wanted is None:
        yield NotJudged("classes of targets and predictions were not recorded")
        return
    predicted = predicted.before(evidence.end)
    if len(predicted) < limit.captures or predicted.steps[-1] - predicted.steps[0] < limit.steps:
        yield NotJudged(f"{len(predicted)} recorded steps: too few to judge")
        return
    late = predicted.max[len(predicted) // 2 :]
    share, usual = float(np.median(late)), mean(wanted.max)
    # With few samples of the other classes it must never name one of them, and must have seen some.
    targets = next(evidence.of("targets"), None)
    samples = float(targets.shape[0]) * wanted.seen if targets is not None and targets.shape else 0.0
    rare = (1 - usual) * samples >= limit.rare and float(late.min()) >= 0.999 and usual <= limit.imbalance
    if share >= limit.predicted and float(late[-1]) >= limit.predicted and (usual <= limit.wanted or rare):
        outputs = evidence.network.outputs
        yield Finding(
            "class_collapse",
            "warning",
            site="classes/predictions",
            layer=outputs[0] if len(outputs) == 1 else None,
            first_step=int(predicted.steps[len(predicted) // 2]),
            last_step=int(predicted.steps[-1]),
            message=(
                f"The model predicts one class for {100 * share:.3g} % of the samples; "
                f"the most common class has {100 * usual:.3g} % of the targets."
            ),
            evidence={"predicted": share, "wanted": usual},
            cure=(
                "Check that the loss fits the output and the labels their inputs; lower the learning rate; "
                "with rare classes use class_weight or balanced batches."
            ),
            confidence=0.8,
            series=Series.from_history(predicted, "max"),
        )
