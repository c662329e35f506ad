"""`loss_diverging`: a loss that ends far above where it began, or far above its best, and does not come back.

Looks at levels (medians of tenths of the training), so that single batches do not count. A loss that falls below zero without
bound diverges as well: its sign, or that of a penalty, is wrong. A loss that begins below zero must end above it: to come nearer to zero is
not to grow.

False alarms: losses that are meant to rise, as that of a GAN's generator; with several optimizers nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import Course, course
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.loss_not_decreasing import several_losses
from fitscope.diagnose.setup import BINARY, CATEGORICAL, REGRESSION, only_head


@rule("loss_diverging", sees="a loss that rises and does not come back")
def loss_diverging(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    loss, why = evidence.loss, several_losses(evidence)
    if loss is not None and not why and evidence.end is not None:
        found = _at_once(loss.before(evidence.end), limit)
        if found is not None:
            yield found
            return
    went = course(loss.before(evidence.end) if loss is not None else None, int(limit.losses))
    if why or went is None or loss is None:
        yield NotJudged(why or ("too few recorded losses" if loss is not None else "no loss was recorded"))
        return
    wide = max(3 * went.noise, 1e-12)
    first = float(np.median(went.values[:3]))  # the first three losses: a tenth may already be rising
    start = min(first, went.start)
    rises = went.end - start > (limit.rise - 1) * abs(start) and went.end - start > wide
    if start < 0:  # a loss may end at zero, such as that of a policy
        rises = rises and went.end > max(wide, 0.1 * abs(start))
    fallen = start - went.best
    late = went.levels[-1] > went.levels[len(went.levels) // 2 :].min()
    lost = (
        fallen > wide
        and went.end - went.best > (limit.from_best - 1) * max(abs(went.best), 0.25 * fallen)
        and went.end - went.best > wide
        and late
    )
    if not (rises or lost):
        found = _below(evidence, loss, went, limit)
        if found is not None:
            yield found
        return
    since = _leaves(went, wide)
    serious = went.end > limit.error * max(abs(start), 1e-12)
    yield Finding(
        "loss_diverging",
        "error" if serious else "warning",
        site="loss",
        first_step=since,
        last_step=int(went.steps[-1]),
        message=(
            f"The loss diverges: it began at {start:.4g}, was {min(went.best, start):.4g} at best, rises from about "
            f"step {since:,} on and is {went.end:.4g} at the end."
        ),
        evidence={"start": start, "best": went.best, "end": went.end, "noise": went.noise},
        cure="Lower the learning rate (try a tenth), warm it up, clip gradients; check the sign of the loss.",
        confidence=0.9 if serious else 0.8,
        series=Series.from_history(loss, "value"),
    )


def _leaves(went: Course, wide: float) -> int:
    """The step at which the loss leaves its best level for good."""
    # If a loss grows without bound, even a twentieth of it is far above all values before.
    near = went.values <= went.best + min(
        max(wide, 0.05 * (went.end - went.best)), 2 * max(abs(went.best), abs(went.start))
    )
    last = len(near) - 1 - int(np.argmax(near[::-1])) if near.any() else 0
    return int(went.steps[min(last + 1, len(near) - 1)])


def _below(evidence: Evidence, loss: History, went: Course, limit: SimpleNamespace) -> Finding | None:
    """Finds a loss that falls further and further below zero, or below zero at all if its kind is never negative."""
    head = only_head(evidence)
    bounded = head is not None and head.loss in CATEGORICAL | BINARY | REGRESSION
    size = max(abs(went.start), 1e-12)
    middle = float(went.levels[len(went.levels) // 2])
    falling = middle - went.end > 0.4 * (went.start - went.end)
    if not (went.end < -size if bounded else went.end < -limit.below * max(size, 1.0)) or not falling:
        return None
    why = f", though {head.loss} is never negative" if bounded and head is not None else ""
    below = went.values < min(0.0, went.start - 3 * went.noise)
    return Finding(
        "loss_diverging",
        "warning",
        site="loss",
        first_step=int(went.steps[np.argmax(below)]),
        last_step=int(went.steps[-1]),
        message=f"The loss falls without bound: from {went.start:.4g} to {went.end:.4g}, and still falling{why}.",
        evidence={"start": went.start, "end": went.end, "negative": True},
        cure="Check the sign of the loss and of each penalty: something rewards weights or outputs for growing.",
        confidence=0.9 if bounded else 0.7,
        series=Series.from_history(loss, "value"),
    )


def _at_once(loss: History, limit: SimpleNamespace) -> Finding | None:
    """Finds a loss that grew many-fold in the few steps before it became NaN or Inf."""
    finite = np.isfinite(loss.value)
    steps, values = loss.steps[finite], loss.value[finite].astype(np.float64)
    if (
        len(values) < 2
        or not values.max() > limit.at_once * max(abs(float(values[0])), 1e-12)
        or values.max() != values[-3:].max()
    ):
        return None
    below = np.flatnonzero(values <= 10 * max(abs(float(values[0])), 1e-12))
    calm = int(below[-1]) if len(below) else 0  # the last step at which it had its usual size
    return Finding(
        "loss_diverging",
        "error",
        site="loss",
        first_step=int(steps[calm]),
        last_step=int(loss.steps[-1]),
        message=(
            f"The loss grew from {values[calm]:.4g} to {values.max():.4g} between steps {int(steps[calm]):,} and {int(steps[-1]):,}, "
            "and is not finite after that."
        ),
        evidence={"start": float(values[0]), "end": float(values.max()), "overflows": True},
        cure="Lower the learning rate (try a hundredth), check that the loss is a mean and not a sum, clip gradients.",
        confidence=0.9,
        series=Series.from_history(loss, "value"),
    )
