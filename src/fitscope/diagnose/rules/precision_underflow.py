"""`precision_underflow`: numbers too small for their dtype.

Looks at gradients in float16 of which most are below its normal range, where they lose digits and then become zero. And at weights in
float16 or bfloat16 whose updates are rounded away: the gradient is not zero, and the weight stays.

False alarms: loss scaling keeps gradients in range, and mixed precision keeps weights in float32; neither is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from fitscope.diagnose.curves import median, ratio, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule

_HALF = ("float16", "bfloat16")


@rule("precision_underflow", sees="gradients or updates too small for their 16-bit type")
def precision_underflow(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    types = {h.dtype for kind in ("activations", "gradients", "weights") for h in evidence.of(kind)}
    policy = str(evidence.configuration.get("dtype_policy") or "")
    if not types & {*_HALF} and "16" not in policy:
        if not types:
            yield NotJudged("no types were recorded")
        return
    found = list(_gradients(evidence, limit)) or list(_updates(evidence, limit))
    yield from found[:1]


def _gradients(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding]:
    worst = None
    for history in evidence.of("gradients"):
        history = history.before(evidence.end)
        if history.dtype != "float16" or len(history) < limit.captures:
            continue
        share = ratio(history.small, history.count - history.zeros)
        all_zero = median(ratio(history.zeros, history.count))
        lost = all_zero if all_zero >= 0.999 else median(share)
        if lost >= limit.share and (worst is None or lost > worst[0]):
            worst = (lost, history, share)
    if worst is None:
        return
    lost, history, share = worst
    scaled = evidence.setting("optimizer", "loss_scale") is not None or "loss_scale" in evidence.histories
    yield Finding(
        "precision_underflow",
        "note" if scaled else "warning",
        site=str(history.site),
        layer=history.site.layer,
        first_step=int(history.steps[0]),
        last_step=int(history.steps[-1]),
        message=(
            f"{100 * lost:.3g} % of the gradients at {history.site.layer} are below 6e-5, "
            "where float16 loses digits and then everything."
        ),
        evidence={"share": lost, "dtype": "float16", "loss_scale": scaled},
        cure="Use loss scaling (keras.optimizers.LossScaleOptimizer; compile() adds one under mixed_float16), or bfloat16.",
        confidence=0.85,
        series=Series.of(f"share of {history.site} below float16's normal range", history.steps, share),
    )


def _updates(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding]:
    for update in evidence.main_weights("updates"):
        weight = evidence.history(f"weights/{update.site.path}")
        gradient = evidence.history(f"weight_gradients/{update.site.path}")
        if weight is None or weight.dtype not in _HALF or gradient is None or len(update) < limit.captures:
            continue
        moved, pushed = shared(update.before(evidence.end), gradient.before(evidence.end))
        stuck = median(ratio(moved.zeros, moved.count)) if len(moved) else 0.0
        asked = 1 - median(ratio(pushed.zeros, pushed.count)) if len(pushed) else 0.0
        if stuck >= limit.lost and asked > 1 - limit.lost and stuck > 1 - asked + 0.2:
            yield Finding(
                "precision_underflow",
                "warning",
                site=str(update.site),
                layer=update.site.layer,
                first_step=int(update.steps[0]),
                last_step=int(update.steps[-1]),
                message=(
                    f"{100 * stuck:.3g} % of the weights of {update.site.layer} do not move although they have a "
                    f"gradient: {weight.dtype} rounds the update away."
                ),
                evidence={"stuck": stuck, "dtype": weight.dtype},
                cure="Keep weights in float32: use the policy mixed_bfloat16 or mixed_float16 instead of bfloat16 or float16.",
                confidence=0.85,
                series=Series.of(f"zeros of {update.site}", update.steps, ratio(update.zeros, update.count)),
            )
