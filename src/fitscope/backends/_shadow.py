"""Outputs of a TensorFlow graph that leave the rest of it as it was.

Before a graph runs, TensorFlow rewrites it: a product, its bias and its activation become one fused operation, sums of sums one sum.
It does so only while nobody else uses the values in between. Handing such a value out would be a use, the rewrite
would not happen, and the step would round differently: training would no longer be bit-identical.

So a value that has exactly one use, by an operation it could be fused with, is handed out from a *shadow*: the operation
that made it, again, on the same inputs, marked so that TensorFlow does not merge the two. What already has several uses is never fused
away, and is handed out as it is: most outputs of layers, because the backward pass needs them too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

#: Operations that a value may be handed to without ever being fused into them, or whose fusion moves bytes only.
_HARMLESS = {
    "AvgPool", "BatchMatMulV2", "Cast", "ConcatV2", "Conv1D", "Conv2D", "Conv2DBackpropInput", "Conv3D",
    "DepthwiseConv2dNative", "Einsum", "ExpandDims", "Identity", "MatMul", "MaxPool", "Mean", "Pack", "Pad",
    "PadV2", "Prod", "Reshape", "Slice", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits",
    "Split", "Squeeze", "StridedSlice", "Sum", "Tile", "Transpose", "Unpack",
}  # fmt: skip

#: Activations, which are fused with a product and its bias and with nothing else.
_ACTIVATIONS = {"Elu", "LeakyRelu", "Relu", "Relu6", "Sigmoid", "Tanh"}
_PRODUCTS = {"BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul"}

_NORMS = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}

#: Operations that sum: cheap to do again, and folded into one another wherever that is possible.
_SUMS = {"Add", "AddV2", "AddN", "Sub"}

#: Operations of the backward pass whose results are never fused into anything, not even into a sum: expensive to do again.
_GRADIENTS = {
    "AvgPoolGrad", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput",
    "MaxPoolGrad",
}  # fmt: skip

#: Operations that work number by number and round exactly: on some rows alone they give the same.
_BY_NUMBER = {*_SUMS, "BiasAdd", "LeakyRelu", "Mul", "Relu", "Relu6", "ReluGrad", "SelectV2"}

#: Operations that look at a tensor's shape only. They do not count as a use: TensorFlow finds another way for them.
_SHAPE_ONLY = {"Rank", "Shape", "ShapeN", "Size"}

_MOST = 24  #: operations in one shadow
_MARK = "_fitscope_shadow"  #: an attribute


def handed_out(
    tensor: Any, done: dict[Any, Any], *, forward: bool, among: Collection[Any] | None = None
) -> Any:
    """The tensor, or its shadow where handing it out would change how the graph is rewritten.

    `done` holds the shadows made so far in this graph. Gradients are made by operations that are never fused with what
    follows, except for sums. In a graph of which only a part is run, `among` are the operations of that part: a use by any
    other does not count.
    """
    if as_it_is(tensor, forward=forward, among=among):
        return tensor
    shadow = shadow_of(tensor, done, among)
    return tensor if shadow is None else shadow


def shadow_of(tensor: Any, done: dict[Any, Any], among: Collection[Any] | None = None) -> Any | None:
    """The same value, computed beside the graph; None where that would be too much, or unsafe."""
    try:
        return _shadow(tensor, done, [_MOST], among)
    except _NoShadow:
        return None


def as_it_is(tensor: Any, *, forward: bool, among: Collection[Any] | None = None) -> bool:
    """Whether the tensor can be handed out itself."""
    return _settled(tensor, among) or not (forward or tensor.op.type in _SUMS)


def rows_of(tensor: Any, numbers: Any) -> Any:
    """Some rows of a tensor, by their numbers. Of a shadow that is made number by number no others are computed."""
    op = tensor.op
    if op.type not in _BY_NUMBER or not _is_shadow(op) or any(x.shape.rank is None for x in op.inputs):
        return tf.gather(tensor, numbers)
    inputs = []
    for x in op.inputs:
        if x.shape.rank < tensor.shape.rank or x.shape[0] == 1:
            inputs.append(x)  # the same for all rows
        elif x.shape[0] is not None and x.shape[0] == tensor.shape[0]:
            inputs.append(rows_of(x, numbers))
        else:  # it may turn out to have one row for all
            inputs.append(rows_of(x, tf.minimum(numbers, tf.shape(x)[0] - 1)))
    return _again(op, inputs, "rows").outputs[tensor.value_index]


class _NoShadow(Exception):  # noqa: N818 - a message within this file
    pass


def _settled(tensor: Any, among: Collection[Any] | None) -> bool:
    """Whether one more use of the tensor changes nothing."""
    if tensor.op.type in _ACTIVATIONS and _normalized(tensor.op.inputs[0], among):
        return False
    users = _users(tensor, among)
    if len(users) != 1 or users[0].type in _HARMLESS:
        return True
    return users[0].type in _ACTIVATIONS and not _made_to_be_fused(tensor)


def _made_to_be_fused(tensor: Any) -> bool:
    """Whether the tensor is a product or a norm, or one to which something was added (and reshaped on the way)."""
    makers = [tensor.op, *(x.op for x in tensor.op.inputs)]
    makers += [x.op for maker in makers[1:] if maker.type == "Reshape" for x in maker.inputs]
    return any(maker.type in _PRODUCTS or maker.type in _NORMS for maker in makers)


def _normalized(tensor: Any, among: Collection[Any] | None) -> bool:
    """Whether the tensor is a batch norm, or one to which something was added, that goes on as one operation with its
    activation. TensorFlow does not do that for an activation that is an output of the graph, however often it is used.
    """
    makers = [tensor.op, *(x.op for x in tensor.op.inputs if tensor.op.type in _SUMS)]
    return len(_users(tensor, among)) == 1 and any(maker.type in _NORMS for maker in makers)


def _users(tensor: Any, among: Collection[Any] | None) -> list[Any]:
    return [op for op in tensor.consumers() if op.type not in _SHAPE_ONLY and (among is None or op in among)]


def _shadow(tensor: Any, done: dict[Any, Any], budget: list[int], among: Collection[Any] | None) -> Any:
    op = tensor.op
    if op not in done:
        if not op.inputs or op.op_def.is_stateful or op.control_inputs:
            return tensor  # a source: nothing is fused into it
        budget[0] -= 1
        if budget[0] < 0 or any(_changes(x) for x in op.inputs):
            raise _NoShadow
        # An input with several uses is itself never fused away. One with a single use, this operation, may be.
        inputs = [x if _stays(x, op, among) else _shadow(x, done, budget, among) for x in op.inputs]
        done[op] = _again(op, inputs, "shadow")
    return done[op].outputs[tensor.value_index]


def _again(op: Any, inputs: list[Any], name: str) -> Any:
    """An operation once more, on these inputs, marked as ours."""
    attrs = {name: op.node_def.attr[name] for name in op.node_def.attr}
    attrs[_MARK] = tf.compat.v1.AttrValue(b=True)
    return op.graph.create_op(
        op.type, inputs, [out.dtype for out in op.outputs], name=f"{op.name}/{name}", attrs=attrs
    )


def _is_shadow(op: Any) -> bool:
    return _MARK in op.node_def.attr


def _changes(x: Any) -> bool:
    """Whether this is the buffer of a TF1 reference variable, which the step may write to before a shadow reads it."""
    maker = x.op
    return bool(x.dtype._is_ref_dtype or (maker.type == "Identity" and maker.inputs[0].dtype._is_ref_dtype))


def _stays(x: Any, op: Any, among: Collection[Any] | None) -> bool:
    """Whether the shadow of an operation may use this input as it is."""
    users = _users(x, among)
    return len(users) != 1 or x.op.type in _GRADIENTS or (users[0] is not op and _settled(x, among))
