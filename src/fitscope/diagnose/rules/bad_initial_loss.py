"""`bad_initial_loss`: a first loss far above that of a model that knows nothing.

Sees the loss of the first recorded batch. A classifier that knows nothing has ln(classes), a regression the mean square of the
targets. Far above means that the model starts with strong and wrong opinions: weights too large, inputs not scaled, a sum instead
of a mean, labels that do not fit.

False alarms: a loss with large penalty terms; a model trained for something else before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, SQUARED, OutputHead, only_head


@rule("bad_initial_loss", sees="a first loss far above that of a model that knows nothing")
def bad_initial_loss(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    loss = evidence.loss
    if loss is None or not len(loss) or loss.steps[0] > 2:
        yield NotJudged("the loss of the first step was not recorded")
        return
    head = only_head(evidence)
    if head is None:
        yield NotJudged("the loss is not known, or there are several")
        return
    first = float(loss.value[0])
    expected, why = _expected(evidence, head)
    if expected is None or not math.isfinite(first):
        yield NotJudged(why if expected is None else "the first loss is not finite")
        return
    times, above = (limit.regression, 0.0) if head.loss in SQUARED else (limit.times, limit.above)
    if first > times * expected and first > expected + above:
        yield Finding(
            "bad_initial_loss",
            "warning",
            site="loss",
            layer=head.layer,
            last_step=int(loss.steps[0]),
            message=f"The first loss is {first:.4g}; a model that knows nothing has {expected:.4g} ({why}).",
            evidence={"loss": first, "expected": expected},
            cure=(
                "Scale the inputs, use the default initializers, check that the loss averages over the batch "
                "and that the output fits the loss."
            ),
            confidence=0.7,
            series=Series.from_history(loss, "value"),
        )


def _expected(evidence: Evidence, head: OutputHead) -> tuple[float | None, str]:
    if head.loss in CATEGORICAL:
        if head.units is None or head.units < 2:
            return None, "the number of classes is not known"
        return math.log(head.units), f"ln({head.units})"
    if head.loss in BINARY:
        return math.log(2), "ln(2)"
    if head.loss in SQUARED:
        targets = evidence.history("targets")
        if targets is None or not np.isfinite(targets.rms[0]) or targets.rms[0] == 0:
            return None, "the targets were not recorded"
        return float(targets.rms[0]) ** 2, "the mean square of the targets"
    return None, f"what {head.loss} is for a model that knows nothing is not known"
