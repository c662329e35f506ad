"""`layer_not_learning`: a layer whose weights do not move while others do.

Looks at four things: trainable weights whose gradient or update is exactly zero at every recorded step; hidden layers that start
constant, whose units all get the same gradient and stay copies of one another; layers that are not trainable; and layers that a
lambda calls without the model knowing them.

False alarms: a layer frozen on purpose looks the same as one frozen by mistake, so that is a note as long as the others learn;
`fs.expect("frozen base", layers="base*")` silences it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.network import RELU_LIKE
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.loss_not_decreasing import nothing_learned

_CONSTANT = ("Zeros", "Ones", "Constant")
_ADAPTED = ("Normalization",)  #: layers whose weights are statistics of the data, which no step moves


@rule("layer_not_learning", sees="a layer whose weights stay as they are while others move")
def layer_not_learning(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    constant = list(_constant(evidence))
    yield from constant
    yield from _frozen(evidence)
    yield from _untracked(evidence)
    still: dict[str, tuple[str, History]] = {}
    moving: set[tuple[str, str]] = set()
    for kind in ("weight_gradients", "updates"):
        by_layer: dict[str, list[History]] = {}
        for history in evidence.of(kind):
            history = history.before(evidence.end)
            if len(history) >= limit.captures:
                by_layer.setdefault(history.site.layer, []).append(history)
        for layer, histories in by_layer.items():
            if all(_zero(history) for history in histories):
                still.setdefault(layer, (kind, histories[0]))
            else:
                moving.add((kind, layer))
    if not still and not moving:
        yield NotJudged("too few recorded steps with weight gradients or updates")
        return
    if not any(kind == "updates" for kind, _ in moving) and any(
        kind == "updates" for kind, _ in still.values()
    ):
        return  # nothing moves at all: the optimizer is the cause
    named = {finding.layer for finding in constant}
    for layer, (kind, history) in still.items():
        learns = (
            evidence.network.get(layer, "trainable", True) and evidence.network.kind(layer) not in _ADAPTED
        )
        if layer not in named and learns:
            arrives = ("weight_gradients", layer) in moving
            yield _still(layer, kind, history, arrives=arrives, zero=_weights_are_zero(evidence, layer))


def _untracked(evidence: Evidence) -> Iterator[Finding]:
    """Finds layers that the function of a layer calls and the model does not know: no optimizer gets their weights."""
    for layer, about in evidence.network.layers.items():
        for inner in about.get("untracked") or ():
            yield Finding(
                "layer_not_learning",
                "warning",
                layer=layer,
                last_step=evidence.last_step or 0,
                message=f"{layer} calls {inner} from a function: the model does not know its weights, so they are never trained.",
                evidence={"untracked": inner},
                cure=f"Call {inner} outside of the function, or write a layer class that holds it as an attribute.",
                confidence=0.9,
            )


def _zero(history: History) -> bool:
    return bool(np.all(history.peak == 0) and np.all(history.nans + history.infs == 0))


def _weights_are_zero(evidence: Evidence, layer: str) -> bool:
    """Whether every matrix of the layer is zero from the first step on, as a zero initializer leaves it."""
    weights = [h for h in evidence.main_weights("weights") if h.site.layer == layer]
    return bool(weights) and all(_zero(history) for history in weights)


def _still(layer: str, kind: str, history: History, *, arrives: bool, zero: bool) -> Finding:
    what = "gradient" if kind == "weight_gradients" else "update"
    why = ": its weights start at zero, and so does what it multiplies them with" if zero else ""
    cure = "Use a random initializer (the default is Glorot uniform); zeros are for biases." if zero else ""
    cure = cure or (
        f"Check that the loss depends on {layer}: a stop_gradient, an argmax or rounding, a detached branch, or an output that "
        "is not used cuts the gradient off."
        if what == "gradient"
        else f"The gradient arrives but the optimizer does not move {layer}: it was built with other variables, or the layer is excluded."
        if arrives
        else f"Either the loss does not depend on {layer}, because an output is not used or a branch is cut off; or the optimizer was "
        "built with other variables, or excludes the layer. fs.weight_gradients() tells them apart."
    )
    return Finding(
        "layer_not_learning",
        "warning",
        site=str(history.site),
        layer=layer,
        first_step=int(history.steps[0]),
        last_step=int(history.steps[-1]),
        message=f"The {what} of {layer} is exactly zero at all {history.seen:,} recorded steps, while other layers learn{why}.",
        evidence={"kind": kind, "captures": history.seen, **({"initializer": "Zeros"} if zero else {})},
        cure=cure,
        confidence=0.9,
        series=Series.from_history(history, "rms"),
    )


def _constant(evidence: Evidence) -> Iterator[Finding]:
    """Hidden layers whose units start as copies of one another."""
    network = evidence.network
    given = {name: _initializer(network.get(name, "kernel_initializer")) for name in network.order}
    initialized = frozenset(name for name, (initializer, _) in given.items() if initializer)
    for layer, (name, value) in given.items():
        if (
            name not in _CONSTANT
            or layer in network.ends
            or int(network.get(layer, "units", network.get(layer, "filters", 2)) or 2) < 2
        ):
            continue
        after = network.consumers(layer, initialized)
        copied = any(given[n][0] in _CONSTANT for n in after)
        stuck = value == 0 and network.activation(layer) in RELU_LIKE
        trained = evidence.history(f"weights/{layer}/kernel")
        if trained is not None and trained.std[0] > 0:
            continue  # the program has set its weights since
        if copied or stuck:
            why = (
                "its ReLU gives zero and passes no gradient"
                if stuck
                else "all its units get the same gradient and stay equal"
            )
            yield Finding(
                "layer_not_learning",
                "error" if stuck else "warning",
                site=f"weights/{layer}/kernel",
                layer=layer,
                message=f"The kernel of {layer} starts at the constant {value:g}: {why}.",
                last_step=evidence.last_step or 0,
                evidence={"initializer": name, "value": value},
                cure="Use a random initializer (the default is Glorot uniform); constants are for biases and scales.",
                confidence=0.95,
            )


def _initializer(given: object) -> tuple[str, float]:
    """The name of an initializer and the constant it gives."""
    said = given if isinstance(given, dict) else {"class": given or ""}
    name = str(said.get("class") or said.get("class_name") or "")
    name = {"zeros": "Zeros", "ones": "Ones", "constant": "Constant"}.get(name, name)
    config = said.get("config")
    value = (config if isinstance(config, dict) else said).get("value", 0.0)
    return name, {"Ones": 1.0, "Zeros": 0.0}.get(
        name, float(value) if isinstance(value, (int, float)) else 0.0
    )


def _frozen(evidence: Evidence) -> Iterator[Finding]:
    """Layers that are not trainable: a note, unless nothing is learned by the others."""
    network = evidence.network
    having = [
        n for n in network.order if network.get(n, "parameters", 0) and not network.get(n, "container", False)
    ]
    frozen = [
        n for n in having if not network.get(n, "trainable", True) and network.kind(n) != "Normalization"
    ]
    if not frozen:
        return
    everything = len(frozen) == len(having)
    number = "All layers" if everything else f"{len(frozen)} of {len(having)} layers with weights"
    more = ", …" if len(frozen) > 4 else ""
    yield Finding(
        "layer_not_learning",
        "warning" if everything or nothing_learned(evidence) else "note",
        layer=frozen[0],
        last_step=evidence.last_step or 0,
        message=f"{number} {'are' if len(frozen) > 1 else 'is'} frozen (trainable=False): {', '.join(frozen[:4])}{more}.",
        evidence={"layers": frozen},
        cure='Set trainable=True before compile() if that is not meant; otherwise silence this with fs.expect("frozen", layers=…).',
        confidence=0.5 if not everything else 0.95,
    )
