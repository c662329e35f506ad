"""`class_collapse`: a classifier that predicts one class for every input.

Looks at the share of the class predicted most often in each recorded batch, against the share of the most common class in the targets.
With rare classes it compares how often they are predicted with how often they occur: a model that learned them predicts them about
as often. With rare classes it is the cause of a loss that does not fall, otherwise a consequence.

False alarms: the first steps of a training; data in which nearly all samples have one class. Neither is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import mean
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
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
        yield NotJudged(f"too few recorded steps ({len(predicted)})")
        return
    late = predicted.max[len(predicted) // 2 :]
    share, usual = float(np.median(late)), mean(wanted.max)
    if usual > limit.wanted:
        collapsed = usual <= limit.imbalance and _overlooked(evidence, predicted, wanted, limit)
    else:
        collapsed = share >= limit.predicted and float(late[-1]) >= limit.predicted
    if collapsed:
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


def _overlooked(evidence: Evidence, predicted: History, wanted: History, limit: SimpleNamespace) -> bool:
    """Whether the model at the end predicts the rare classes, of which there were samples, far less often than they occur."""
    targets = next(evidence.of("targets"), None)
    samples = float(targets.shape[0]) * wanted.seen if targets is not None and targets.shape else 0.0
    rare = 1 - mean(wanted.max)
    late = predicted.max[-max(int(limit.captures), len(predicted) // 3) :]
    return bool(rare * samples >= limit.rare and 1 - mean(late) <= limit.named * rare)
