"""`exploding_weights`: weights that grow without bound.

Looks at the rms of a matrix or filter against its own start, and whether it is still growing at the end. Weights that started near
zero may grow as they like. If a loss that cannot be negative falls far below zero, less growth is enough.

False alarms: very long trainings without weight decay in front of a normalisation, where the size of weights has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, REGRESSION, only_head


@rule("exploding_weights", sees="weights that grow without bound")
def exploding_weights(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    worst = None
    judged = False
    rewarded = _rewarded(evidence)
    least = limit.rewarded if rewarded else limit.growth
    for history in evidence.main_weights("weights"):
        history = history.before(evidence.end)
        if len(history) < limit.captures:
            continue
        judged = True
        start, end = float(history.rms[0]), float(history.rms[-1])
        middle = float(history.rms[len(history) // 2])
        if start < limit.least or not np.isfinite(end) or start <= 0:
            continue
        grown = end / start
        if (
            grown >= least
            and (rewarded or end >= limit.size)
            and end >= limit.still * middle
            and (worst is None or grown > worst[0])
        ):
            worst = (grown, start, end, history)
    if not judged:
        yield NotJudged("too few recorded steps with weights")
    if worst is None:
        return
    grown, start, end, history = worst
    layer = history.site.layer
    why = ", while the loss falls far below zero: something rewards large weights" if rewarded else ""
    half = history.rms >= least**0.5 * start
    yield Finding(
        "exploding_weights",
        "warning",
        site=str(history.site),
        layer=layer,
        first_step=int(history.steps[np.argmax(half)]),
        last_step=int(history.steps[-1]),
        message=f"The weights of {layer} grew {grown:.3g}-fold (rms {start:.3g} to {end:.3g}) and are still growing{why}.",
        evidence={"growth": grown, "start": start, "end": end},
        cure="Lower the learning rate, add weight decay or a max-norm constraint; check the sign of regularisation terms and of the loss.",
        confidence=0.85,
        series=Series.from_history(history, "rms"),
    )


def _rewarded(evidence: Evidence) -> bool:
    """Whether a loss that is never negative became negative: then a penalty has the wrong sign."""
    head, went = only_head(evidence), course(evidence.loss)
    bounded = head is not None and head.loss in CATEGORICAL | BINARY | REGRESSION
    return bounded and went is not None and went.end < -abs(went.start)
