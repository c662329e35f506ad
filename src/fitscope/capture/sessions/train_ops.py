"""The training operations of a graph: those that change a trained variable by a gradient, and their inputs.

An optimizer's kernel does. So does a hand-written update: it writes to a trained variable a value that depends on a gradient, or on
data and the variable itself. Copies of another network, clipping and restored checkpoints are not training steps.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from fitscope.capture.sessions.backward import Backward, differentiated, gradient_scope
from fitscope.capture.sessions.graph import (
    SOURCES,
    Op,
    Tensor,
    ancestors,
    executed,
    reached,
    trainable,
    variable_of,
    written,
)

#: The operations by which optimizers update variables.
_APPLY = re.compile(r"^(Resource)?(Sparse)?Apply[A-Z]")
#: Other operations that write to a variable.
_WRITE = re.compile(r"^(Assign(Add|Sub)?(VariableOp)?|(Resource)?Scatter(Nd)?(Add|Sub|Update))$")
_SCATTER = re.compile(r"^(Resource)?Scatter(Add|Sub)$")


def updates(ops: Collection[Op], graph: Any) -> list[Op]:
    """Those of these operations that change a trained variable by a gradient."""
    variables = trainable(graph)
    kernels = [op for op in ops if _APPLY.match(op.type)]
    writes = [op for op in ops if _WRITE.match(op.type) and written(op) in variables]
    if not writes:
        return kernels
    by_gradient = reached((op for op in ops if differentiated(op) is not None), ops)
    by_data = reached(
        (op for op in ops if any(x.op.type in SOURCES and x.shape.rank for x in op.inputs)), ops
    )
    return kernels + [op for op in writes if op in by_gradient or (op in by_data and _of_itself(op))]


def _of_itself(op: Op) -> bool:
    """Whether the new value depends on the old value of the variable."""
    return any(before.name == written(op) for before in ancestors(op.inputs[1:]))


def trains(ops: Collection[Op], graph: Any, train_ops: Collection[Op] = ()) -> bool:
    """Whether a run that executes these is a training step."""
    known = (*train_ops, *_collected(graph))
    return any(op in ops for op in known) or bool(updates(ops, graph))


def training_roots(graph: Any, train_ops: Collection[Op] = ()) -> list[Op]:
    """The operations that a training step would run, as far as the graph tells."""
    known = list(dict.fromkeys([*train_ops, *_collected(graph)]))
    within = executed(known)
    return known + [op for op in updates(set(graph.get_operations()), graph) if op not in within]


def _collected(graph: Any) -> list[Op]:
    """The train ops that optimizers register in the graph."""
    return [op for op in graph.get_collection("train_op") if hasattr(op, "control_inputs")]


def losses(graph: Any, ops: set[Op]) -> list[Tensor]:
    """The losses of a run: the tensors whose gradients it applies."""
    if not ops:
        return []
    backward = Backward(graph, ops)
    applied = {x for x in ancestors([x for op in updates(ops, graph) for x in op.inputs]) if x in ops}
    return backward.losses(applied) or backward.losses(
        ops
    )  # gradients may pass through a variable or a queue


def changed(ops: Collection[Op]) -> set[str | None]:
    """The variables that a run of these operations writes to."""
    return {written(op) for op in ops if _APPLY.match(op.type) or _WRITE.match(op.type)}


Applied = dict[
    str, tuple[Tensor, Tensor | None]
]  #: for each variable the gradient, and for a sparse one its rows


def applied_gradients(ops: Collection[Op], graph: Any) -> Applied:
    """The gradients that change variables, as far as the updating operations show them."""
    variables = trainable(graph)
    found: Applied = {}
    averaged: Applied = {}  # gradients by the slot variable of the optimizer
    for op in ops:
        name = written(op) if _APPLY.match(op.type) or _WRITE.match(op.type) else None
        if name is None:
            continue
        if _APPLY.match(op.type):
            given = {arg.name: i for i, arg in enumerate(op.op_def.input_arg)}
            place = given.get("grad", given.get("delta"))
            if place is not None:
                found[name] = op.inputs[place], op.inputs[given["indices"]] if "indices" in given else None
        elif _SCATTER.match(op.type):
            values = _undo_learning_rate(op.inputs[2])
            if values is not None:
                (found if name in variables else averaged)[name] = values, op.inputs[1]
        elif name in variables and (gradient := _by_hand(op, variables[name])) is not None:
            found[name] = gradient, None
    return {**_from_averages(averaged, variables), **found}


def _from_averages(averaged: Applied, variables: Collection[str]) -> Applied:
    """Adam has no kernel for the rows of an embedding: it adds `gradient · (1 - β₁)` to an average that it calls after the variable,
    and its square to another.
    """
    found: Applied = {}
    for name in variables:
        mine = [
            given
            for slot, given in averaged.items()
            if f"/{name}/" in f"/{slot}" and given[0].op.type not in ("Mul", "Square")
        ]
        if len(mine) == 1:
            found[name] = mine[0]
    return found


def _undo_learning_rate(update: Tensor) -> Tensor | None:
    """`GradientDescentOptimizer` adds `-values · rate` to the rows of an embedding, or subtracts `values · rate`."""
    if update.op.type != "Mul":
        return None
    values = update.op.inputs[0]
    return values.op.inputs[0] if values.op.type == "Neg" else values


def _by_hand(op: Op, variable: Any) -> Tensor | None:
    """The gradient in `w.assign_sub(rate * gradient)` or `w.assign(w - rate * gradient)`."""
    update = op.inputs[1]
    if op.type.startswith("AssignAdd"):
        return None
    if not op.type.startswith("AssignSub"):
        if update.op.type != "Sub" or variable_of(_read(update.op.inputs[0])) != variable.op.name:
            return None
        update = update.op.inputs[1]
    whole = [update] if update.op.type != "Mul" else list(update.op.inputs)
    mine = [
        x for x in whole if gradient_scope(x.op) is not None and x.shape.is_compatible_with(variable.shape)
    ]
    rates = [x for x in whole if x.shape.rank == 0]
    return mine[0] if len(mine) == 1 and len(mine) + len(rates) == len(whole) else None


def _read(tensor: Tensor) -> Tensor:
    """The handle of the resource variable that this value was read from."""
    return tensor.op.inputs[0] if tensor.op.type == "ReadVariableOp" else tensor
