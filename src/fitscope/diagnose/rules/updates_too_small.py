"""`updates_too_small`: steps that are too small to get anywhere.

Looks at the rms of the update ÷ the rms of the weight, of every matrix and filter, at every recorded step. It is reported only
when all of them are small all the time: at the end of a schedule, or of a training, they ought to be. Updates of exactly zero are
told apart from small ones: where all gradients are zero, no learning rate helps. Where weights differ from one recorded step to the next
all the same, other steps moved them, as with gradient accumulation, and nothing is judged.

False alarms: fine-tuning with a tiny learning rate. When the loss falls all the same this is a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course, highest, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.updates_too_large import update_ratios


@rule("updates_too_small", sees="updates too small, in all layers, to change anything")
def updates_too_small(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    ratios = [
        (site, steps, times) for site, steps, times in update_ratios(evidence) if len(times) >= limit.captures
    ]
    if not ratios:
        yield NotJudged("too few recorded steps with updates and weights")
        return
    largest = max(highest(times) if np.isfinite(times).any() else 0.0 for _, _, times in ratios)
    if largest > limit.ratio:
        return
    if largest == 0 and _moves_between(evidence):
        yield NotJudged(
            "the weights move at other steps than the recorded ones, as with gradient accumulation"
        )
        return
    went = course(evidence.loss)
    falls = went is not None and went.start - went.end > max(limit.progress * abs(went.start), 2 * went.noise)
    site, steps, times = max(ratios, key=lambda r: median(r[2]) if np.isfinite(r[2]).any() else 0.0)
    rate = evidence.learning_rate
    usual = median(times) if np.isfinite(times).any() else 0.0
    message, cure = _words(evidence, largest, rate)
    yield Finding(
        "updates_too_small",
        "note" if falls else "warning",
        site=site.replace("weights/", "updates/", 1),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        message=message,
        evidence={"largest_ratio": largest, "usual_ratio": usual, "learning_rate": rate},
        cure=cure,
        confidence=0.85,
        series=Series.of("update by weight, largest layer", steps, times),
    )


def _moves_between(evidence: Evidence) -> bool:
    """Whether weights change from one recorded step to the next, though no recorded step moves them."""
    for weight in evidence.main_weights("weights"):
        size = weight.before(evidence.end).rms.astype(np.float64)
        if len(size) > 1 and highest(np.abs(np.diff(size))) > 1e-6 * highest(size):
            return True
    return False


def _words(evidence: Evidence, largest: float, rate: float | None) -> tuple[str, str]:
    """The message and the cure: updates that are small, and two kinds that are exactly zero."""
    if largest > 0:
        return (
            f"No step changes any layer by more than {largest:.1e} of its weights (1e-3 is usual): the training hardly moves.",
            (
                f"Raise the learning rate{f' from {rate:g}' if rate else ''}; check that a schedule, a clip or a loss weight "
                "does not make it tiny."
            ),
        )
    gradients = list(evidence.of("weight_gradients"))
    if gradients and not any(highest(history.rms) > 0 for history in gradients):
        return (
            "All gradients are exactly zero at every recorded step, so no weight moves.",
            (
                "A larger learning rate does not help. Look for what cuts the gradient off: an output that is constant (a softmax over "
                "one unit) or saturated, dead units, stop_gradient, argmax or rounding, a loss that does not depend on the model."
            ),
        )
    there = ", though there are gradients" if gradients else ""
    return (
        f"No step changes any weight at all{there}.",
        (
            "Check that the learning rate is not zero, that the optimizer is given the gradients of these weights, and that the type of "
            "the weights does not round the updates away."
        ),
    )
