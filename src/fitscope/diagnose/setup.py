"""The outputs and losses of a run, from its configuration, for the rules that need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


class OutputHead(NamedTuple):
    """One output of the model and its loss."""

    layer: str | None
    activation: str  #: "" if linear or unknown
    linear: bool  #: known to have no nonlinearity
    units: int | None  #: numbers along the last axis
    rank: int | None
    loss: str  #: the class, "" if unknown
    from_logits: bool
    known: bool  #: whether activation and loss are both known


def heads(evidence: Evidence) -> list[OutputHead]:
    """The outputs of the model with their losses, as far as known."""
    outputs = list(evidence.configuration.get("outputs") or ())
    losses = list(evidence.configuration.get("losses") or ())
    if _custom(evidence) or len(outputs) != len(losses):
        return []
    found = []
    for output, loss in zip(outputs, losses, strict=True):
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
                activation is not None and bool(loss.get("class")),
            )
        )
    return found


def only_head(evidence: Evidence) -> OutputHead | None:
    """The output of a model with exactly one."""
    found = heads(evidence)
    return found[0] if len(found) == 1 else None


def one_output(evidence: Evidence) -> str | None:
    """The layer of that output."""
    outputs = evidence.network.outputs
    return outputs[0] if len(outputs) == 1 else None


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
