"""How a tensor leaves a run that computes it anyway, so that the run stays what it was, to the last bit.

To fetch a tensor is to use it, and TensorFlow fuses operations only while nothing else uses what is between them. A tensor that could be
fused away is therefore fetched from its shadow (`backends._shadow`), which has to be added to the graph: before it is
finalized. What the run does not compute is fetched only if that takes a few cheap operations (a softmax of its logits), never if it
takes data or weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from fitscope.backends._shadow import as_it_is, shadow_of
from fitscope.sessions.graph import Op, Tensor, executed
from fitscope.sessions.packed import Pack, packable

#: What may be executed in addition.
_CHEAP = {
    "Add", "AddN", "AddV2", "ArgMax", "Cast", "Const", "DivNoNan", "Equal", "ExpandDims", "Greater", "GreaterEqual",
    "Identity", "LogSoftmax", "Mean", "Mul", "Neg", "OneHot", "Pack", "Range", "Rank", "RealDiv", "Reshape", "Round",
    "Shape", "Sigmoid", "Size", "Slice", "Softmax", "Sqrt", "Square", "SquaredDifference", "Squeeze", "StopGradient",
    "StridedSlice", "Sub", "Sum", "Tanh", "TopKV2",
}  # fmt: skip
_MOST = 24  #: operations in addition


class Unseen(Exception):  # noqa: N818 - a message: why a tensor cannot be fetched
    """Why a tensor cannot be taken out of a run."""


class Outlets:
    """The outlets of one graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._shadows: dict[Op, Op] = {}
        self._packs: list[tuple[dict[str, str], Pack]] = []

    def pack(self, tensors: dict[str, Tensor]) -> Pack | None:
        """The statistics of these tensors, computed in the graph. In one that is finalized: the most that it has of them."""
        names = {name: tensor.name for name, tensor in tensors.items() if packable(tensor)}
        if not self.graph.finalized and names and all(names != known for known, _ in self._packs):
            with self.graph.as_default(), self.graph.control_dependencies(None), tf.name_scope("fitscope/"):
                self._packs.append((names, Pack({name: tensors[name] for name in names})))
        fitting = [(known, pack) for known, pack in self._packs if known.items() <= names.items()]
        return max(fitting, key=lambda found: len(found[0]))[1] if fitting else None

    def of(
        self, tensor: Tensor, ops: Collection[Op], fed: Collection[str], *, forward: bool = True
    ) -> Tensor:
        """What to fetch for a tensor, in a run that executes these operations."""
        if tensor.name in fed:
            return tensor
        if not self.graph.is_fetchable(tensor):
            raise Unseen("it is computed inside a loop or a branch")
        more = self._more(tensor, ops, fed)
        if more is None:
            raise Unseen("what this session runs does not compute it")
        if not more:
            return self._outlet(tensor, ops, fed, forward=forward)
        edge = {
            x.name: x
            for op in more
            for x in op.inputs
            if x.op in ops and x.name not in fed and len(x.op.inputs)  # nothing is fused into a constant
        }
        if any(not as_it_is(x, forward=True, among=ops) for x in edge.values()):
            return self._outlet(tensor, ops, fed, forward=True, beyond=True)
        return tensor

    def computed(self, tensor: Tensor, ops: Collection[Op], fed: Collection[str]) -> bool:
        """Whether a run of these operations computes the tensor, or nearly."""
        return tensor.name not in fed and self._more(tensor, ops, fed) is not None

    def _more(self, tensor: Tensor, ops: Collection[Op], fed: Collection[str]) -> set[Op] | None:
        """What has to be executed in addition for a tensor; None if that is too much."""
        more = executed([tensor.op], fed) - set(ops)
        return more if len(more) <= _MOST and all(op.type in _CHEAP for op in more) else None

    def _outlet(
        self,
        tensor: Tensor,
        ops: Collection[Op],
        fed: Collection[str],
        *,
        forward: bool,
        beyond: bool = False,
    ) -> Tensor:
        if not beyond and as_it_is(tensor, forward=forward, among=ops):
            return tensor
        made = self._shadows.get(tensor.op)
        if made is None and self.graph.finalized:
            raise Unseen(
                "TensorFlow may fuse it with what follows, and the graph is finalized: attach before that"
            )
        if made is None:
            with self.graph.as_default(), self.graph.control_dependencies(None):
                shadow = shadow_of(tensor, self._shadows, ops)
            if shadow is None:
                raise Unseen(
                    "TensorFlow may fuse it with what follows, and a copy of it would be read while weights change"
                )
            return shadow
        shadow = made.outputs[tensor.value_index]
        mine = set(self._shadows.values())
        if executed([made], fed) - mine - set(ops):
            raise Unseen("what this session runs does not compute it")
        return shadow
