"""`exploding_gradient`: gradients that grow from layer to layer on their way back, or from one step to the next.

Looks at the norm of the gradient at a layer against the layer nearest to the loss, and against the layer's own history. Both must be
far out: gradients of a healthy deep network differ tenfold, and one batch may have a gradient ten times the usual. If the gradient
grows across one layer, as across a recurrent one, that layer is named; otherwise the layer at which it is largest.

False alarms: a regression on large targets has large gradients everywhere; only ratios count, so it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import highest, median, ratio, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule

CURE = (
    "Clip gradients (global_clipnorm=1.0), lower the learning rate, use an initializer that fits the activation, or add "
    "normalisation or residual connections. In a recurrent layer: an orthogonal recurrent initializer."
)


@rule(
    "exploding_gradient", sees="gradients that grow many-fold back through the layers, or from step to step"
)
def exploding_gradient(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    histories = [h.before(evidence.end) for h in evidence.of("gradients")]
    weights = [h.before(evidence.end) for h in evidence.main_weights("weight_gradients")]
    if not any(len(h) for h in (*histories, *weights)):
        yield NotJudged("no gradients were recorded")
        return
    found = _in_depth(histories, limit) or _in_depth(weights, limit)
    if found is not None:
        found = found.but(layer=_amplifier(histories, limit) or found.layer)
    late = None if found is not None else _in_time(weights or histories, limit)
    if late is not None and _learns(evidence.loss, late.first_step):
        late = late.but(severity="note", confidence=0.3)
    found = found or late
    if found is not None:
        yield found


def _learns(loss: History | None, since: int) -> bool:
    """Whether the loss is lower from this step on, and never above its earlier level: the gradients grew because the model learns."""
    if loss is None:
        return False
    before, after = loss.value[loss.steps < since], loss.value[loss.steps >= since]
    if len(before) < 3 or len(after) < 10:
        return False
    return median(after) < 0.9 * median(before) and highest(after) <= highest(before)


def _in_depth(histories: list[History], limit: SimpleNamespace) -> Finding | None:
    known = [h for h in histories if len(h) and np.isfinite(h.norm).any()]
    if len(known) < 3:
        return None
    last = known[-1]
    worst: tuple[float, History, np.ndarray] | None = None
    for history in known[:-1]:
        mine, other = shared(history, last)
        if len(mine):
            times = ratio(mine.norm, other.norm)
            if worst is None or median(times) > worst[0]:
                worst = (median(times), mine, times)
    if worst is None or not worst[0] >= limit.depth:
        return None
    grown, history, curve = worst
    return Finding(
        "exploding_gradient",
        "warning",
        site=str(history.site),
        layer=history.site.layer,
        first_step=int(history.steps[np.argmax(curve >= limit.depth)]),
        last_step=int(history.steps[-1]),
        message=(
            f"The gradient at {history.site.layer} is {grown:.3g} times as large as at {last.site.layer}, the layer nearest to "
            f"the loss (median of {len(history)} recorded steps)."
        ),
        evidence={"times": grown, "norm": median(history.norm), "norm_at_last_layer": median(last.norm)},
        cure=CURE,
        confidence=0.85,
        series=Series.of(f"norm of {history.site} by that of {last.site}", history.steps, curve),
    )


def _amplifier(histories: list[History], limit: SimpleNamespace) -> str | None:
    """The layer across which the gradient grows, if one layer does most of it. The layer that takes an output makes its gradient."""
    sizes = [(h.site.layer, median(h.norm)) for h in histories if len(h)]
    rises = sorted(
        (before / after, layer) for (_, before), (layer, after) in pairwise(sizes) if after > 0 and before > 0
    )
    if not rises or not rises[-1][0] >= limit.depth**0.5:
        return None
    alone = len(rises) == 1 or rises[-1][0] >= limit.alone * rises[-2][0]
    return rises[-1][1] if alone else None


def _in_time(histories: list[History], limit: SimpleNamespace) -> Finding | None:
    worst: tuple[int, float, History] | None = None
    for history in histories:
        peak = history.peak.astype(np.float64)
        if len(peak) < 6:
            continue
        early = highest(peak[: max(3, len(peak) // 10)])  # NaN if there are no other values
        for i in 5 + np.flatnonzero(peak[5:] >= limit.peak * early):
            usual = median(history.rms[:i])
            if usual > 0 and peak[i] >= limit.growth * usual:
                grown = float(peak[i:].max() / usual)
                stays = median(peak[i:]) >= limit.peak * usual or i >= len(peak) - 2
                if stays and (worst is None or int(history.steps[i]) < worst[0]):
                    worst = (int(history.steps[i]), grown, history)
                break
    if worst is None:
        return None
    step, times, history = worst
    return Finding(
        "exploding_gradient",
        "warning",
        site=str(history.site),
        layer=history.site.layer,
        first_step=step,
        last_step=int(history.steps[-1]),
        message=f"The gradient of {history.site.layer} grew to {times:.3g} times its usual size, from step {step:,} on.",
        evidence={"times": times, "usual_rms": median(history.rms[history.steps < step])},
        cure=CURE,
        confidence=0.8,
        series=Series.from_history(history, "peak"),
    )
