"""`wrong_axis`: a softmax or normalisation over the wrong axis.

Looks at the axis of output softmaxes and of normalisation layers, and whether probabilities add up to one along the classes: the mean
of a softmax over k classes is 1/k for any prediction. A softmax over an axis with one entry is always 1, in any layer.

False alarms: attention is normalised over positions on purpose, so the sum is judged only for the softmax of an output.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import highest, lowest, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.network import SOFTMAX_LIKE
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import CATEGORICAL, only_head

_TURNING = ("Permute", "Reshape", "Lambda")  #: layers that may move the channels
#: Layers that normalise the features of each position; over several axes they may be meant as instance normalisation.
_OVER_FEATURES = ("LayerNormalization", "RMSNormalization", "GroupNormalization")


@rule("wrong_axis", sees="a softmax or normalisation over the wrong axis")
def wrong_axis(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    network = evidence.network
    if not network.order:
        yield NotJudged("the model was not described")
        return
    named: set[str] = set()
    knowing = frozenset(
        n for n in network.order if network.get(n, "data_format") or network.kind(n) in _TURNING
    )
    for layer in network.order:
        found = _by_axis(evidence, layer) or _alone(evidence, layer) or _turned(evidence, layer, knowing)
        if found is not None:
            named.add(layer)
            yield found
    if evidence.shards:  # the mean over some of the classes says nothing
        yield NotJudged("the sum over classes: each process holds only a part of the outputs")
        return
    outputs = [n for n in network.outputs if _probabilities(evidence, n) and n not in named]
    for layer in outputs:
        history = evidence.history(f"activations/{layer}") or evidence.history("predictions")
        if history is None or len(history.shape) < 2 or history.shape[-1] < 2 or len(history) < 2:
            continue
        total = median(history.mean) * history.shape[-1]
        if np.isfinite(total) and abs(total - 1) > limit.sum:
            yield _finding(
                layer,
                "error",
                f"The softmax of {layer} adds up to {total:.3g} over its {history.shape[-1]} classes instead of 1",
                evidence,
                history,
                total=total,
            )


def _probabilities(evidence: Evidence, layer: str) -> bool:
    """Whether an output should add up to one: by its nonlinearity, or by its loss if the nonlinearity is a custom function."""
    name, head = evidence.network.activation(layer), only_head(evidence)
    if name in SOFTMAX_LIKE:
        return True
    seen = evidence.history(f"activations/{layer}")
    unknown = (
        head is not None and head.loss in CATEGORICAL and not head.from_logits and name not in ("", "sigmoid")
    )
    return unknown and seen is not None and bool(lowest(seen.min) >= 0) and bool(highest(seen.max) <= 1.0001)


def _by_axis(evidence: Evidence, layer: str) -> Finding | None:
    network, kind = evidence.network, evidence.network.kind(layer)
    axis = network.get(layer, "axis")
    axes = [axis] if isinstance(axis, int) else list(axis) if isinstance(axis, (list, tuple)) else []
    shape = _shape(evidence, layer)
    rank = len(shape) if shape else None
    if not axes:
        return None
    last = [a == -1 or (rank is not None and a == rank - 1) for a in axes]
    if kind == "Softmax" and layer in network.ends and not any(last):
        return _finding(
            layer, "error", f"The softmax {layer} runs over axis {axis}, not over the classes", evidence, None
        )
    if kind == "Softmax" and not any(last) and 0 not in axes and rank is not None and rank >= 3:
        text = f"The softmax {layer} runs over axis {axis} of {rank}: in attention the last axis, the keys, is usual"
        return _finding(layer, "note", text, evidence, None)
    if kind in ("LayerNormalization", "BatchNormalization", "RMSNormalization", "Softmax") and 0 in axes:
        return _finding(
            layer,
            "error",
            f"{layer} ({kind}) works along axis 0, across the samples of a batch",
            evidence,
            None,
        )
    if (
        (kind == "BatchNormalization" or (kind in _OVER_FEATURES and len(axes) == 1))
        and not all(last)
        and rank is not None
        and rank >= 3
        and not _channels_first(evidence, layer)
    ):
        text = f"{layer} normalises along axis {axis}, but the channels of its input {shape} are last"
        return _finding(layer, "warning", text, evidence, None)
    return None


def _turned(evidence: Evidence, layer: str, knowing: frozenset[str]) -> Finding | None:
    """Finds a layer that takes the channels first, behind one of `knowing` that has them last."""
    network = evidence.network
    if not network.graph or network.get(layer, "data_format") != "channels_first":
        return None
    before = network.producers(layer, knowing)
    if not before or any(network.get(n, "data_format") != "channels_last" for n in before):
        return None
    text = f"{layer} takes the channels first (data_format), but {before[0]} before it has them last"
    return _finding(layer, "warning", text, evidence, None)


def _alone(evidence: Evidence, layer: str) -> Finding | None:
    """Finds a hidden softmax over one entry, such as the scores of a `Dense(1)`. For an output, `output_loss_mismatch` reports it."""
    network = evidence.network
    softmax = network.kind(layer) == "Softmax" or network.activation(layer) in SOFTMAX_LIKE
    if not softmax or layer in network.ends:
        return None
    axis = network.get(layer, "axis", -1) if network.kind(layer) == "Softmax" else -1
    shape = _shape(evidence, layer)
    if not isinstance(axis, int) or not -len(shape) < axis < len(shape) or axis == 0 or shape[axis] != 1:
        return None
    text = f"The softmax of {layer} runs over axis {axis} of {shape}, which has one entry: it is always 1"
    return _finding(layer, "error", text, evidence, None)


def _shape(evidence: Evidence, layer: str) -> tuple[int | None, ...]:
    seen = evidence.history(f"activations/{layer}")
    if seen is not None:
        return tuple(seen.shape)
    return tuple(evidence.network.get(layer, "output_shape") or ())


def _channels_first(evidence: Evidence, layer: str) -> bool:
    """Whether a convolution before it has its channels first: then axis 1 is right."""
    network = evidence.network
    sources = [layer, *network.producers(layer, network.known)]
    if any(network.get(n, "data_format") == "channels_first" for n in sources):
        return True
    for source in sources:
        filters, shape = network.get(source, "filters"), _shape(evidence, source)
        if filters and len(shape) >= 3 and shape[1] == filters and shape[-1] != filters:
            return True
    return False


def _finding(
    layer: str, severity: str, text: str, evidence: Evidence, history: History | None, **numbers: float
) -> Finding:
    return Finding(
        "wrong_axis",
        severity,  # type: ignore[arg-type]
        site=str(history.site) if history is not None else f"activations/{layer}",
        layer=layer,
        last_step=evidence.last_step or 0,
        message=text + ".",
        evidence=numbers,
        cure=(
            "Use axis=-1 for classes and channels, and the axis of the positions for attention; swap axes before if they are elsewhere."
        ),
        confidence=0.9,
        series=Series.from_history(history, "mean") if history is not None else None,
    )
