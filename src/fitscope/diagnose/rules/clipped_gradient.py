"""`clipped_gradient`: clipping that leaves almost nothing of the gradient, at every step.

Looks at the clipping of the optimizer against the gradients that it gets. Clipping is for rare outliers, not for cutting every step to a
hundredth. A common clip (0.1 or more) that cuts huge gradients is listed under their cause: `bad_initial_loss` for those of a start far
off, `exploding_gradient` for those that grow from layer to layer.

False alarms: with Adam the size of all gradients together does not matter, as long as it is well above epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import Array
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import number, optimizer


@rule("clipped_gradient", sees="clipping that cuts every gradient to almost nothing")
def clipped_gradient(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    given = optimizer(evidence)
    if not given:
        yield NotJudged("the optimizer is not known")
        return
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        clip = number(given.get(name))
        if clip is None:
            continue
        steps, sizes = _sizes(evidence, name)
        usual = median(sizes) if len(sizes) else float("nan")
        tiny = clip <= limit.least
        if (np.isfinite(usual) and usual >= limit.times * clip) or (tiny and not usual < clip):
            against = (
                f"; the gradients are about {usual:.3g}, {usual / clip:.3g} times as large"
                if np.isfinite(usual)
                else ""
            )
            yield Finding(
                "clipped_gradient",
                "warning",
                site="weight_gradients",
                first_step=int(steps[0]) if len(steps) else 0,
                last_step=int(steps[-1]) if len(steps) else 0,
                message=f"The optimizer clips every step to {name}={clip:g}{against}.",
                evidence={name: clip, "usual": usual},
                cure="Clip at the size of rare outliers: global_clipnorm=1.0 is usual. Look at weight_gradients to choose it.",
                confidence=0.85,
                series=Series.of("size of the gradients", steps, sizes) if len(steps) else None,
            )


def _sizes(evidence: Evidence, name: str) -> tuple[Array, Array]:
    """The clipped gradients, by step. The norm of all gradients, the largest norm of one, or the largest number."""
    per_step: dict[int, list[float]] = {}
    for history in evidence.of("weight_gradients"):
        history = history.before(evidence.end)
        values = np.maximum(np.abs(history.max), np.abs(history.min)) if name == "clipvalue" else history.norm
        for step, value in zip(history.steps.tolist(), values.tolist(), strict=True):
            per_step.setdefault(step, []).append(value)
    steps = sorted(per_step)
    size = np.linalg.norm if name == "global_clipnorm" else np.max
    return np.array(steps, np.int64), np.array([float(size(per_step[s])) for s in steps], np.float64)
