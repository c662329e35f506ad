"""Facts about a TF1 graph: what a run executes, which operations are whose gradients, what an optimizer is given.

Nothing here changes a graph or runs it. Tensors are known by name throughout: with TF2 behaviour on, they cannot be hashed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

Op = Any
Tensor = Any

#: What optimizers update variables with.
_APPLY = re.compile(r"^(Resource)?(Sparse)?Apply[A-Z]")
#: What anything else writes to a variable with.
_WRITE = re.compile(r"^(Assign(Add|Sub)?(VariableOp)?|(Resource)?Scatter(Nd)?(Add|Sub|Update))$")
#: `tf.gradients` puts the gradient of the operation a/b into …/gradients/a/b_grad/….
_GRADIENTS = re.compile(r"gradients(_\d+)?")
_SEED = re.compile(r"(?:^|/)gradients(_\d+)?/grad_ys_\d+$")

#: Where data comes into a graph.
SOURCES = {
    "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync",
    "QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2", "ReaderReadV2",
}  # fmt: skip
VARIABLES = {"VarHandleOp", "Variable", "VariableV2"}

#: Operations that look at a tensor's shape only: no value comes through them.
SHAPE_ONLY = {"Rank", "Shape", "ShapeN", "Size"}


def executed(ops: Iterable[Op], fed: Collection[str] = ()) -> set[Op]:
    """Every operation that a run of these executes, when the tensors named in `fed` are fed."""
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


def trainable(graph: Any) -> dict[str, Any]:
    """The variables that are trained, by the name of their operation."""
    return {v.op.name: v for v in graph.get_collection("trainable_variables")}


def trains(ops: Collection[Op], graph: Any, train_ops: Collection[Op] = ()) -> bool:
    """Whether a run that executes these is a training step: a gradient changes a variable."""
    if any(op in ops for op in train_ops) or any(_APPLY.match(op.type) for op in ops):
        return True
    if any(op in ops for op in graph.get_collection("train_op") if hasattr(op, "control_inputs")):
        return True
    variables = trainable(graph)
    writes = any(_WRITE.match(op.type) and written(op) in variables for op in ops)
    return writes and any(differentiated(op) is not None for op in ops)


def training_roots(graph: Any, train_ops: Collection[Op] = ()) -> list[Op]:
    """The operations that a training step would run, as far as the graph tells: one per optimizer."""
    known = [*train_ops, *(op for op in graph.get_collection("train_op") if hasattr(op, "control_inputs"))]
    if known:
        return list(dict.fromkeys(known))
    return [op for op in graph.get_operations() if _APPLY.match(op.type)]


def saves(ops: Collection[Op]) -> bool:
    """Whether a run that executes these writes a checkpoint."""
    return any(op.type in ("SaveV2", "Save", "SaveSlices") for op in ops)


def written(op: Op) -> str | None:
    """The name of the variable that this operation writes to."""
    source = op.inputs[0].op if len(op.inputs) else None
    while source is not None and source.type in ("Identity", "Enter", "RefIdentity") and len(source.inputs):
        source = source.inputs[0].op
    return source.name if source is not None and source.type in VARIABLES else None


def differentiated(op: Op) -> str | None:
    """The name of the operation whose gradient this one is a part of."""
    parts = op.name.split("/")
    starts = [i for i, part in enumerate(parts) if _GRADIENTS.fullmatch(part)]
    for start in reversed(starts):
        for i in range(start + 1, len(parts)):
            head, found, tail = parts[i].rpartition("_grad")
            if found and (not tail or tail[0] == "_"):
                return "/".join([*parts[start + 1 : i], head])
    return None


class Backward:
    """The backward pass among the operations of a run."""

    def __init__(self, graph: Any, ops: Collection[Op]) -> None:
        self.graph = graph
        self.ops = ops
        self.by_forward: dict[str, list[Op]] = {}  #: the operations of each one's gradient
        for op in ops:
            forward = differentiated(op)
            if forward is not None:
                self.by_forward.setdefault(forward, []).append(op)

    def losses(self) -> list[Tensor]:
        """What gradients were taken of: the scalars whose gradient begins the backward pass."""
        found: dict[str, list[Op]] = {}
        for seed in self.ops:
            if not _SEED.search(seed.name):
                continue
            for tensor in seed.outputs:
                for user in tensor.consumers():
                    forward = self._operation(differentiated(user)) if user in self.ops else None
                    if forward is not None and forward.outputs:
                        same = found.setdefault(seed.name, [])
                        same += [forward] if forward not in same else []
        return [loss for ops in found.values() if (loss := _sum_of(ops)) is not None]

    def gradient(self, tensor: Tensor) -> Tensor | None:
        """The gradient of the loss with respect to a tensor, where the backward pass has computed it: what comes into the
        gradient of its operation from outside, in its shape.
        """
        while tensor.op.type == "Identity" and tensor.op.name not in self.by_forward:
            before = tensor.op.inputs[0]  # an identity hands its gradient on, and has no operation for that
            if [user for user in before.consumers() if user.type not in SHAPE_ONLY and user in self.ops] != [
                tensor.op
            ]:
                return None
            tensor = before
        mine = self.by_forward.get(tensor.op.name, ())
        found = {
            flow.name: flow
            for op in mine
            for flow in op.inputs
            if flow.dtype.base_dtype == tensor.dtype.base_dtype
            and _flows_back(flow.op)
            and differentiated(flow.op) != tensor.op.name
            and _same_shape(flow, tensor)
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def _operation(self, name: str | None) -> Op | None:
        try:
            return None if name is None else self.graph.get_operation_by_name(name)
        except KeyError:
            return None


def applied_gradients(ops: Collection[Op]) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """What each optimizer kernel is given: name of the variable, gradient, and for sparse ones the rows it belongs to."""
    for op in ops:
        name = written(op) if len(op.inputs) else None
        if name is None:
            continue
        if _APPLY.match(op.type):
            given = {arg.name: i for i, arg in enumerate(op.op_def.input_arg)}
            place = given.get("grad", given.get("delta"))
            if place is not None:
                yield name, op.inputs[place], op.inputs[given["indices"]] if "indices" in given else None
        elif re.match(r"^(Resource)?Scatter(Add|Sub)$", op.type):
            values = _undo_learning_rate(op.inputs[2])
            if values is not None:
                yield name, values, op.inputs[1]


def _undo_learning_rate(update: Tensor) -> Tensor | None:
    """`GradientDescentOptimizer` adds `-values · rate` to the rows of an embedding, or subtracts `values · rate`."""
    if update.op.type != "Mul":
        return None
    values = update.op.inputs[0]
    return values.op.inputs[0] if values.op.type == "Neg" else values


def _flows_back(op: Op) -> bool:
    """Whether an operation belongs to a backward pass: to the gradient of another one, or a sum of such."""
    return any(_GRADIENTS.fullmatch(part) for part in op.name.split("/"))


def _same_shape(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape, as far as that is known. A scalar is not like what could be anything."""
    return bool(a.shape.is_compatible_with(b.shape)) and a.shape.rank == b.shape.rank


#: Sums pass a gradient on as it is, so that the backward pass does not show them.
_PASS_ON = {"Add", "AddV2", "AddN", "Identity"}


def _sum_of(ops: list[Op]) -> Tensor | None:
    """The nearest tensor that is the sum of these operations' outputs."""
    if len(ops) == 1:
        return ops[0].outputs[0]
    reached: list[set[Op]] = []
    order: list[Op] = []
    for op in ops:
        mine, todo = set(), [op]
        while todo:
            here = todo.pop(0)
            if here in mine:
                continue
            mine.add(here)
            order += [here] if here not in order else []
            todo += [u for out in here.outputs[:1] for u in out.consumers() if u.type in _PASS_ON]
        reached.append(mine)
    common = set.intersection(*reached)
    return next((op.outputs[0] for op in order if op in common), None)
