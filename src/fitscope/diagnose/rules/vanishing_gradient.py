"""`vanishing_gradient`: layers far from the loss whose gradient is so small that they do not learn.

Looks at the gradient of each layer against that of the layer nearest to the loss, over the same steps, and whether the layer's
updates are as small, too: Adam makes up for a small gradient as long as it is well above its epsilon. If the loss stays at that
of guessing, updates of usual size helped nothing, and the gradient alone decides. A gradient of exactly zero is not vanishing but
cut off (`layer_not_learning`), and NaN is `nonfinite`.

False alarms: a trained network has small gradients everywhere; only the ratio between layers counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

from fitscope.diagnose.curves import median, ratio, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.loss_not_decreasing import nothing_learned
from fitscope.diagnose.setup import number, optimizer


@rule("vanishing_gradient", sees="early layers whose gradient is vanishingly small against the last layers'")
def vanishing_gradient(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    gradients = [h.before(evidence.end) for h in evidence.main_weights("weight_gradients")]
    gradients = [h for h in gradients if len(h)]
    if not gradients:
        yield NotJudged("no weight gradients were recorded")
        return
    layers = list(dict.fromkeys(h.site.layer for h in gradients))
    if len(layers) < limit.layers:
        yield NotJudged(
            f"the model has {len(layers)} layers with weights: too few for a gradient to vanish in"
        )
        return
    last = [h for h in gradients if h.site.layer == layers[-1]][-1]
    starved = []
    for history in gradients:
        mine, other = shared(history, last)
        times = median(ratio(mine.rms, other.rms)) if len(mine) else float("nan")
        if 0 < times <= limit.ratio and median(mine.rms) > 0 and _starved(evidence, history, last, limit):
            starved.append((times, mine, other))
    if not starved:
        return
    times, history, other = min(starved, key=lambda s: s[0])
    guilty = _drop(evidence) or history.site.layer
    affected = list(dict.fromkeys(h.site.layer for _, h, _ in starved))
    yield Finding(
        "vanishing_gradient",
        "warning",
        site=str(history.site),
        layer=guilty,
        first_step=int(history.steps[0]),
        last_step=int(history.steps[-1]),
        message=(
            f"The gradient of {history.site.layer} is {times:.1e} of that of {last.site.layer} (rms {median(history.rms):.1e} against "
            f"{median(other.rms):.1e}): {_some(affected)} hardly learn{'s' if len(affected) == 1 else ''}."
        ),
        evidence={
            "ratio": times,
            "rms": median(history.rms),
            "rms_at_last_layer": median(other.rms),
            "layers": affected,
        },
        cure=(
            "Use ReLU or GELU instead of sigmoid or tanh in hidden layers, He or Glorot initialisation, batch or layer "
            "normalisation, or residual connections; use fewer layers if none of these fits."
        ),
        confidence=0.9,
        series=Series.of(
            f"{history.site} rms by {last.site} rms", history.steps, ratio(history.rms, other.rms)
        ),
    )


def _starved(evidence: Evidence, history: History, last: History, limit: SimpleNamespace) -> bool:
    """Whether the layer's updates are as small as its gradient, or all updates were in vain. Without updates the gradient must do."""
    if nothing_learned(evidence):
        return True
    moved, weight = (evidence.history(f"{kind}/{history.site.path}") for kind in ("updates", "weights"))
    other, other_weight = (evidence.history(f"{kind}/{last.site.path}") for kind in ("updates", "weights"))
    if moved is None or weight is None or other is None or other_weight is None:
        return True
    mine, theirs = median(ratio(moved.rms, weight.rms)), median(ratio(other.rms, other_weight.rms))
    epsilon = number(optimizer(evidence).get("epsilon"))
    below = (
        epsilon is not None and median(history.rms) < epsilon
    )  # then epsilon is most of the divisor of the gradient
    return not (mine > (limit.below if below else limit.update) * theirs)


def _drop(evidence: Evidence) -> str | None:
    """The one layer at which the gradient loses most of its size, if one layer does."""
    histories = [h.before(evidence.end) for h in evidence.of("gradients")]
    sizes = [(h.site.layer, median(h.norm)) for h in histories if len(h)]
    drops = [
        (before / after, layer) for (_, before), (layer, after) in pairwise(sizes) if after > 0 and before > 0
    ]
    if not drops:
        return None
    drops.sort()
    alone = len(drops) == 1 or drops[0][0] < 1e-2 * drops[1][0]
    return drops[0][1] if drops[0][0] < 1e-3 and alone else None


def _some(layers: list[str]) -> str:
    return ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
