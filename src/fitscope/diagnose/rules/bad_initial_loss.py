"""`bad_initial_loss`: a first loss far above that of a model that knows nothing.

Looks at the loss of the first recorded batch. A classifier that knows nothing has ln(classes), a regression the mean square of the
targets. Far above means that the model starts with strong and wrong opinions: weights too large, inputs not scaled, a sum instead
of a mean, labels that do not fit. Targets that lie many of their standard deviations away from zero count as well, if the training ends
worse than a model that always predicts their mean. If the signal grows from layer to layer in the first step, it names the layers.
A bias of the output that was set to the odds of the classes, and makes the loss worse than a bias of zero would, has the wrong sign or
value. A start that is a little high, and that the training overcame, is a note.

False alarms: a loss with large penalty terms; a model trained for something else before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course, mean, variance
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, SQUARED, OutputHead, ignorance, only_head


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
    away = _targets_away(evidence, head, first, limit)
    if away is not None:
        yield away
        return
    prior = _wrong_prior(evidence, head, first, limit)
    if prior is not None:
        yield prior
        return
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


def _targets_away(
    evidence: Evidence, head: OutputHead, first: float, limit: SimpleNamespace
) -> Finding | None:
    """Finds targets far from zero, where outputs begin, that the training never reached."""
    targets, loss, went = next(evidence.of("targets"), None), evidence.loss, course(evidence.loss)
    if targets is None or loss is None or went is None or head.loss not in SQUARED | {"MeanAbsoluteError"}:
        return None
    middle = mean(targets.mean)
    spread = (mean(targets.std.astype(np.float64) ** 2) + variance(targets.mean)) ** 0.5
    # The mean absolute distance is at most the standard deviation.
    zero, constant = (middle**2, spread**2) if head.loss in SQUARED else (abs(middle), spread)
    if not (abs(middle) >= limit.offset * spread > 0 and first >= 0.5 * zero and went.end > constant):
        return None
    return Finding(
        "bad_initial_loss",
        "warning",
        site="loss",
        layer=head.layer,
        last_step=int(loss.steps[0]),
        message=(
            f"The targets lie around {middle:.4g} (standard deviation {spread:.3g}), and the outputs begin near zero: the first loss is "
            f"{first:.4g}, and at the end it is {went.end:.4g}; always predicting the mean gives "
            f"{'' if head.loss in SQUARED else 'at most '}{constant:.4g}."
        ),
        evidence={"loss": first, "expected": constant, "targets_mean": middle, "targets_std": spread},
        cure="Standardise the targets, or let the bias of the last layer begin at their mean.",
        confidence=0.8,
        series=Series.from_history(loss, "value"),
    )


def _wrong_prior(
    evidence: Evidence, head: OutputHead, first: float, limit: SimpleNamespace
) -> Finding | None:
    """Finds an output bias, set on purpose, that alone makes the loss far higher than a bias of zero would."""
    loss, targets = evidence.loss, next(evidence.of("targets"), None)
    bias = evidence.history(f"weights/{head.layer}/bias")
    if head.loss not in BINARY or head.units != 1 or bias is None or targets is None or loss is None:
        return None
    if bias.steps[0] > 2 or not np.isfinite(bias.mean[0]) or not 0 <= mean(targets.mean) <= 1:
        return None
    start, share = float(bias.mean[0]), mean(targets.mean)
    alone = float(np.logaddexp(0, start)) - share * start
    if not (alone > limit.prior * math.log(2) and first > 0.8 * alone):
        return None
    right = math.log(share / (1 - share)) if 0 < share < 1 else 0.0
    return Finding(
        "bad_initial_loss",
        "warning",
        site="loss",
        layer=head.layer,
        last_step=int(loss.steps[0]),
        message=(
            f"The bias of {head.layer} starts at {start:.3g}, and the first loss is {first:.4g}; with a bias of zero it is about "
            f"{math.log(2):.3g}, and {100 * share:.3g} % of the targets are positive, for which it would be {right:.3g}."
        ),
        evidence={"loss": first, "expected": math.log(2), "bias": start, "prior": right},
        cure="Start the bias at log(p / (1 - p)), where p is the share of the positive class, or leave it at zero.",
        confidence=0.8,
        series=Series.from_history(loss, "value"),
    )


def _harmless(
    evidence: Evidence, first: float, expected: float, limit: SimpleNamespace, *, summed: bool
) -> bool:
    """Whether the training overcame it: the first loss is a little high, or high because it is a sum, and then fell."""
    went = course(evidence.loss)
    if went is None:
        return False
    if summed:
        return went.end < 0.5 * first
    return first < min(limit.high * expected, expected + limit.nats) and went.end < 0.5 * expected


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
