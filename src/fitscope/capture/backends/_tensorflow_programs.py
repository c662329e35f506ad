"""How a tapped step runs on TensorFlow: in place of the user's own, compared with it, or beside it.

A step changes variables in place. What it may change is what its graph has captured, so those variables are read before a second run
and assigned afterwards; TensorFlow copies a variable only when somebody writes to it while another holds its value, so that
reading costs nothing and assigning puts the old buffer back. A batch that was drawn is given again by an iterator with the element spec of
the user's own, so that the user's own function runs the very graph that it would have run.

Some operations keep state that nobody can save: `tf.random` draws from generators inside the kernels, `tf.py_function` calls Python. A
step that has such operations is not run twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fitscope.capture.backends._base import Call, Harvest, Held, Obstacle, Outcome, Program, TapFailed

_BY_CONSTRUCTION = (
    "an eager step runs the same operations in the same order; a tap keeps a reference, and asks the tape in the call "
    "that the step makes anyway"
)


class Trace(Protocol):
    """A step in the making: see `_Trace` in the adapter."""

    compiled: bool

    @property
    def ran(self) -> bool: ...

    def harvest(self, tensors: dict[str, Any]) -> Harvest: ...


class _Graph(Program):
    """A step whose state is in the variables that its graph has captured."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._obstacles: dict[Any, Obstacle | None] = {}  # by graph
        self._handles: list[Any] = []  # of all variables that those graphs may change
        self.identical = None if trace.compiled else _BY_CONSTRUCTION

    def _concrete(self, call: Call) -> Any:
        """The graph that serves these arguments, traced if need be."""
        raise NotImplementedError

    def obstacle(self, held: Held) -> Obstacle | None:
        assert isinstance(held, _Variables)
        try:
            concrete = self._concrete(held.call())
            if concrete.graph not in self._obstacles:
                self._obstacles[concrete.graph] = _stateful(concrete.graph)
                known = {id(handle) for handle in self._handles}
                self._handles += [h for h in _captured_variables(concrete) if id(h) not in known]
        except Exception as error:
            raise TapFailed(error, held.call()) from error
        held.handles = self._handles
        return self._obstacles[concrete.graph]

    def look(self, held: Held) -> list[Harvest]:
        assert isinstance(held, _Variables)
        held.handles = self._handles
        return super().look(held)


class Step(_Graph):
    """A step of the user's own: a `tf.function`, or a plain function that runs eagerly."""

    def __init__(self, tapped: Any, trace: Trace, *, compiled: bool, xla: bool) -> None:
        super().__init__(trace)
        self._tapped = tapped
        self._compiled = compiled
        self._xla = xla

    def take(self, call: Call) -> Outcome:
        try:
            result, tensors = call.of(self._tapped)
        except Exception as error:
            if self._trace.ran:
                raise
            raise TapFailed(error, call) from error
        return result, [self._trace.harvest(tensors)]

    def signature(self, call: Call) -> Hashable:
        return _signature(call, shapes=self._xla)

    def hold(self, call: Call) -> Held:
        return _Arguments(call)

    def obstacle(self, held: Held) -> Obstacle | None:
        if any(isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten(held.call())):
            return Obstacle(
                "the step draws its batch from an iterator, which cannot be drawn twice", beside=False
            )
        return super().obstacle(held)

    def _concrete(self, call: Call) -> Any:
        return self._tapped.get_concrete_function(*call.args, **call.kwargs)


class Predict(_Graph):
    """The step of `predict`: Keras draws the batches itself, and gives all of one execution at once."""

    def __init__(self, model: Any, trace: Trace, on_data: Any) -> None:
        super().__init__(trace)
        self._model = model
        self._on_data = on_data

    def take(self, call: Call) -> Outcome:
        (batches,) = call.args
        outputs: list[Any] = []
        harvests: list[Harvest] = []
        for data in batches:
            try:
                output, tensors = self._on_data(without_optionals(data))
            except Exception as error:
                if self._trace.ran or outputs:
                    raise
                raise TapFailed(error, call, harvests) from error
            outputs.append(output)
            harvests.append(self._trace.harvest(tensors))
        if len(outputs) > 1:
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs), harvests
        return outputs[0], harvests

    def signature(self, call: Call) -> Hashable:
        return _signature(call, shapes=True)

    def hold(self, call: Call) -> Held:
        return _Arguments(call)

    def _concrete(self, call: Call) -> Any:
        return self._on_data.get_concrete_function(without_optionals(call.args[0][0]))


class Fit(_Graph):
    """The step of `fit` or `evaluate`: several of them where Keras runs several in one call."""

    def __init__(self, model: Any, trace: Trace, on_data: Any, on_iterator: Any, on_optional: Any) -> None:
        super().__init__(trace)
        self._model = model
        self._on_data, self._on_iterator, self._on_optional = on_data, on_iterator, on_optional

    def take(self, call: Call) -> Outcome:
        (iterator,) = call.args
        logs: Any = None
        harvests: list[Harvest] = []
        drawn: list[Any] = []
        # Keras runs several steps in one call as a loop in the graph, which shows the last of them only. Here each is
        # a step of its own.
        for done in range(self._model.steps_per_execution):
            try:
                if not _of_tensorflow(iterator):
                    batch = next(iterator)
                    drawn = [lambda batch=batch: batch]
                    logs, tensors = self._on_data(without_optionals(batch))
                elif self._model.steps_per_execution == 1:
                    logs, tensors = self._on_iterator(iterator)
                else:
                    # Asked for, as Keras does here: a graph that finds no batch counts the step all the same.
                    optional = iterator.get_next_as_optional()
                    if not optional.has_value():
                        raise StopIteration
                    drawn = [optional.get_value]
                    logs, tensors = self._on_optional(optional)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not done:
                    raise
                break
            except Exception as error:
                if self._trace.ran:
                    raise
                rest = iterator
                if drawn:
                    rest = itertools.chain((value() for value in drawn), iterator)
                    rest = itertools.islice(rest, self._model.steps_per_execution - done)
                raise TapFailed(error, Call((rest,), {}), harvests) from error
            harvests.append(self._trace.harvest(tensors))
        return logs, harvests

    def signature(self, call: Call) -> Hashable:
        (iterator,) = call.args
        if not _of_tensorflow(iterator) or self._model.jit_compile:
            return None  # XLA compiles a program for each shape
        return str(iterator.element_spec)

    def hold(self, call: Call) -> Held:
        (iterator,) = call.args
        many = self._model.steps_per_execution
        if isinstance(iterator, tf.distribute.DistributedIterator):
            return _Arguments(call)
        if not _of_tensorflow(iterator):
            batches = [next(iterator), *itertools.islice(iterator, many - 1)]
            return _Batches(batches, lambda: iter(batches))
        first = iterator.get_next()
        following = (iterator.get_next_as_optional() for _ in range(many - 1))
        batches = [first, *(o.get_value() for o in itertools.takewhile(lambda o: o.has_value(), following))]
        return _Batches(batches, lambda: _again(iterator, batches))

    def obstacle(self, held: Held) -> Obstacle | None:
        if isinstance(held.call().args[0], tf.distribute.DistributedIterator):
            return Obstacle("the batches of tf.distribute cannot be given twice", beside=False)
        return super().obstacle(held)

    def _concrete(self, call: Call) -> Any:
        (iterator,) = call.args
        if not _of_tensorflow(iterator):
            return self._on_data.get_concrete_function(without_optionals(next(iterator)))
        if self._model.steps_per_execution == 1:
            return self._on_iterator.get_concrete_function(iterator)
        return self._on_optional.get_concrete_function(iterator.get_next_as_optional())


def _of_tensorflow(iterator: Any) -> bool:
    return isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator)


def without_optionals(data: Any) -> Any:
    """tf.data carries a missing target as an Optional; the step expects None."""
    return tf.nest.map_structure(
        lambda item: None if isinstance(item, tf.experimental.Optional) else item, data
    )


def _again(iterator: Any, batches: list[Any]) -> Any:
    """An iterator over batches that were drawn from another one, with its element spec: its shapes may be less than known."""
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    drawn = iter(dataset)
    return type(drawn)(components=[drawn._iterator_resource], element_spec=iterator.element_spec)


# ---- the state -----------------------------------------------------------------------------------------------


class _Variables(Held):
    """Arguments that a run leaves as they are; it changes the variables behind these handles."""

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


class _Arguments(_Variables):
    def __init__(self, call: Call) -> None:
        self._call = call

    def call(self) -> Call:
        return self._call

    rehearsal = call


class _Batches(_Variables):
    def __init__(self, batches: list[Any], again: Callable[[], Any]) -> None:
        self._again = again
        self.signature = _signature(batches, shapes=True)

    def call(self) -> Call:
        return Call((self._again(),), {})

    rehearsal = call


def _read(handle: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=_dtype(handle))


def _dtype(handle: Any) -> Any:
    return tf.dtypes.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def _captured_variables(concrete: Any) -> list[Any]:
    """The handles of the variables that a graph may change."""
    handles = [handle for handle in concrete.captured_inputs if handle.dtype == tf.resource]
    data = [getattr(handle, "_handle_data", None) for handle in handles]
    return [
        h for h, d in zip(handles, data, strict=True) if d is not None and d.is_set and len(d.shape_and_type)
    ]


def _leaves(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if leaf is not None]


def _signature(structure: Any, *, shapes: bool) -> Hashable:
    """What makes a `tf.function` trace again, and with `shapes` what makes XLA compile again."""

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
        return bool(tf.reduce_all(left == right))
    return bool(a.numpy().tobytes() == b.numpy().tobytes())


_BITS = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


# ---- what must not happen twice --------------------------------------------------------------------------------

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


def _stateful(graph: Any) -> Obstacle | None:
    """Why a graph must not be run twice, if it must not."""
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
