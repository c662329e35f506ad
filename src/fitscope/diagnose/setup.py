"""The outputs and losses of a run, from its configuration, for the rules that need them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fitscope.diagnose.evidence import Evidence

CATEGORICAL = frozenset(
    ("CategoricalCrossentropy", "SparseCategoricalCrossentropy", "CategoricalFocalCrossentropy")
)
BINARY = frozenset(("BinaryCrossentropy", "BinaryFocalCrossentropy"))
SQUARED = frozenset(("MeanSquaredError",))
REGRESSION = SQUARED | {
    "MeanAbsoluteError",
    "Huber",
    "LogCosh",
    "MeanAbsolutePercentageError",
    "MeanSquaredLogarithmicError",
}
ADAPTIVE = frozenset(("Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Lion", "Lamb", "Ftrl", "Muon"))


Json = Mapping[str, Any]


class OutputHead(NamedTuple):
    """One output of the model and its loss."""

    layer: str | None
    activation: str  #: "" if linear or unknown
    linear: bool  #: whether it certainly has no nonlinearity
    units: int | None  #: the numbers along the last axis
    rank: int | None
    loss: str  #: the class of the loss, "" if unknown
    from_logits: bool
    ignored: float | None  #: the label that the loss leaves out
    known: bool  #: whether activation and loss are both known


def heads(evidence: Evidence) -> list[OutputHead]:
    """The outputs of the model with their losses, as far as known."""
    outputs = list(evidence.configuration.get("outputs") or ())
    losses = list(evidence.configuration.get("losses") or ())
    if _custom(evidence) or len(outputs) != len(losses):
        return []
    found = []
    for output, loss in _paired(outputs, losses):
        shape = output.get("shape") or ()
        activation = output.get("activation")
        found.append(
            OutputHead(
                output.get("layer"),
                "" if activation in (None, "linear") else str(activation),
                activation == "linear",
                int(shape[-1]) if shape and shape[-1] is not None else None,
                len(shape) if shape else None,
                str(loss.get("class") or ""),
                bool(loss.get("from_logits")),
                number(loss.get("ignore_class")),
                activation is not None and bool(loss.get("class")),
            )
        )
    return found


def _paired(outputs: Sequence[Json], losses: Sequence[Json]) -> list[tuple[Json, Json]]:
    """Each output with its loss. Keras sorts a dict of outputs, so several are matched by name; none if a name is unknown."""
    if len(outputs) == 1:
        return [(outputs[0], losses[0])]
    named: dict[str, Json] = {}
    for output in outputs:
        for name in (output.get("name"), output.get("layer"), str(output.get("layer")).rpartition("/")[2]):
            named.setdefault(str(name), output)
    pairs = [(named.get(str(loss.get("output"))), loss) for loss in losses]
    return [(output, loss) for output, loss in pairs if output is not None]


def ignorance(evidence: Evidence, head: OutputHead) -> tuple[float | None, str]:
    """The loss of a model that knows nothing, and its source; if that is not known, None and the reason."""
    if head.loss in CATEGORICAL:
        if head.units is None or head.units < 2:
            return None, "the number of classes is not known"
        return math.log(head.units), f"ln({head.units})"
    if head.loss in BINARY:
        return math.log(2), "ln(2)"
    if head.loss in SQUARED:
        targets = evidence.history("targets")
        if targets is None or not np.isfinite(targets.rms[0]) or targets.rms[0] == 0:
            return None, "the targets were not recorded"
        return float(targets.rms[0]) ** 2, "the mean square of the targets"
    return None, f"what {head.loss} is for a model that knows nothing is not known"


def only_head(evidence: Evidence) -> OutputHead | None:
    """The output of a model with exactly one."""
    found = heads(evidence)
    return found[0] if len(found) == 1 else None


def optimizer(evidence: Evidence) -> Mapping[str, Any]:
    """The settings of the optimizer; empty if unknown."""
    found = evidence.configuration.get("optimizer")
    return found if isinstance(found, Mapping) else {}


def number(value: Any) -> float | None:
    """A setting as a number; None if it is not one."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _custom(evidence: Evidence) -> bool:
    """Whether the model computes its loss in a custom way."""
    custom = evidence.configuration.get("custom") or {}
    return bool(custom.get("compute_loss") or custom.get("train_step"))
