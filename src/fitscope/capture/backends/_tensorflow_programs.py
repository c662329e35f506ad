"""How a tapped step runs on TensorFlow: instead of the user's own, compared with it, or alongside it.

A batch that was drawn is given again by an iterator with the element spec of the user's own, so that the user's own function runs the very
graph that it would have run. `_tensorflow_second_run` has the rest of the support for a second run.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, Protocol

import tensorflow as tf

from fitscope.capture.backends import _tensorflow_replicas as replicas
from fitscope.capture.backends._base import Call, Held, Obstacle, Outcome, Program, TapFailed
from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.backends._tensorflow_second_run import (
    HeldArguments,
    HeldBatches,
    HeldVariables,
    captured_variables,
    signature,
    why_not_twice,
)

_BY_CONSTRUCTION = (
    "an eager step runs the same operations in the same order; a tap keeps a reference, and asks the tape in the call "
    "that the step makes anyway"
)


class Trace(Protocol):
    """A step during tracing: see `_tensorflow_trace`."""

    compiled: bool

    @property
    def ran(self) -> bool: ...

    def harvest(self, tensors: Any) -> Harvest: ...


class _Graph(Program):
    """A step whose state is in the variables that its graph has captured."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._obstacles: dict[Any, Obstacle | None] = {}  # the obstacle of each graph
        self._handles: list[Any] = []  # the handles of all variables that these graphs may change
        self.identical = None if trace.compiled else _BY_CONSTRUCTION

    def _concrete(self, call: Call) -> Any:
        """The graph for these arguments, traced if necessary."""
        raise NotImplementedError

    def obstacle(self, held: Held) -> Obstacle | None:
        assert isinstance(held, HeldVariables)
        try:
            concrete = self._concrete(held.call())
            if concrete.graph not in self._obstacles:
                self._obstacles[concrete.graph] = why_not_twice(concrete.graph)
                known = {id(handle) for handle in self._handles}
                self._handles += [h for h in captured_variables(concrete) if id(h) not in known]
        except Exception as error:
            raise TapFailed(error, held.call()) from error
        held.handles = self._handles
        return self._obstacles[concrete.graph]

    def look(self, held: Held) -> list[Harvest]:
        assert isinstance(held, HeldVariables)
        held.handles = self._handles
        return super().look(held)


class Step(_Graph):
    """A custom step: a `tf.function`, or a plain function that runs eagerly."""

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
        return signature(call, shapes=self._xla)

    def hold(self, call: Call) -> Held:
        return HeldArguments(call)

    def obstacle(self, held: Held) -> Obstacle | None:
        if any(isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten(held.call())):
            return Obstacle(
                "the step draws its batch from an iterator, which cannot be drawn twice", beside=False
            )
        return super().obstacle(held)

    def _concrete(self, call: Call) -> Any:
        return self._tapped.get_concrete_function(*call.args, **call.kwargs)


class Predict(_Graph):
    """The step of `predict`: Keras draws the batches itself, and passes all batches of one execution at once."""

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
        return signature(call, shapes=True)

    def hold(self, call: Call) -> Held:
        return HeldArguments(call)

    def _concrete(self, call: Call) -> Any:
        return self._on_data.get_concrete_function(without_optionals(call.args[0][0]))


class Fit(_Graph):
    """The step of `fit` or `evaluate`: several if Keras runs several in one call."""

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
                    # Keras asks for a batch here too: a graph that finds none still counts the step.
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
        return held_batches(self._model, call)

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


def held_batches(model: Any, call: Call) -> HeldBatches:
    """Draws the batches of one call of Keras's own step, and holds them. Raises the errors of drawing."""
    (iterator,) = call.args
    many = model.steps_per_execution
    if not _of_tensorflow(iterator):
        batches = [next(iterator), *itertools.islice(iterator, many - 1)]
        return HeldBatches(batches, lambda: iter(batches))
    first = iterator.get_next()
    following = (iterator.get_next_as_optional() for _ in range(many - 1))
    batches = [first, *(o.get_value() for o in itertools.takewhile(lambda o: o.has_value(), following))]
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return HeldBatches(batches, lambda: again(iterator.element_spec, batches))
    try:
        replicas.again(iterator, batches)
    except Exception:  # the iterator's parts are not public; the batch is drawn, and the step needs it
        return HeldBatches(batches, lambda: iter(batches))
    return HeldBatches(batches, lambda: replicas.again(iterator, batches))


def again(spec: Any, batches: list[Any]) -> Any:
    """An iterator over batches drawn from another one, with its element spec, whose shapes may be partly unknown."""
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    drawn = iter(dataset)
    return type(drawn)(components=[drawn._iterator_resource], element_spec=spec)
