"""The adapter of the PyTorch backend: the step is Python, so the same step runs with the taps of `_torch_taps` in it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from fitscope._compat import torch_compile_apart
from fitscope.capture.backends._base import PHASES, Adapter, Ask, Call, Program, TapFailed, steps_of
from fitscope.capture.backends._black_box import Keeper
from fitscope.capture.backends._draws import own_draws
from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.backends._torch_black_box import TorchKeeper
from fitscope.capture.backends._torch_programs import Compiled, Eager
from fitscope.capture.backends._torch_taps import Collector, single_step
from fitscope.capture.backends._torch_weights import WeightTaps
from fitscope.capture.patch import show_batch
from fitscope.pipeline.handover import Thin
from fitscope.plan.anatomy import unbuilt
from fitscope.plan.sampling import as_rows, stride


class TorchAdapter(Adapter):
    name = "torch"

    def why_not(self, model: Any) -> str | None:
        if any(type(variable.value).__name__ == "DTensor" for variable in model.variables):
            return "the weights of the model are DTensors, each process holds a part of them, which is not supported"
        return None

    def without_effect(self, model: Any) -> str | None:
        # Keras computes with its own variables, which fully_shard does not know.
        return SHARDED if any(base.__name__ == "FSDPModule" for base in type(model).__mro__) else None

    def unbuilt(self, model: Any) -> bool:
        return bool(unbuilt(model))  # Keras runs predict() on an unbuilt model

    def build(self, model: Any, phase: str, *args: Any) -> tuple[Any, ...]:  # noqa: ARG002
        from keras.src import backend
        from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

        x, _, _ = unpack_x_y_sample_weight(args[0][0])
        with own_draws():
            backend.compute_output_spec(model, x, training=False)  # shapes only
        return args

    def tapped(self, ask: Ask) -> Program:
        if ask.function is not None:
            return self._function(ask, ask.function)
        model, name = ask.anatomy.model, PHASES[ask.phase][1]
        compiled = model.jit_compile and not model.run_eagerly

        def run(data: Any) -> Any:
            return getattr(model, name)(data)

        if compiled:
            run = torch_compile_apart(torch, run)
        weights = WeightTaps(ask)

        def step(data: Any) -> tuple[Any, list[Harvest]]:
            try:
                collector = Collector(ask.finish, joins=ask.finish.joins and not compiled)
            except Exception as error:
                raise TapFailed(error, Call((data,), {})) from error
            with contextlib.nullcontext() if ask.phase == "train" else torch.no_grad():

                def own() -> Any:
                    show_batch(ask.wants, ask.anatomy, collector, data[0])
                    return run(data[0])

                logs = single_step(ask, collector, weights, own)
            return logs, [collector.finished(ask, versions_tell=not compiled)]

        return Compiled(step, model) if compiled else Eager(step)

    def around(self, ask: Ask, function: Any) -> Program | None:
        if ask.anatomy.model.jit_compile and not ask.anatomy.model.run_eagerly:
            return None  # what is compiled inside it has no taps
        weights = WeightTaps(ask)

        def step(data: Any) -> tuple[Any, list[Harvest]]:
            try:
                collector = Collector(ask.finish, joins=ask.finish.joins)
            except Exception as error:
                raise TapFailed(error, Call((data,), {})) from error

            def own() -> Any:
                show_batch(ask.wants, ask.anatomy, collector, data[0])
                return function(data)

            logs = single_step(ask, collector, weights, own)
            return logs, [collector.finished(ask, versions_tell=True)]

        return Eager(step)

    def _function(self, ask: Ask, function: Any) -> Program:
        """A custom step: compiled again if `torch.compile` made it, or run as a plain function."""
        body = getattr(function, "_torchdynamo_orig_callable", None)
        run = function if body is None else torch_compile_apart(torch, body)
        weights = WeightTaps(ask)

        def step(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
            try:
                collector = Collector(ask.finish, joins=ask.finish.joins and body is None)
            except Exception as error:
                raise TapFailed(error, Call(args, kwargs)) from error
            result = single_step(ask, collector, weights, lambda: run(*args, **kwargs))
            return result, [collector.finished(ask, versions_tell=body is None)]

        return Eager(step) if body is None else Compiled(step, None)

    def keeper(self, model: Any, optimizers: Sequence[Any] = ()) -> Keeper:
        return TorchKeeper(model, optimizers)

    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        rows, length, step = _rows(tensor.shape, batched)
        if step == 1:
            return tensor
        return Thin(tensor.reshape(rows, length)[::step].clone(), tuple(tensor.shape))

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        if isinstance(tensor, np.ndarray):  # a layout
            return tensor
        if isinstance(tensor, tuple):  # a shape
            return np.array(tensor, np.int64)
        if tensor.dtype is torch.bfloat16:  # NumPy itself lacks this type
            return tensor.detach().view(torch.int16).numpy(force=True).view(ml_dtypes.bfloat16)
        return tensor.numpy(force=True)

    def nbytes(self, tensor: Any) -> int:
        if isinstance(tensor, np.ndarray):  # all steps share one array
            return 0
        return int(tensor.numel()) * int(tensor.element_size())

    def settle(self, values: Any) -> None:  # noqa: ARG002
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        elif torch.backends.mps.is_available():
            torch.mps.synchronize()

    def iterations(self, optimizer: Any) -> int:
        return int(steps_of(optimizer).value)

    def on_accelerator(self) -> bool:
        return torch.cuda.is_available() or torch.backends.mps.is_available()


SHARDED = (
    "Expected a Keras model without fully_shard. Received: one with it. Keras layers do not use the sharded weights: every process trains "
    "all weights by itself, and no gradient is exchanged. Use DistributedDataParallel"
)


@functools.lru_cache(maxsize=10_000)
def _rows(shape: tuple[int, ...], batched: bool) -> tuple[int, int, int]:
    """The rows of a tensor, their length, and the stride between those to read. Cached, because an eager step asks for every tensor."""
    rows, length = as_rows(shape, batched=batched)
    return rows, length, stride(rows, length)


ADAPTER = TorchAdapter()
