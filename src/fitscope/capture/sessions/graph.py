"""Facts about a TF1 graph: the operations that a run executes, the sources of data, the variables that it writes.

Nothing here changes or runs a graph. Tensors are identified by name, because they cannot be hashed with TF2 behaviour on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

Op = Any
Tensor = Any

#: Where data comes into a graph.
SOURCES = {
    "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync",
    "QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2", "ReaderReadV2",
}  # fmt: skip
VARIABLES = {"VarHandleOp", "Variable", "VariableV2"}

#: Operations that read only a tensor's shape: they pass no value on.
SHAPE_ONLY = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}

#: Operations that take the handle of a variable and only read it.
_READ_ONLY = {
    "Enter", "Identity", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape",
}  # fmt: skip

#: Operations that pass a variable on to an operation that writes to it.
_PASS_ON_VARIABLE = {"Enter", "Identity", "RefEnter", "RefIdentity"}


def executed(ops: Iterable[Op], fed: Collection[str] = ()) -> set[Op]:
    """Every operation that a run of these fetches executes, if the tensors in `fed` are fed."""
    seen: set[Op] = set()
    todo = list(ops)
    while todo:
        op = todo.pop()
        if op in seen:
            continue
        seen.add(op)
        todo += [tensor.op for tensor in op.inputs if not (fed and tensor.name in fed)]
        todo += op.control_inputs
    return seen


def ancestors(tensors: Iterable[Tensor]) -> list[Op]:
    """The operations whose values go into these tensors, sources first."""
    order: list[Op] = []
    seen: set[Op] = set()
    todo = [(tensor.op, False) for tensor in tensors]
    while todo:
        op, done = todo.pop()
        if done:
            order.append(op)
        elif op not in seen:
            seen.add(op)
            todo.append((op, True))
            todo += [(tensor.op, False) for tensor in op.inputs]
    return order


def reached(ops: Iterable[Op], within: Collection[Op]) -> set[Op]:
    """The given operations, and those in `within` that depend on them."""
    seen: set[Op] = set()
    todo = list(ops)
    while todo:
        op = todo.pop()
        if op not in seen and op in within and op.type not in SHAPE_ONLY:
            seen.add(op)
            todo += [user for out in op.outputs for user in out.consumers()]
    return seen


def trainable(graph: Any) -> dict[str, Any]:
    """The variables that are trained, by the name of their operation."""
    return {v.op.name: v for v in graph.get_collection("trainable_variables")}


def saves(ops: Collection[Op]) -> bool:
    """Whether a run that executes these writes a checkpoint."""
    return any(op.type in ("SaveV2", "Save", "SaveSlices") for op in ops)


def variable_of(tensor: Tensor) -> str | None:
    """The name of the variable whose handle, reference or value this tensor is."""
    source = tensor.op
    while source.type in _PASS_ON_VARIABLE and len(source.inputs):
        source = source.inputs[0].op
    return source.name if source.type in VARIABLES else None


def written(op: Op) -> str | None:
    """The name of the variable that this operation writes to."""
    return variable_of(op.inputs[0]) if len(op.inputs) else None


def written_references(ops: Collection[Op]) -> set[str]:
    """The reference variables that a run of these operations may write to: those whose reference an operation takes."""
    found: set[str] = set()
    takes: dict[str, bool] = {"IsVariableInitialized": False}
    for op in ops:
        if op.type not in takes:
            takes[op.type] = any(arg.is_ref for arg in op.op_def.input_arg)
        if takes[op.type]:
            found |= {
                name for x in op.inputs if x.dtype._is_ref_dtype and (name := variable_of(x)) is not None
            }
    return found


def written_variables(ops: Collection[Op]) -> set[str]:
    """All variables that a run of these may write to: an optimizer's averages too."""
    handed = [
        variable_of(x)
        for op in ops
        if op.type not in _READ_ONLY
        for x in op.inputs
        if x.dtype.base_dtype.name == "resource"
    ]
    return written_references(ops) | {name for name in handed if name is not None}


def once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The result of a function of a graph, cached until the graph grows."""
    known: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()

    def kept(graph: Any) -> Any:
        version, value = known.get(graph, (None, None))
        if version != graph.version:
            value = make(graph)
            known[graph] = graph.version, value
        return value

    return kept
