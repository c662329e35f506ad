"""Supports a second run of a TensorFlow step: repeats the batch, restores the variables, and decides whether it may run twice.

A step changes variables in place. It can change only those that its graph captured, so those are read before a second run
and assigned afterwards; TensorFlow copies a variable only on a write while its old value is referenced, so that
reading costs nothing and assigning puts the old buffer back.

Some operations keep state that cannot be saved: `tf.random` draws from generators inside the kernels, `tf.py_function` calls Python. A
step that has such operations is not run twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import tensorflow as tf

from fitscope.capture.backends._base import Call, Held, Obstacle
from fitscope.capture.bits import same_bits


class HeldVariables(Held):
    """Arguments that a run does not change; it changes the variables behind these handles."""

    handles: list[Any]

    def save(self) -> None:
        self._saved = [_read(handle) for handle in self.handles]

    def restore(self) -> None:
        for handle, value in zip(self.handles, self._saved, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def after(self, result: Any) -> tuple[Any, list[Any]]:
        return result, [_read(handle) for handle in self.handles]

    def result(self, after: Any) -> Any:
        return after[0]

    def adopt(self, after: Any) -> None:
        self._saved = after[1]
        self.restore()

    def numbers(self, after: Any) -> int:
        return sum(
            int(np.prod(leaf.shape, dtype=np.int64)) for leaf in _leaves(after) if hasattr(leaf, "shape")
        )

    def same(self, one: Any, other: Any) -> str | None:
        left, right = _leaves(one), _leaves(other)
        if len(left) != len(right):
            return f"{len(left)} and {len(right)} tensors came back"
        differing = sum(not _same(a, b) for a, b in zip(left, right, strict=True))
        return f"{differing} of {len(left)} results and variables differ" if differing else None


class HeldArguments(HeldVariables):
    def __init__(self, call: Call) -> None:
        self._call = call

    def call(self) -> Call:
        return self._call

    rehearsal = call


class HeldBatches(HeldVariables):
    def __init__(self, batches: list[Any], again: Callable[[], Any]) -> None:
        self._again = again
        self.batches = batches
        self.signature = signature(batches, shapes=True)

    def call(self) -> Call:
        return Call((self._again(),), {})

    rehearsal = call


def _read(handle: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=_dtype(handle))


def _dtype(handle: Any) -> Any:
    return tf.dtypes.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def captured_variables(concrete: Any) -> list[Any]:
    """The handles of the variables that a graph may change."""
    handles = [handle for handle in concrete.captured_inputs if handle.dtype == tf.resource]
    data = [getattr(handle, "_handle_data", None) for handle in handles]
    return [
        h for h, d in zip(handles, data, strict=True) if d is not None and d.is_set and len(d.shape_and_type)
    ]


def _leaves(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if leaf is not None]


def signature(structure: Any, *, shapes: bool) -> Hashable:
    """The key that makes a `tf.function` trace again and, with `shapes`, XLA compile again."""

    def of(leaf: Any) -> Hashable:
        if isinstance(leaf, tf.Tensor | np.ndarray):
            return (tuple(leaf.shape) if shapes else len(leaf.shape)), str(leaf.dtype)
        return str(type(leaf))

    return tuple(of(leaf) for leaf in _leaves(structure))


def _same(a: Any, b: Any) -> bool:
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == tf.string:
        return bool(np.array_equal(a.numpy(), b.numpy()))
    if "CPU" not in a.device and a.dtype.is_floating and a.dtype.size in _BITS:
        left, right = (tf.bitcast(x, _BITS[x.dtype.size]) for x in (a, b))
        both_nan = tf.logical_and(tf.math.is_nan(a), tf.math.is_nan(b))
        return bool(tf.reduce_all(tf.logical_or(left == right, both_nan)))
    return same_bits(a.numpy(), b.numpy())


_BITS = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


# ---- what must not happen twice ---------------------------------------------------------------------------------

#: Stateful operations whose state is in variables, in the batch or in nothing that matters.
_HARMLESS = (
    "Resource", "ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "VarHandleOp",
    "VarIsInitializedOp", "VariableShape", "DestroyResourceOp", "Iterator", "Optional", "StatefulPartitionedCall",
    "PartitionedCall", "If", "While", "Case", "Assert", "TensorList", "TensorArray", "Placeholder", "LookupTableFind",
    "LookupTableSize", "CheckNumerics", "XlaLaunch", "Collective", "Rng", "StatefulUniform", "StatefulStandardNormal",
    "StatefulTruncatedNormal", "StatefulRandomBinomial", "Stack", "EmptyTensorList", "NoOp", "AnonymousRandomSeedGenerator",
)  # fmt: skip
#: Operations that call Python or write somewhere: even a twin would do that twice.
_OUTWARD = (
    "PyFunc",
    "EagerPyFunc",
    "Print",
    "Write",
    "Save",
    "Summary",
    "Queue",
    "LookupTableInsert",
    "LookupTableImport",
)


def why_not_twice(graph: Any) -> Obstacle | None:
    """The reason why a graph must not run twice, if any."""
    from tensorflow.python.framework import op_def_registry

    definition = graph.as_graph_def()
    nodes = itertools.chain(definition.node, *(function.node_def for function in definition.library.function))
    names = dict.fromkeys(node.op for node in nodes)
    stateful = [n for n in names if (known := op_def_registry.get(n)) is not None and known.is_stateful]
    odd = [name for name in stateful if not name.startswith(_HARMLESS)]
    outward = [name for name in odd if any(word in name for word in _OUTWARD)]
    if outward:
        return Obstacle(
            f"the step calls Python or writes ({', '.join(outward)}), which must not happen twice",
            beside=False,
        )
    if odd:
        return Obstacle(
            f"the step has operations whose state cannot be saved ({', '.join(odd)}): the twin draws other random numbers than the "
            "step itself",
            beside=True,
        )
    return None
