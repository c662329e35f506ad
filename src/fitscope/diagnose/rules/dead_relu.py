"""`dead_relu`: units behind a ReLU that are zero for every sample, and so never learn again.

Looks at units, not zeros: a healthy ReLU layer is zero for most samples at most units, but each unit is active for some samples. Where
units were not recorded (`activity/…`) an output that is zero almost everywhere, at every recorded step, must do.

False alarms: a layer far too wide for its task, which never needs most of its units.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import lowest, ratio
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.network import RELU_LIKE
from fitscope.diagnose.rule import rule

CURE = (
    "Lower the learning rate (one large step can push every unit below zero), use LeakyReLU or GELU, He initialisation, and bias "
    "initial values of zero; normalise the inputs."
)


@rule("dead_relu", sees="units behind a ReLU that are zero for every sample")
def dead_relu(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    seen: set[str] = set()
    judged = False
    for history in evidence.of("activity"):
        layer = layer_of(history)
        if evidence.network.activation(layer) not in RELU_LIKE:
            continue
        seen.add(layer)
        judged = True
        found = _judge(layer, history.before(evidence.end), limit.units, limit.captures, units=True)
        if found is not None:
            yield found
    for history in evidence.of("activations"):
        layer = history.site.layer
        relu = evidence.network.activation(layer) in RELU_LIKE or _looks_like_one(evidence, history)
        if layer in seen or not relu:
            continue
        judged = True
        found = _judge(layer, history.before(evidence.end), limit.zeros, limit.captures, units=False)
        if found is not None:
            yield found
    if not judged and not evidence.configuration:
        yield NotJudged("the activations of the layers are not known")


def _looks_like_one(evidence: Evidence, history: History) -> bool:
    """Whether the layer looks like a ReLU, without a configuration: its output is never negative."""
    return not evidence.configuration and bool(lowest(history.min) >= 0)


def layer_of(history: History) -> str:
    """The layer that an `activity/…` row is about, whichever fact of the site carries it."""
    return history.site.layer or history.site.label


def _judge(layer: str, history: History, most: float, captures: int, *, units: bool) -> Finding | None:
    if len(history) < captures:
        return None
    share = ratio(history.zeros, history.count)
    late = share[-max(int(captures), len(share) // 3) :]
    if not lowest(late) >= most:  # NaN if there are no other values, which is never enough
        return None
    high = share >= most
    first = len(share) - int(np.argmin(high[::-1])) if not high.all() else 0
    now = float(share[-1])
    number = (
        f"{int(history.zeros[-1]):,} of {int(history.count[-1]):,} units of {layer}"
        if units
        else f"{100 * now:.3g} % of the output of {layer}"
    )
    since = int(history.steps[first])
    return Finding(
        "dead_relu",
        "error" if now >= 0.999 else "warning",
        site=str(history.site),
        layer=layer,
        first_step=since,
        last_step=int(history.steps[-1]),
        message=f"{number} {'are' if units else 'is'} zero for every sample since step {since:,}: a unit like that gets no gradient.",
        evidence={"share": now, "units": units, "captures": len(history)},
        cure=CURE,
        confidence=0.9 if units else 0.75,
        series=Series.of(f"dead units of {layer}" if units else f"zeros of {layer}", history.steps, share),
    )
