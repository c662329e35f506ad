"""Takes a tensor out of a run that computes it anyway, and keeps the run bit-identical.

Fetching a tensor uses it, and TensorFlow fuses operations only if nothing else uses the values in between. So a tensor that could
be fused away is fetched from its shadow (`backends._tensorflow_shadow`), which must be added before the graph is finalized. A tensor that
the run does not compute is fetched only if that takes a few cheap operations (a softmax of its logits), never if it takes data or
weights.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fitscope.capture.backends._tensorflow_shadow import Excerpt, NoShadow, as_it_is, changes, fits, shadow_of
from fitscope.capture.sessions.graph import SHAPE_ONLY, SOURCES, Op, Tensor, executed
from fitscope.capture.sessions.packed import Pack, packable

#: Operations that may run in addition: they turn outputs into probabilities, classes, an accuracy or a loss.
_CHEAP = {
    "Abs", "Add", "AddN", "AddV2", "All", "Any", "ArgMax", "Cast", "ClipByValue", "ConcatV2", "Const", "Cosh", "DivNoNan",
    "Equal", "Exp", "ExpandDims", "Fill", "GatherNd", "GatherV2", "Greater", "GreaterEqual", "Identity", "IsFinite", "L2Loss",
    "Less", "LessEqual", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "Max", "Maximum", "Mean", "Min",
    "Minimum", "Mul", "Neg", "NoOp", "NotEqual", "OneHot", "OnesLike", "Pack", "Pow", "Prod", "Range", "Rank", "RealDiv", "Relu",
    "Reshape", "Round", "Select", "SelectV2", "Shape", "Sigmoid", "Sign", "Size", "Slice", "Softmax",
    "SoftmaxCrossEntropyWithLogits", "Softplus", "SparseSoftmaxCrossEntropyWithLogits", "Sqrt", "Square", "SquaredDifference",
    "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum", "Tanh", "TopKV2", "Transpose", "Xlogy", "ZerosLike",
}  # fmt: skip
_MOST = 32  #: additional operations, without those that were created before the run

#: The operations of a hand-written loss: the difference, those after it, and those that compute its prediction and label.
_DIFFERENCES = {"SquaredDifference", "Sub"}
_AFTER = {"Abs", "Mul", "Square"}
_OUTPUTS = {"Add", "AddV2", "BiasAdd", "MatMul", "Reshape", "Squeeze"}
_DATA = {*SOURCES, "Cast", "ExpandDims", "Reshape", "Squeeze"}


class Unseen(Exception):  # noqa: N818 - a message: why a tensor cannot be fetched
    """The reason why a tensor cannot be taken out of a run."""


class Outlets:
    """The outlets of one graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._made: dict[Op, list[Op]] = {}  # the shadows of each operation
        self._originals: dict[Op, Op] = {}  # the original of each shadow
        self._packs: list[tuple[dict[str, str], Pack]] = []

    def pack(self, tensors: dict[str, Tensor]) -> Pack | None:
        """The statistics of these tensors, computed in the graph. In a finalized graph: as many as it already has."""
        names = {name: tensor.name for name, tensor in tensors.items() if packable(tensor)}
        if not self.graph.finalized and names and all(names != known for known, _ in self._packs):
            with self.graph.as_default(), self.graph.control_dependencies(None), tf.name_scope("fitscope/"):
                self._packs.append((names, Pack({name: tensors[name] for name in names})))
        fitting = [(known, pack) for known, pack in self._packs if known.items() <= names.items()]
        return max(fitting, key=lambda found: len(found[0]))[1] if fitting else None

    def of(self, tensor: Tensor, excerpt: Excerpt, *, forward: bool = True) -> Tensor:
        """The tensor to fetch instead of a tensor, in a run of this excerpt of the graph."""
        if tensor.name in excerpt.fed:
            return tensor
        if not self.graph.is_fetchable(tensor):
            raise Unseen("it is computed inside a loop or a branch")
        more = self._more(tensor, excerpt)
        if more is None:
            raise Unseen("what this session runs does not compute it")
        if changes(tensor, excerpt):
            raise Unseen("it is a variable that this run writes to: watch its weights")
        edge = {
            x.name: x
            for op in more
            for x in op.inputs
            if excerpt.runs(x.op)
            and x.name not in excerpt.fed
            and len(x.op.inputs)  # TensorFlow fuses nothing into a constant
        }
        if any(changes(x, excerpt) for op in more for x in op.inputs):
            raise Unseen(
                "this run does not compute it, and weights that it is made of change meanwhile: fetch it together with the step"
            )
        mine = edge if more else {tensor.name: tensor}
        if all(
            as_it_is(x, forward=forward or bool(more), excerpt=excerpt) or _compared(x, excerpt)
            for x in mine.values()
        ):
            return tensor
        return self._shadow(tensor, excerpt)

    def computed(self, tensor: Tensor, excerpt: Excerpt) -> bool:
        """Whether a run of this excerpt computes the tensor, up to a few cheap operations."""
        return tensor.name not in excerpt.fed and self._more(tensor, excerpt) is not None

    def _more(self, tensor: Tensor, excerpt: Excerpt) -> set[Op] | None:
        """The additional operations for a tensor; None if there are too many."""
        more = executed([tensor.op], excerpt.fed) - set(excerpt.ops or ())
        working = [op for op in more if op.type != "Const" and op.type not in SHAPE_ONLY]
        return more if len(working) <= _MOST and all(op.type in _CHEAP for op in more) else None

    def _shadow(self, tensor: Tensor, excerpt: Excerpt) -> Tensor:
        """The shadow of a tensor. A shadow made for another run serves too, if it reads nothing else."""
        known = {
            original: made
            for original, all_made in self._made.items()
            for made in all_made
            if fits(made, self._originals, excerpt)
        }
        if tensor.op in known:
            return known[tensor.op].outputs[tensor.value_index]
        if self.graph.finalized:
            raise Unseen(
                "TensorFlow may fuse it with what follows, and the graph is finalized: attach before that"
            )
        done = dict(known)
        try:
            with self.graph.as_default(), self.graph.control_dependencies(None):
                return shadow_of(tensor, done, excerpt)
        except NoShadow as why:
            raise Unseen(f"TensorFlow may fuse it with what follows, and {why}") from None
        finally:
            for original in done.keys() - known.keys():
                self._made.setdefault(original, []).append(done[original])
                self._originals[done[original]] = original


def _compared(tensor: Tensor, excerpt: Excerpt) -> bool:
    """Whether a tensor only enters a difference from a label, or is such a difference. TensorFlow folds differences only with constants."""
    users = excerpt.users(tensor)
    if tensor.op.type in _DIFFERENCES:
        return any(x.op.type in _DATA for x in tensor.op.inputs) and all(u.type in _AFTER for u in users)
    if len(users) != 1 or users[0].type not in _DIFFERENCES or tensor.op.type not in _OUTPUTS:
        return False
    return all(x.op.type in _DATA for x in users[0].inputs if x.name != tensor.name)
