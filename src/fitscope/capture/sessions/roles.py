"""Finds the loss, the prediction, the target and the input among the tensors of a plain graph.

A graph does not name them. Only one thing is certain: the loss is the tensor whose gradients were taken. fitscope follows the data
forward to the first operation, after the last trained weight, that combines a tensor computed with weights and one computed
without. The first tensor is the *prediction*; the source of the second is the *target*. Where this gives no single answer, fitscope
does not guess: the user names the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fitscope.capture.sessions.graph import SHAPE_ONLY, SOURCES, Op, Tensor, ancestors, trainable
from fitscope.errors import WatchError, one_of

#: Operations that pass a value on in another form before the loss uses it.
_FORM = {"Cast", "CheckNumerics", "Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims"}
#: Operations on a probability before its logarithm: `log(p + 1e-8)`, `log(1 - p)`, `log(clip_by_value(p, …))`.
_BEFORE_LOG = {"Add", "AddV2", "ClipByValue", "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "Sub"}
#: Operations that turn a number into a number.
_OF_NUMBERS = {"Add", "AddV2", "Cast", "Fill", "Identity", "Mul", "Neg", "Sub"}


@dataclass(slots=True)
class Roles:
    """The tensors with a role in training, by kind; the first one that a run computes counts."""

    loss: list[Tensor] = field(default_factory=list)
    predictions: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    named: frozenset[str] = frozenset()  #: the kinds of tensors that the user named

    def of(self, kind: str) -> list[Tensor]:
        found: list[Tensor] = getattr(self, kind)
        return found


def tensors_of(graph: Any, given: Any, what: str) -> list[Tensor]:
    """The tensors that the user named: tensors, names, or several of them."""
    if given is None:
        return []
    several = (
        given
        if isinstance(given, list | tuple)
        else list(given.values())
        if isinstance(given, dict)
        else [given]
    )
    return [tensor_of(graph, one, what) for one in several]


def tensor_of(graph: Any, given: Any, what: str) -> Tensor:
    """The tensor for a tensor, a variable or a name; `:0` may be omitted."""
    if isinstance(given, str):
        try:
            return graph.get_tensor_by_name(given if ":" in given else f"{given}:0")
        except (KeyError, ValueError):
            names = [f"{op.name}:0" for op in graph.get_operations() if op.outputs]
            raise WatchError(
                f"`{what}` to name a tensor of the graph", repr(given), one_of(names, given)
            ) from None
    try:
        return graph.as_graph_element(given, allow_tensor=True, allow_operation=False)
    except (TypeError, ValueError) as error:
        raise WatchError(
            f"`{what}` to be a tensor of the session's graph, or its name", repr(given), str(error)
        ) from None


def infer(graph: Any, losses: Sequence[Tensor]) -> Roles:
    """The roles that follow from the losses of a graph alone."""
    roles = Roles(loss=list(losses))
    for loss in losses:
        for prediction, sources in _meetings(graph, loss):
            if len(sources) == 1 and all(sources[0].name != t.name for t in roles.targets):
                roles.targets.append(sources[0])
            if all(prediction.name != t.name for t in roles.predictions):
                roles.predictions.append(prediction)
    roles.inputs = inputs_of(
        roles.predictions or list(losses), without=roles.targets if roles.predictions else ()
    )
    return roles


def inputs_of(tensors: Sequence[Tensor], without: Iterable[Tensor] = ()) -> list[Tensor]:
    """The data that enters tensors. A number (a rate, a switch) is a setting, not data."""
    used = [
        *tensors,
        *(tensor for op in ancestors(tensors) if op.type not in SHAPE_ONLY for tensor in op.inputs),
    ]
    feeding = list({tensor.name: tensor for tensor in used if tensor.op.type in SOURCES}.values())
    shaped = [out for out in feeding if out.shape.rank]
    names = {tensor.name for tensor in without}
    found = shaped or [out for out in feeding if out.shape.rank is None]
    return [out for out in found if out.name not in names] or found


def _meetings(graph: Any, loss: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
    """For each operation that combines a prediction and a target: the prediction, and the sources of the target."""
    weights = trainable(graph)
    data: set[str] = set()  # tensors that data has touched
    weighed: set[str] = set()  # tensors that a trained weight has touched
    inside: set[Op] = set()  # operations after which weights still come in
    met: dict[Op, tuple[Tensor, Tensor]] = {}
    order = ancestors([loss])
    behind: dict[Op, set[Op]] = {}  # the meetings before an operation
    for op in order:
        if op.type in SHAPE_ONLY:
            continue
        mine = [t for t in op.inputs if t.name in data]
        touched = [t for t in mine if t.name in weighed]
        bare = [t for t in mine if t.name not in weighed]
        before: set[Op] = set().union(*(behind.get(t.op, set()) for t in op.inputs))
        if any(t.name in weighed and t.name not in data and t.shape.rank != 0 for t in op.inputs):
            inside |= before
        if touched and bare and not before - inside:
            met[op] = touched[0], bare[0]
            before = before | {op}
        behind[op] = before
        for out in op.outputs:
            if (op.type in SOURCES and out.shape.rank != 0) or mine:
                data.add(out.name)
            if op.name in weights or any(t.name in weighed for t in op.inputs):
                weighed.add(out.name)
    found = []
    for op, (prediction, target) in met.items():
        if op not in inside and not behind[op] - {op} - inside:
            found.append((_bare(prediction), inputs_of([target])))
    return found


def _bare(tensor: Tensor) -> Tensor:
    """The prediction before the loss's own transformations."""
    strip = {*_FORM, "Log", "Log1p"}
    while tensor.op.type in strip and (before := _changed(tensor)) is not None:
        if tensor.op.type == "Reshape" and before.shape.rank != tensor.shape.rank:
            return tensor
        if tensor.op.type in ("Log", "Log1p"):
            strip |= _BEFORE_LOG
        tensor = before
    return tensor


def _changed(tensor: Tensor) -> Tensor | None:
    """The input that an operation reshapes or converts: the only one that is not a number."""
    inputs = [x for x in tensor.op.inputs if not _is_number(x)]
    return inputs[0] if len(inputs) == 1 or (inputs and tensor.op.type == "Reshape") else None


def _is_number(tensor: Tensor) -> bool:
    """Whether the tensor is constant but for its shape: `1`, `tf.ones_like(p)`."""
    op = tensor.op
    return (
        op.type == "Const"
        or op.type in SHAPE_ONLY
        or (op.type in _OF_NUMBERS and all(map(_is_number, op.inputs)))
    )
