"""Adds outputs to a TensorFlow graph without changing the rest of it.

Before a graph runs, TensorFlow rewrites it: a product, its bias and its activation become one fused operation, and sums of sums
one sum. It does so only if nothing else uses the values in between. Returning such a value would be a use: the rewrite would not
happen, the step would round differently, and training would no longer be bit-identical.

So a value with exactly one use, by an operation it could be fused with, is returned from a *shadow*: a second copy of its
operation on the same inputs, marked so that TensorFlow does not merge the two. A value with several uses is never fused away and
is returned directly. Most layer outputs are, because the backward pass needs them too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

#: Operations that are never fused with their inputs, or whose fusion only moves bytes.
_HARMLESS = {
    "AvgPool", "BatchMatMulV2", "Cast", "ConcatV2", "Conv1D", "Conv2D", "Conv2DBackpropInput", "Conv3D",
    "DepthwiseConv2dNative", "Einsum", "ExpandDims", "Identity", "MatMul", "MaxPool", "Mean", "Pack", "Pad",
    "PadV2", "Prod", "Reshape", "Slice", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits",
    "Split", "Squeeze", "StridedSlice", "Sum", "Tile", "Transpose", "Unpack",
}  # fmt: skip

#: Activations: TensorFlow fuses them with a product and its bias, and with nothing else.
_ACTIVATIONS = {"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"}
_PRODUCTS = {"BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul"}

_NORMS = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}

#: Operations that sum: cheap to repeat, and TensorFlow folds them into one another where it can.
_SUMS = {"Add", "AddV2", "AddN", "Sub"}

#: Operations of the backward pass that are expensive to repeat. TensorFlow fuses their results into nothing, not even into a sum.
_GRADIENTS = {
    "AvgPoolGrad", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput",
    "MaxPoolGrad",
}  # fmt: skip

#: Elementwise operations that round exactly: on some of the rows they give the same bits.
_BY_NUMBER = {*_SUMS, "BiasAdd", "LeakyRelu", "Mul", "Relu", "Relu6", "ReluGrad", "SelectV2"}

#: Operations that look at a tensor's shape only. They do not count as a use: TensorFlow finds another way for them.
_SHAPE_ONLY = {"Rank", "Shape", "ShapeN", "Size"}

#: Operations whose results a sum of more than two takes as they are: nothing is fused into such a sum but sums and multiples.
_SUMMED_AS_THEY_ARE = {
    *_GRADIENTS, *_PRODUCTS, "BiasAddGrad", "Conv2DBackpropFilter", "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter", "Sum",
}  # fmt: skip

#: The borders of a TF1 loop or branch. Nothing is fused across them, and they must not be there twice.
_BORDERS = {"Enter", "Exit", "Merge", "NextIteration", "Switch"}

#: Operations that may return their input buffer itself.
_SAME_BUFFER = {
    "Enter", "ExpandDims", "Identity", "IdentityN", "PreventGradient", "RefIdentity", "Reshape", "Snapshot", "Squeeze",
    "StopGradient",
}  # fmt: skip

_MOST = 24  #: operations in one shadow
_MARK = "_fitscope_shadow"  #: the attribute that marks a shadow


class NoShadow(Exception):  # noqa: N818 - a message: why a value cannot be computed separately
    """The reason why a tensor has no shadow."""


@dataclass(frozen=True, eq=False, slots=True)
class Excerpt:
    """The part of a graph that runs: uses outside it do not count."""

    ops: Collection[Any] | None = None  #: the operations that run; None: all
    fed: Collection[str] = ()  #: names of tensors that are fed
    written: Collection[str] | None = None  #: reference variables that it may write to; None: any

    def runs(self, op: Any) -> bool:
        return self.ops is None or op in self.ops

    def users(self, tensor: Any) -> list[Any]:
        return [op for op in tensor.consumers() if op.type not in _SHAPE_ONLY and self.runs(op)]


WHOLE = Excerpt()


def handed_out(tensor: Any, done: dict[Any, Any], *, forward: bool) -> Any:
    """The tensor, or its shadow if returning the tensor would change how TensorFlow rewrites the graph.

    `done` holds the shadows made so far in this graph. Gradients come from operations that are never fused with later ones,
    except for sums.
    """
    if as_it_is(tensor, forward=forward):
        return tensor
    try:
        return shadow_of(tensor, done)
    except NoShadow:
        return tensor


def shadow_of(tensor: Any, done: dict[Any, Any], excerpt: Excerpt = WHOLE) -> Any:
    """The same value, computed separately. Raises `NoShadow` if that would be too expensive or unsafe."""
    return _shadow(tensor, done, [_MOST], excerpt)


def as_it_is(tensor: Any, *, forward: bool, excerpt: Excerpt = WHOLE) -> bool:
    """Whether the tensor can be returned itself."""
    return _settled(tensor, excerpt) or not (forward or tensor.op.type in _SUMS)


def fits(shadow: Any, originals: Mapping[Any, Any], excerpt: Excerpt) -> bool:
    """Whether a shadow made for another excerpt serves this one, which must compute its inputs anyway."""
    return all(_fits(x, shadow, originals, excerpt) for x in shadow.inputs)


def _fits(x: Any, shadow: Any, originals: Mapping[Any, Any], excerpt: Excerpt) -> bool:
    if x.op in originals:
        return fits(x.op, originals, excerpt)
    if x.name in excerpt.fed:
        return True
    settled = _is_source(x, excerpt) or _stays(x, originals[shadow], excerpt)
    return settled and excerpt.runs(x.op) and not changes(x, excerpt)


def changes(x: Any, excerpt: Excerpt) -> bool:
    """Whether this is the buffer of a TF1 reference variable, which the run may overwrite before it is read."""
    while not x.dtype._is_ref_dtype:
        if x.op.type not in _SAME_BUFFER or x.name in excerpt.fed:
            return False
        x = x.op.inputs[x.value_index]
    return (
        excerpt.written is None or x.op.type not in ("Variable", "VariableV2") or x.op.name in excerpt.written
    )


def rows_of(tensor: Any, numbers: Any) -> Any:
    """Some rows of a tensor, by index. An elementwise shadow computes only these rows."""
    op = tensor.op
    if op.type not in _BY_NUMBER or not _is_shadow(op) or any(x.shape.rank is None for x in op.inputs):
        return tf.gather(tensor, numbers)
    inputs = []
    for x in op.inputs:
        if x.shape.rank < tensor.shape.rank or x.shape[0] == 1:
            inputs.append(x)  # the same for all rows
        elif x.shape[0] is not None and x.shape[0] == tensor.shape[0]:
            inputs.append(rows_of(x, numbers))
        else:  # it may have one row for all samples
            inputs.append(rows_of(x, tf.minimum(numbers, tf.shape(x)[0] - 1)))
    return _again(op, inputs, "rows").outputs[tensor.value_index]


def _settled(tensor: Any, excerpt: Excerpt) -> bool:
    """Whether one more use of the tensor changes nothing."""
    if tensor.op.type in _ACTIVATIONS and _normalized(tensor.op.inputs[0], excerpt):
        return False
    users = excerpt.users(tensor)
    if len(users) != 1 or users[0].type in _HARMLESS:
        return True
    return users[0].type in _ACTIVATIONS and not _made_to_be_fused(tensor)


def _made_to_be_fused(tensor: Any) -> bool:
    """Whether the tensor is a product or a norm, or one plus an addend (perhaps reshaped)."""
    makers = [tensor.op, *(x.op for x in tensor.op.inputs)]
    makers += [x.op for maker in makers[1:] if maker.type == "Reshape" for x in maker.inputs]
    return any(maker.type in _PRODUCTS or maker.type in _NORMS for maker in makers)


def _normalized(tensor: Any, excerpt: Excerpt) -> bool:
    """Whether the tensor is a batch norm, or one plus an addend, that is fused with its activation. TensorFlow does not fuse an activation
    that is an output of the graph.
    """
    makers = [tensor.op, *(x.op for x in tensor.op.inputs if tensor.op.type in _SUMS)]
    return len(excerpt.users(tensor)) == 1 and any(maker.type in _NORMS for maker in makers)


def _shadow(tensor: Any, done: dict[Any, Any], budget: list[int], excerpt: Excerpt) -> Any:
    op = tensor.op
    if op not in done:
        if _is_source(tensor, excerpt):
            return tensor
        budget[0] -= excerpt.runs(op)  # an operation that the run skips is not repeated
        if budget[0] < 0:
            raise NoShadow(f"computing it separately would take more than {_MOST} operations")
        if any(changes(x, excerpt) for x in op.inputs):
            raise NoShadow("a copy of it would read weights while the step changes them")
        # An input with several uses is itself never fused away. One with a single use, this operation, may be.
        inputs = [x if _stays(x, op, excerpt) else _shadow(x, done, budget, excerpt) for x in op.inputs]
        done[op] = _again(op, inputs, "shadow")
    return done[op].outputs[tensor.value_index]


def _is_source(tensor: Any, excerpt: Excerpt) -> bool:
    """Whether nothing is ever fused into the tensor."""
    op = tensor.op
    alone = not op.inputs or op.op_def.is_stateful or op.control_inputs or op.type in _BORDERS
    return tensor.name in excerpt.fed or bool(alone)


def _again(op: Any, inputs: list[Any], name: str) -> Any:
    """A second copy of an operation on these inputs, marked as fitscope's."""
    attrs = {name: op.node_def.attr[name] for name in op.node_def.attr}
    attrs[_MARK] = tf.compat.v1.AttrValue(b=True)
    return op.graph.create_op(
        op.type, inputs, [out.dtype for out in op.outputs], name=f"{op.name}/{name}", attrs=attrs
    )


def _is_shadow(op: Any) -> bool:
    return _MARK in op.node_def.attr


def _stays(x: Any, op: Any, excerpt: Excerpt) -> bool:
    """Whether the shadow of an operation may use this input directly."""
    if not excerpt.runs(x.op):
        return False
    if op.type == "AddN" and len(op.inputs) > 2 and x.op.type in _SUMMED_AS_THEY_ARE:
        return True
    users = excerpt.users(x)
    if len(users) != 1 or x.op.type in _GRADIENTS:
        return True
    return (users[0] is not op or op.type in _PRODUCTS) and _settled(
        x, excerpt
    )  # TensorFlow fuses nothing into a product
