"""The adapter of the TensorFlow backend: traces the step with taps in it, and returns the tensors from the same function.

The step runs as Keras runs it: in `tf.function`, with XLA or without, or eagerly. The taps are in `_tensorflow_taps`;
`_tensorflow_programs` knows how the traced program runs in place of the user's own, compared with it, or alongside it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fitscope.capture.backends._base import PHASES, Adapter, Ask, Call, Program, TapFailed, steps_of
from fitscope.capture.backends._black_box import Keeper
from fitscope.capture.backends._draws import own_draws
from fitscope.capture.backends._tensorflow_black_box import TensorFlowKeeper, array_of
from fitscope.capture.backends._tensorflow_programs import Fit, Predict, Step, without_optionals
from fitscope.capture.backends._tensorflow_replicas import NO_LOOP, Replicas, why_not_replicas
from fitscope.capture.backends._tensorflow_shadow import rows_of
from fitscope.capture.backends._tensorflow_trace import Trace
from fitscope.pipeline.handover import SMALL, Thin
from fitscope.plan import sampling
from fitscope.plan.anatomy import unbuilt
from fitscope.plan.sampling import as_rows, stride


def _inlined(function: Any) -> Any:
    """The Python function of a `tf.function`, to trace into the current graph, because tensors of a nested graph could not be returned."""
    if not isinstance(function, tf.types.experimental.PolymorphicFunction):
        return function
    body = function.python_function
    method = getattr(body, "__original_wrapped__", body)
    if (
        type(getattr(method, "__self__", None)).__name__ == "TfMethodTarget"
    ):  # TensorFlow's stand-in for the instance
        body = types.MethodType(method.__func__, method.__self__.target)
    if function._autograph:  # AutoGraph converts the user's code, not this wrapper
        body = tf.__internal__.autograph.tf_convert(body, tf.__internal__.autograph.control_status_ctx())
    return body


def _function(ask: Ask, function: Any) -> Program:
    """A custom step with taps: a `tf.function` like the original, or run as a plain function."""
    compiled = isinstance(function, tf.types.experimental.PolymorphicFunction)
    xla = bool(compiled and function._jit_compile)
    trace = Trace(ask, compiled=compiled, xla=xla)
    body = _inlined(function)

    @tf.autograph.experimental.do_not_convert
    def tapped(*args: Any, **kwargs: Any) -> Any:
        return trace(lambda: body(*args, **kwargs))

    if compiled:
        tapped = tf.function(
            tapped,
            input_signature=function.input_signature,
            jit_compile=function._jit_compile,
            reduce_retracing=function._reduce_retracing,
        )

    return Step(tapped, trace, compiled=compiled, xla=xla)


class TensorFlowAdapter(Adapter):
    name = "tensorflow"

    def why_not(self, model: Any) -> str | None:
        return why_not_replicas(model.distribute_strategy)

    def unbuilt(self, model: Any) -> bool:
        # Outside of tf.distribute Keras leaves building to the trace of the first step. The loss makes the metrics of
        # single outputs then.
        compiled = getattr(model, "_compile_loss", None)
        several = len(getattr(model, "output_names", None) or ()) > 1
        return bool(unbuilt(model)) or (several and compiled is not None and not compiled.built)

    def build(self, model: Any, phase: str, *args: Any) -> tuple[Any, ...]:
        @tf.autograph.experimental.do_not_convert
        def on_iterator(iterator: Any) -> Any:
            return on_data(iterator.get_next())

        @tf.autograph.experimental.do_not_convert
        def on_data(data: Any) -> Any:
            return getattr(model, PHASES[phase][1])(without_optionals(data))

        (given,) = args
        with _rehearsal(model):
            if isinstance(given, tf.data.Iterator | tf.distribute.DistributedIterator):
                tf.function(on_iterator).get_concrete_function(given)
            elif phase == "predict":  # a list of batches
                tf.function(on_data).get_concrete_function(given[0])
            else:
                batch = next(given)
                rest = (itertools.chain([batch], given),)
                try:
                    tf.function(on_data).get_concrete_function(batch)
                except Exception as error:
                    raise TapFailed(error, Call(rest, {})) from error
                return rest
        return args

    def build_step(self, function: Any, *args: Any, **kwargs: Any) -> bool:
        if not isinstance(function, tf.types.experimental.PolymorphicFunction):
            return False
        function.get_concrete_function(*args, **kwargs)  # traces it and runs nothing
        return True

    def tapped(self, ask: Ask) -> Program:
        model = ask.anatomy.model
        strategy = model.distribute_strategy
        several = Replicas(strategy, self) if strategy.num_replicas_in_sync > 1 else None
        if ask.function is not None:
            if several is not None:
                raise NotImplementedError(NO_LOOP)
            return _function(ask, ask.function)
        trace = Trace(ask, compiled=not model.run_eagerly, xla=model.jit_compile and not model.run_eagerly)

        def own_step(data: Any) -> Any:
            return _inlined(getattr(model, PHASES[ask.phase][1]))(data)

        def one_step(data: Any) -> Any:
            return trace(lambda: own_step(data), data)

        @tf.autograph.experimental.do_not_convert
        def on_data(data: Any) -> Any:
            if several is not None:
                return trace.on_replicas(several, own_step, data)
            return strategy.run(one_step, args=(data,))

        if not model.run_eagerly:
            on_data = tf.function(on_data, reduce_retracing=True, jit_compile=model.jit_compile)

        @tf.autograph.experimental.do_not_convert
        def on_iterator(iterator: Any) -> Any:
            return on_data(without_optionals(iterator.get_next()))

        @tf.autograph.experimental.do_not_convert
        def on_optional(optional: Any) -> Any:
            return on_data(without_optionals(optional.get_value()))

        if not model.run_eagerly:
            # The batch is drawn inside the graph, as Keras does it: drawn outside, its size would be a constant of the
            # program, which then rounds differently.
            on_iterator = tf.function(on_iterator, reduce_retracing=True)
            on_optional = tf.function(on_optional, reduce_retracing=True)

        if ask.phase == "predict":
            return Predict(model, trace, on_data)
        return Fit(model, trace, on_data, on_iterator, on_optional)

    def keeper(self, model: Any, optimizers: Sequence[Any] = ()) -> Keeper:
        return TensorFlowKeeper(model, optimizers)

    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        if tensor.shape.rank is None:
            return tensor
        if tensor.shape.is_fully_defined():
            rows, length = as_rows(tensor.shape.as_list(), batched=batched)
            shape, step = np.array(tensor.shape.as_list(), np.int32), stride(rows, length)
            if step == 1:
                return tensor
        else:
            if _short(tensor):
                return tensor
            shape = tf.shape(tensor)
            one_row = batched or tensor.shape.rank == 1
            rows = shape[0] if one_row else tf.reduce_prod(shape[:-1])
            length = tf.reduce_prod(shape[1:]) if one_row else shape[-1]
            step = _stride(rows, length)
        # Not a slice: one with a step is copied number by number, and one without holds on to the whole tensor.
        numbers = tf.range(0, rows, step)
        if batched and not tf.executing_eagerly():
            return Thin(rows_of(tensor, numbers), shape)
        return Thin(tf.gather(tf.reshape(tensor, (rows, length)), numbers), shape)

    def small(self, tensor: Any) -> bool:
        real = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
        if not real or tf.executing_eagerly() or tensor.shape.rank is None:
            return False
        return _short(tensor) or int(tensor.shape.num_elements() or SMALL + 1) <= SMALL

    def joined(self, tensors: dict[int, Any]) -> list[tuple[Any, Any]]:
        unknown = {n: x for n, x in tensors.items() if not x.shape.is_fully_defined()}
        shapes = iter(tf.raw_ops.ShapeN(input=list(unknown.values())) if unknown else ())
        layout: list[Any] = []
        for number, x in tensors.items():
            layout.append(np.array([number, x.shape.rank], np.int32))
            layout.append(next(shapes) if number in unknown else np.array(x.shape.as_list(), np.int32))
        vector = tf.concat([tf.reshape(x, (-1,)) for x in tensors.values()], 0)
        return [(vector, tf.concat(layout, 0) if unknown else tf.constant(np.concatenate(layout)))]

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        return array_of(tensor)

    def nbytes(self, tensor: Any) -> int:
        return int(np.prod(tensor.shape.as_list(), dtype=np.int64)) * int(tensor.dtype.size)

    def settle(self, values: Any) -> None:  # noqa: ARG002
        if self.on_accelerator():
            tf.experimental.sync_devices()

    def iterations(self, optimizer: Any) -> int:
        return int(steps_of(optimizer).numpy())

    def on_accelerator(self) -> bool:
        return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


@contextlib.contextmanager
def _rehearsal(model: Any) -> Iterator[None]:
    """Around a trace of the step that only builds the model and is never run: the training that follows must not notice it.

    The Python of the step may draw random numbers. In an eager training an optimizer also gives its variables their first
    values when it is built; inside a trace it would only note that down, and be built without them.
    """
    found = [thing for thing in vars(model).values() if isinstance(thing, keras.optimizers.Optimizer)]
    eager = {id(one): one for one in found if model.run_eagerly and not one.built}.values()
    for optimizer in eager:
        vars(optimizer)["build"] = _lifted(optimizer.build)
    try:
        with own_draws():
            yield
    finally:
        for optimizer in eager:
            vars(optimizer).pop("build", None)


def _lifted(build: Any) -> Any:
    """A function that runs outside of the graph that is being traced."""

    def lifted(*args: Any, **kwargs: Any) -> Any:
        with tf.init_scope():
            return build(*args, **kwargs)

    return lifted


def _short(tensor: Any) -> bool:
    """Whether only the number of samples is unknown, and choosing among them would not pay."""
    sizes = tensor.shape.as_list()
    return sizes != [] and None not in sizes[1:] and math.prod(sizes[1:]) <= sampling.SHORT


def _stride(rows: Any, length: Any) -> Any:
    """`sampling.stride` for a shape that is known only when the step runs."""
    most = tf.maximum(sampling.ENOUGH // tf.maximum(length, 1), sampling.FEWEST)
    powers = 1 << np.arange(31, dtype=np.int32)
    return tf.bitwise.left_shift(1, tf.reduce_sum(tf.cast((rows - 1) // powers + 1 > most, tf.int32)))


ADAPTER = TensorFlowAdapter()
