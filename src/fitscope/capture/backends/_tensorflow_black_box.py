"""Keeps the steps of a model on TensorFlow. A step draws its batch from an iterator inside its graph.

The batch is drawn before the step and given to it by a second iterator with the element spec of the first, so the step runs the very
graph that it would have run. Making an iterator for every step costs milliseconds, so one iterator takes its elements from a queue.
The queue is refilled for each step; it never holds more than that step's batch, and nothing reads ahead of the step.

Variables change in place and nothing counts the changes. So the state is copied again at the first batch of an epoch, where Keras
and
callbacks assign most, and at every step of a custom loop. Before every other step the scalars of the optimizer are kept: callbacks
change the learning rate. fitscope misses a weight that a callback changes between two batches; a replay then reports that its
logs differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.util import structure

from fitscope.capture.backends._base import Call
from fitscope.capture.backends._black_box import Array, Keeper, logs_of
from fitscope.capture.backends._tensorflow_programs import again, held_batches
from fitscope.store.structure import Absent

MISSING = "a missing part of a batch"  #: stands for an Optional in a batch that was put together
FIRST = 4  #: the number of first steps that may create variables of the optimizer or of metrics


def array_of(tensor: Any) -> Array:
    """The array of a tensor. NumPy cannot read a single number in bfloat16 from TensorFlow."""
    number = tf.is_tensor(tensor) and tensor.dtype == tf.bfloat16 and tensor.shape.rank == 0
    return np.asarray(tensor.numpy() if number else tensor)


class TensorFlowKeeper(Keeper):
    _mailbox: _Mailbox | None = None
    _seen = 0  # steps
    missing = MISSING

    def why_not(self) -> str | None:
        if self.model.distribute_strategy.num_replicas_in_sync > 1:
            return "the model trains under tf.distribute"
        return None

    def held(self, call: Call) -> tuple[list[Any], Call, dict[str, Any]]:
        (iterator,) = call.args
        if isinstance(iterator, tf.distribute.DistributedIterator):
            return [], call, {}
        if not isinstance(iterator, tf.data.Iterator) or self.model.steps_per_execution > 1:
            held = held_batches(self.model, call)
            spec = getattr(iterator, "element_spec", None)
            return held.batches, held.call(), {} if spec is None else {"spec": _described(spec)}
        batch = iterator.get_next()
        spec = iterator.element_spec
        try:
            if self._mailbox is None or not self._mailbox.suits(spec):
                self._mailbox = _Mailbox(type(iterator), spec)
            return [batch], Call((self._mailbox.give(batch),), {}), {"spec": self._mailbox.described}
        except Exception:  # a queue does not take these elements; the batch is drawn, and the step needs it
            self._mailbox = None
            return [batch], Call((again(spec, [batch]),), {}), {"spec": _described(spec)}

    def state(self, call: Call) -> list[Array]:  # noqa: ARG002
        self._variables = self.variables()
        return [self.to_numpy(variable.value) for _, variable in self._variables]

    def changed(self, call: Call, first: bool) -> dict[int, Array] | None:
        self._seen += 1
        if not isinstance(call.args[0], tf.data.Iterator):  # a custom loop may do anything between two steps
            return None
        if first or (self._seen < FIRST and len(self._variables) != len(self.variables())):
            return None
        scalars = [
            n for n, (group, v) in enumerate(self._variables) if group.startswith("optimizer") and not v.shape
        ]
        return {n: self.to_numpy(self._variables[n][1].value) for n in scalars}

    def ran(self, result: Any) -> Any:
        if self._mailbox is not None:
            self._mailbox.full = False
        return logs_of(
            result,
            lambda value: np.size(value) if not tf.is_tensor(value) else value.shape.num_elements() or 0,
        )

    def random(self) -> dict[str, Array]:
        from keras.src.backend.common import global_state

        shared = global_state.get_global_attribute("global_seed_generator")
        seed = {} if shared is None else {"keras": self.to_numpy(shared.state.value)}
        return {**super().random(), **seed}

    def array(self, leaf: Any) -> Array | Absent:
        if isinstance(leaf, tf.experimental.Optional):
            return Absent()
        return super().array(leaf)

    def to_numpy(self, tensor: Any) -> Array:
        return np.array(array_of(tensor), copy=True)

    # ---- for a replay ----------------------------------------------------------------------------------------

    def build(self, batch: Any, facts: Mapping[str, Any]) -> None:
        from fitscope.capture.backends.tensorflow import ADAPTER

        self.model.make_train_function()
        ADAPTER.build(self.model, "train", *self.call([batch], facts).args)

    def tensor(self, array: Array, *, given: str) -> Any:
        return array if given == "numpy" else tf.constant(array)

    def call(self, batches: list[Any], facts: Mapping[str, Any]) -> Call:
        batches = [tf.nest.map_structure(_optional, batch, expand_composites=False) for batch in batches]
        if "spec" not in facts:
            return Call((iter(batches),), {})
        return Call((again(_relaxed(batches[0], facts["spec"]), batches),), {})

    def set_random(self, states: Mapping[str, Array]) -> None:
        super().set_random(states)
        if "keras" in states:
            from keras.src.random.seed_generator import global_seed_generator

            global_seed_generator().state.assign(states["keras"])


class _Mailbox:
    """An iterator over batches that are passed to it one at a time."""

    def __init__(self, kind: Any, spec: Any) -> None:
        self._spec = spec
        self.described = _described(spec)
        self.full = False
        types, shapes = structure.get_flat_tensor_types(spec), structure.get_flat_tensor_shapes(spec)
        self._queue = queue = tf.queue.FIFOQueue(1, types)

        def taken(_: Any) -> Any:
            found = queue.dequeue()
            found = found if isinstance(found, list | tuple) else [found]
            for tensor, shape in zip(found, shapes, strict=True):
                tensor.set_shape(shape)
            return structure.from_tensor_list(spec, list(found))

        options = tf.data.Options()  # no reading ahead: it would wait for a batch that Keras has not drawn
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False
        dataset = tf.data.Dataset.range(np.iinfo(np.int64).max).map(taken).with_options(options)
        drawn = iter(dataset)
        self._drawn = drawn
        self._iterator = kind(components=[drawn._iterator_resource], element_spec=spec)

    def suits(self, spec: Any) -> bool:
        """Whether it can stand for an iterator of this spec. After a step that failed, it may still hold that step's batch."""
        return not self.full and (self._spec is spec or self._spec == spec)

    def give(self, batch: Any) -> Any:
        self.full = True
        self._queue.enqueue(structure.to_tensor_list(self._spec, batch))
        return self._iterator


def _optional(leaf: Any) -> Any:
    return tf.experimental.Optional.empty(None) if leaf is MISSING else leaf


def _described(spec: Any) -> list[Any]:
    """The shapes of a spec, which may be partly unknown: None where a part has no such shape."""
    return [
        s.shape.as_list() if isinstance(s, tf.TensorSpec) and s.shape.rank is not None else None
        for s in tf.nest.flatten(spec)
    ]


def _relaxed(batch: Any, shapes: list[Any]) -> Any:
    """The spec of a batch with these shapes."""
    spec = tf.data.Dataset.from_tensors(batch).element_spec
    flat = [
        tf.TensorSpec(shape, s.dtype) if isinstance(s, tf.TensorSpec) and isinstance(shape, list) else s
        for s, shape in zip(tf.nest.flatten(spec), shapes, strict=True)
    ]
    return tf.nest.pack_sequence_as(spec, flat)
