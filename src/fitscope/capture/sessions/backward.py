"""Reads the backward pass of a TF1 graph: which operation computes which gradient, and which tensors were differentiated.

`tf.gradients` puts the gradient of the operation a/b into SCOPE/a/b_grad/…, where SCOPE is `gradients` or whatever the user called it, and
begins with SCOPE/grad_ys_0. The scopes of a graph are known by that beginning, never by their name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from fitscope.capture.sessions.graph import SHAPE_ONLY, Op, Tensor, ancestors, once

_SEED = re.compile(r"(?:^|/)grad_ys_\d+$")


@once
def gradient_scopes(graph: Any) -> frozenset[str]:
    """The scopes that `tf.gradients` made in a graph."""
    return frozenset(op.name.rpartition("/")[0] for op in graph.get_operations() if _SEED.search(op.name)) - {
        ""
    }


@once
def inner_scopes(graph: Any) -> frozenset[str]:
    """The scopes of gradients that are themselves differentiated: a gradient penalty is a part of its loss."""
    scopes = gradient_scopes(graph)
    if len(scopes) < 2:
        return frozenset()
    forward = {name for op in graph.get_operations() if (name := differentiated(op)) is not None}
    return frozenset(scope for name in forward if (scope := _within(name, scopes)) is not None)


def gradient_scope(op: Op) -> str | None:
    """The scope of gradients that an operation is in."""
    return _within(op.name, gradient_scopes(op.graph))


def differentiated(op: Op) -> str | None:
    """The name of the operation whose gradient this operation helps to compute."""
    scope = gradient_scope(op)
    if scope is None:
        return None
    parts = op.name[len(scope) + 1 :].split("/")
    for i, part in enumerate(parts):
        head, found, tail = part.rpartition("_grad")
        if found and (not tail or tail[0] == "_"):
            return "/".join([*parts[:i], head])
    return None


def _within(name: str, scopes: Collection[str]) -> str | None:
    """The innermost of these scopes that a name is in."""
    while scopes and (name := name.rpartition("/")[0]):
        if name in scopes:
            return name
    return None


class Backward:
    """The backward pass within the operations of a run."""

    def __init__(self, graph: Any, ops: set[Op]) -> None:
        self.graph = graph
        self.ops = ops
        self.by_forward: dict[str, list[Op]] = {}  #: for each operation, the operations of its gradient
        for op in ops:
            forward = differentiated(op)
            if forward is not None:
                self.by_forward.setdefault(forward, []).append(op)

    def losses(self, among: Collection[Op]) -> list[Tensor]:
        """The differentiated tensors whose backward pass begins in these operations."""
        inner = inner_scopes(self.graph)
        found: list[Tensor] = []
        for seed in sorted((op for op in among if _SEED.search(op.name)), key=lambda op: str(op.name)):
            loss = _sum_of(self._begun_by(seed)) if gradient_scope(seed) not in inner else None
            # A backward pass that starts from the user's values, not from ones, belongs to a loss outside this graph.
            given = seed.type == "Identity" and loss is not None and loss.shape.rank != 0
            if loss is not None and not given and all(loss.name != known.name for known in found):
                found.append(loss)
        return found

    def _begun_by(self, seed: Op) -> list[Op]:
        """The operations whose gradients a backward pass begins with."""
        names = [differentiated(user) for out in seed.outputs for user in out.consumers() if user in self.ops]
        return [
            op for name in dict.fromkeys(names) if (op := self._operation(name)) is not None and op.outputs
        ]

    def gradient(self, tensor: Tensor) -> Tensor | None:
        """The gradient of the loss with respect to a tensor, if the backward pass computed it: the value that enters the gradient
        of its operation from outside, in its shape.
        """
        while tensor.op.type == "Identity" and tensor.op.name not in self.by_forward:
            before = tensor.op.inputs[0]  # an identity passes its gradient on without an operation
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
            and gradient_scope(flow.op) is not None
            and differentiated(flow.op) != tensor.op.name
            and _same_shape(flow, tensor)
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def why_not(self, tensor: Tensor) -> str:
        """The reason why there is no gradient with respect to a tensor."""
        users = [user for user in tensor.consumers() if user in self.ops and user.type not in SHAPE_ONLY]
        goes_on = any(user.name in self.by_forward for user in users)
        if goes_on and any(op.name in self.by_forward for op in ancestors([tensor])):
            return "the backward pass has no tensor that is its gradient alone"
        return "no gradient of the loss reaches it"

    def _operation(self, name: str | None) -> Op | None:
        try:
            return None if name is None else self.graph.get_operation_by_name(name)
        except KeyError:
            return None


def _same_shape(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, as far as known. A scalar does not match an unknown shape."""
    return bool(a.shape.is_compatible_with(b.shape)) and a.shape.rank == b.shape.rank


#: Sums pass a gradient on unchanged, so the backward pass has no operation for them.
_PASS_ON = {"Add", "AddV2", "AddN", "Identity"}


def _sum_of(ops: list[Op]) -> Tensor | None:
    """The nearest tensor that is the sum of these operations' outputs."""
    if len(ops) <= 1:
        return ops[0].outputs[0] if ops else None
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
