"""`saturated`: units behind a sigmoid, tanh or softmax that stay at the flat ends of it for every sample.

Looks at units (`activity/…`) at which the nonlinearity has no slope left, for every sample or, in all units together, for nearly all
samples. A layer that begins with most of its values there, and keeps them, counts as well: units may learn to be sure, but in a
healthy net none begin so. Where units were not recorded it uses the mean slope, which follows from mean and rms: 1 - x² for tanh,
4x(1 - x) for sigmoid. A classifier that is sure of itself has a saturated output, and that is what it was trained for, so an output
is judged only while the loss is bad. A layer counts as an output if no layer with weights comes after it. The softmax inside an
attention layer is judged by the size of its queries and keys.

False alarms: gates that are meant to be open or shut.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course, highest, lowest, ratio, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import Array, History
from fitscope.diagnose.network import SIGMOID_LIKE, SOFTMAX_LIKE, TANH_LIKE
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.dead_relu import layer_of

FIRST = 2  #: the last step at which a history shows how the layer began


@rule("saturated", sees="units behind a sigmoid, tanh or softmax that are stuck at its ends")
def saturated(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    seen: set[str] = set()
    judged = False
    for kind in ("activity", "activations"):
        for history in evidence.of(kind):
            layer = layer_of(history)
            name = evidence.network.activation(layer)
            if layer in seen or name not in SIGMOID_LIKE | TANH_LIKE | SOFTMAX_LIKE:
                continue
            judged = True
            # What comes after an answer, such as a logarithm of probabilities, has no weights.
            if layer in evidence.network.answers and not _bad_loss(evidence):
                continue
            history = history.before(evidence.end)
            if kind == "activity":
                seen.add(layer)
            for how, share, most in _shares(kind, name, history, limit):
                late = share[-max(int(limit.captures), len(share) // 3) :]
                if how == "values" and len(share) and history.steps[0] <= FIRST and share[0] >= limit.start:
                    most = min(most, limit.start)
                if len(share) >= limit.captures and lowest(late) >= most:
                    yield _found(layer, name, history, share, most, how)
                    break
    yield from _sure_from_start(evidence, limit)
    yield from _attention(evidence, limit)
    if not judged and not evidence.configuration:
        yield NotJudged("the activations of the layers are not known")


def _sure_from_start(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding]:
    """Hidden softmaxes that pick a single entry from the first step on. The sum of p² is 1 there, and 1/k if all k are alike."""
    network = evidence.network
    for history in evidence.of("activations"):
        layer, history = history.site.layer, history.before(evidence.end)
        softmax = network.kind(layer) == "Softmax" or network.activation(layer) in SOFTMAX_LIKE
        axis = network.get(layer, "axis", -1) if network.kind(layer) == "Softmax" else -1
        if not softmax or layer in network.ends or not isinstance(axis, int) or len(history) < limit.captures:
            continue
        if history.steps[0] > FIRST or not -len(history.shape) < axis < len(history.shape) or axis == 0:
            continue
        entries = history.shape[axis]
        share = entries * history.rms.astype(np.float64) ** 2
        late = share[-max(int(limit.captures), len(share) // 3) :]
        possible = highest(share) <= 1.05  # otherwise the softmax has another axis
        if entries > 1 and possible and share[0] >= limit.values and lowest(late) >= limit.values:
            yield _found(layer, "softmax", history, share, limit.values, "sure")


def _attention(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding]:
    """Finds attention whose scores are so large that its softmax picks one key. That softmax has no site, but queries and keys have:
    the product of their rms is about the standard deviation of the scaled scores."""
    for queries in evidence.of("activations"):
        layer, _, name = queries.site.layer.rpartition("/")
        keys = evidence.history(f"activations/{layer}/key") if layer and name == "query" else None
        if keys is None:
            continue
        mine, other = shared(queries.before(evidence.end), keys.before(evidence.end))
        scores = mine.rms.astype(np.float64) * other.rms
        late = scores[-max(int(limit.captures), len(scores) // 3) :]
        if len(scores) < limit.captures or not lowest(late) >= limit.scores:
            continue
        high = scores >= limit.scores
        since = int(mine.steps[len(high) - int(np.argmin(high[::-1])) if not high.all() else 0])
        yield Finding(
            "saturated",
            "warning",
            site=str(queries.site),
            layer=layer,
            first_step=since,
            last_step=int(mine.steps[-1]),
            message=(
                f"The attention scores of {layer} have a standard deviation of about {float(scores[-1]):.3g}, since step {since:,}: its "
                "softmax picks a single key and passes hardly any gradient."
            ),
            evidence={"scores": float(scores[-1]), "activation": "softmax"},
            cure="Divide the scores by the square root of the key size, use smaller initial weights, or normalise queries and keys.",
            confidence=0.7,
            series=Series.of(f"size of the scores of {layer}", mine.steps, scores),
        )


def _shares(
    kind: str, name: str, history: History, limit: SimpleNamespace
) -> Iterator[tuple[str, Array, float]]:
    """The measures of saturation that a history allows: the kind, the saturated share at each point, and the healthy limit."""
    if kind == "activations":
        yield "slope", 1 - _slope(history, name), 1 - limit.room
        return
    yield "units", ratio(history.zeros, history.count), limit.units
    if name not in SOFTMAX_LIKE:  # with many classes, most are near zero
        yield "values", 1 - history.mean.astype(np.float64), limit.values


def _slope(history: History, activation: str) -> Array:
    """The mean slope of the nonlinearity, 1 in its middle and 0 at its ends."""
    square = history.rms.astype(np.float64) ** 2
    if activation in TANH_LIKE:
        return np.asarray(1 - square)
    if activation in SIGMOID_LIKE:
        return np.asarray(4 * (history.mean - square))
    classes = history.shape[-1] if history.shape else 1
    return np.asarray(1 - classes * square) if classes > 1 else np.ones(len(history))


def _bad_loss(evidence: Evidence) -> bool:
    """Whether the loss has not fallen by a tenth."""
    went = course(evidence.loss)
    return went is not None and went.end > went.start - 0.1 * abs(went.start)


def _found(layer: str, name: str, history: History, share: Array, most: float, how: str) -> Finding:
    high = share >= most
    first = len(share) - int(np.argmin(high[::-1])) if not high.all() else 0
    since = int(history.steps[first])
    if how == "values":
        number = f"{100 * float(share[-1]):.3g} % of the values of {layer} are at an end of their {name}"
    elif how == "sure":
        number = (
            f"the {name} of {layer} gives nearly everything to one entry ({100 * float(share[-1]):.3g} %)"
        )
    elif how == "units":
        number = f"{int(history.zeros[-1]):,} of {int(history.count[-1]):,} units of {layer} sit at an end of their {name} for every sample"
    else:
        number = f"the {name} of {layer} has {100 * (1 - float(share[-1])):.2g} % of its slope left"
    return Finding(
        "saturated",
        "warning",
        site=str(history.site),
        layer=layer,
        first_step=since,
        last_step=int(history.steps[-1]),
        message=f"{number[0].upper()}{number[1:]}, since step {since:,}: hardly any gradient passes.",
        evidence={"share": float(share[-1]), "units": how == "units", "activation": name},
        cure=(
            "Scale the inputs to mean 0 and std 1, use smaller initial weights (Glorot), normalise before the nonlinearity, "
            "or lower the learning rate; in hidden layers use ReLU or GELU."
        ),
        confidence=0.75 if how == "slope" else 0.85,
        series=Series.of(f"saturated share of {layer}", history.steps, share),
    )
