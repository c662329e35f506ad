"""`bad_initial_loss`: a first loss far above that of a model that knows nothing.

Sees the loss of the first recorded batch. A classifier that knows nothing has ln(classes), a regression the mean square of the
targets. Far above means that the model starts with strong and wrong opinions: weights too large, inputs not scaled, a sum instead
of a mean, labels that do not fit. If the signal grows from layer to layer in the first step, it names the layers.

False alarms: a loss with large penalty terms; a model trained for something else before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

from fitscope.diagnose.curves import course
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import SQUARED, ignorance, only_head


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
    expected, why = ignorance(evidence, head)
    if expected is None or not math.isfinite(first):
        yield NotJudged(why if expected is None else "the first loss is not finite")
        return
    times, above = (limit.regression, 0.0) if head.loss in SQUARED else (limit.times, limit.above)
    if first > times * expected and first > expected + above:
        grown = _grown(evidence, limit.signal)
        summed = _summed(evidence)
        yield Finding(
            "bad_initial_loss",
            "note" if _harmless(evidence, first, expected, limit, summed=bool(summed)) else "warning",
            site="loss",
            layer=head.layer,
            last_step=int(loss.steps[0]),
            message=f"The first loss is {first:.4g}; a model that knows nothing has {expected:.4g} ({why}).{grown}{summed}",
            evidence={"loss": first, "expected": expected, **({"initializer": "too large"} if grown else {})},
            cure=(
                "Scale the inputs, use the default initializers, check that the loss averages over the batch "
                "and that the output fits the loss."
            ),
            confidence=0.7,
            series=Series.from_history(loss, "value"),
        )


def _harmless(
    evidence: Evidence, first: float, expected: float, limit: SimpleNamespace, *, summed: bool
) -> bool:
    """Whether the training got over it: a start that is a little high, or high because it is a sum, and a loss that then fell."""
    went = course(evidence.loss)
    if went is None:
        return False
    if summed:
        return went.end < 0.5 * first
    return first < limit.high * expected and went.end < 0.5 * expected


def _summed(evidence: Evidence) -> str:
    """Whether the loss is a sum over the batch: then so are the gradients, and the learning rate must make up for it."""
    losses = evidence.configuration.get("losses") or ()
    if [each.get("reduction") for each in losses] != ["sum"]:
        return ""
    return ' The loss is summed over the batch (reduction="sum"), and so are the gradients.'


def _grown(evidence: Evidence, most: float) -> str:
    """Whether the signal grows on its way through the layers, before any update: their initial weights are too large."""
    start = [
        (h.site.layer, float(h.rms[0]))
        for h in evidence.of("activations")
        if h.rms[0] > 0 and h.steps[0] <= 2
    ]
    if len(start) < 3:
        return ""
    (first, low), (last, high) = start[0], max(start, key=lambda one: one[1])
    if not high >= most * low:
        return ""
    return f" The signal grows {high / low:.3g}-fold from {first} to {last}: the initial weights of these layers are too large."
