"""Taps for the PyTorch backend: the step is Python, so a tap just keeps the tensor.

Values are kept detached and without a copy; autograd's own hooks bring the gradients. What the step changes in place
(weights, and the gradients the next step may write over) is copied at once. Should a later operation change a kept tensor in place,
its version counter tells, and the site is reported as failed rather than recorded wrongly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fitscope.capture.backends._base import (
    NO_GRADIENT,
    NOT_FLOATING,
    PHASES,
    Adapter,
    Ask,
    Call,
    Harvest,
    Program,
    TapFailed,
    finished,
    numbers_inside,
    steps_of,
    wanted_weights,
)
from fitscope.capture.backends._torch_programs import Compiled, Eager
from fitscope.capture.collector import kept
from fitscope.capture.losses import Losses
from fitscope.capture.patch import attached, guarded, show_batch
from fitscope.pipeline.handover import Finish, Thin
from fitscope.plan.anatomy import unbuilt
from fitscope.plan.plan import LOSS
from fitscope.plan.sampling import as_rows, stride
from fitscope.shield import shield
from fitscope.sites import Site


class _Collector:
    """Where the taps of one step report to."""

    def __init__(self, finish: Finish) -> None:
        self.harvest = Harvest()
        self.failed = self.harvest.failed
        self.noted = self.harvest.noted
        self.losses = Losses(self)
        self.finish = finish
        self.versions: dict[Site, int] = {}

    def see(self, site: Site, tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor  # Keras is only asking for a shape
        if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
            self.see(numbers_inside(self, site, "sparse"), tensor.detach().to_sparse().coalesce().values())
            return tensor
        kept = self._kept(site, tensor)
        self.harvest.sites[site] = site
        self.harvest.tensors[site] = kept
        if not isinstance(kept, Thin):
            self.versions[site] = kept._version
        return tensor

    def _kept(self, site: Site, tensor: Any) -> Any:
        """What stays as it is now, whatever the step does next, or tells by its version that it does not."""
        if not isinstance(tensor, Thin):  # of what a weight was
            tensor = torch.as_tensor(tensor).detach()
            if not torch.compiler.is_compiling():
                tensor = self.finish.thin(site, tensor)
        changed = site.place[0] in ("weight_gradients", "loss_scale", "learning_rate")
        return tensor.clone() if changed and not isinstance(tensor, Thin) else tensor

    def see_gradient(self, site: Site, tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            self.failed[site] = NOT_FLOATING
            return tensor
        self.harvest.sites[site] = site
        if not tensor.requires_grad:
            self.failed[site] = "nothing below it is trained, so no gradient is computed for it"
            return tensor
        self.failed[site] = NO_GRADIENT

        def keep(grad: Any) -> None:
            if site not in self.harvest.tensors:
                self.failed.pop(site, None)
                guarded(self, site, grad)

        tensor.register_hook(keep)
        return tensor

    def finished(self, ask: Ask, *, versions_tell: bool) -> Harvest:
        """`versions_tell`: not inside torch.compile, whose graphs count versions in their own way."""
        harvest = self.harvest
        with shield(lambda error: setattr(harvest, "broken", error)):
            names = self.losses.names()
            for name, version in self.versions.items() if versions_tell else ():
                name = names.get(name, name)
                if name in harvest.tensors and harvest.tensors[name]._version != version:
                    del harvest.tensors[name]
                    self.failed[name] = "a later operation of the step changed it in place"
        return finished(harvest, ask.finish)


@contextmanager
def _watching_backward(collector: _Collector, wanted: bool) -> Iterator[None]:
    """A custom step may never call `compute_loss`; then its loss is what it calls `backward` on."""
    if not wanted:
        yield
        return
    original = torch.Tensor.backward

    def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with kept(collector, Site.at(LOSS)):
            collector.losses.differentiated(tensor)
        return original(tensor, *args, **kwargs)

    torch.Tensor.backward = backward
    try:
        yield
    finally:
        torch.Tensor.backward = original


@contextmanager
def _watching_optimizers(ask: Ask, collector: _Collector) -> Iterator[None]:
    """A loop of the user's own may use an optimizer of torch's."""
    wanted: dict[int, str] = {}
    with kept(collector):
        wanted = {
            id(weight.variable.value): weight.path
            for weight in ask.anatomy.weights
            if ask.function is not None and ("weight_gradients", weight.path) in ask.wants
        }
    if not wanted:
        yield
        return

    def see(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = wanted.get(id(parameter))
                if path is not None and parameter.grad is not None:
                    place = ("weight_gradients", path)
                    guarded(collector, Site.at(place), parameter.grad)

    handle = register_optimizer_step_pre_hook(see)
    try:
        yield
    finally:
        handle.remove()


def _single_step(ask: Ask, collector: _Collector, run: Any) -> Any:
    """The user's own step with taps, and the taps on what it did to the weights."""
    with (
        attached(ask.anatomy, ask.wants, collector),
        _watching_backward(collector, LOSS in ask.wants),
        _watching_optimizers(ask, collector),
    ):
        before = []
        with shield(lambda error: setattr(collector.harvest, "broken", error)):
            for weight, site in wanted_weights(ask):
                with kept(collector, site):
                    before.append((weight, site, _copy(ask, weight, site)))
        result = run()
        for weight, site, old in before:
            with kept(collector, site):
                moved = site.place[0] == "updates"
                guarded(collector, site, _minus(_now(ask, weight, site), old) if moved else old)
    return result


def _now(ask: Ask, weight: Any, site: Site) -> Any:
    return ask.finish.thin(site, weight.variable.value.detach())


def _copy(ask: Ask, weight: Any, site: Site) -> Any:
    """What a weight is now, or as much of it as is needed: the step changes it in place."""
    value = _now(ask, weight, site)
    return value if isinstance(value, Thin) else value.clone()


def _minus(new: Any, old: Any) -> Any:
    if isinstance(new, Thin):
        return Thin(_minus(new.rows, old.rows), new.shape)
    return new - old if new.dtype is not torch.bool else new ^ old


class TorchAdapter(Adapter):
    name = "torch"

    def why_not(self, model: Any) -> str | None:  # noqa: ARG002
        return None

    def unbuilt(self, model: Any) -> bool:
        return bool(unbuilt(model))  # only predict() leaves it at that

    def build(self, model: Any, phase: str, *args: Any) -> tuple[Any, ...]:  # noqa: ARG002
        from keras.src import backend
        from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

        x, _, _ = unpack_x_y_sample_weight(args[0][0])
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
            run = torch.compile(run)

        def step(data: Any) -> tuple[Any, list[Harvest]]:
            try:
                collector = _Collector(ask.finish)
            except Exception as error:
                raise TapFailed(error, Call((data,), {})) from error
            with contextlib.nullcontext() if ask.phase == "train" else torch.no_grad():

                def own() -> Any:
                    show_batch(ask.wants, ask.anatomy, collector, data[0])
                    return run(data[0])

                logs = _single_step(ask, collector, own)
            return logs, [collector.finished(ask, versions_tell=not compiled)]

        return Compiled(step, model) if compiled else Eager(step)

    def _function(self, ask: Ask, function: Any) -> Program:
        """The user's own step: compiled anew if `torch.compile` made it, or run as it is."""
        body = getattr(function, "_torchdynamo_orig_callable", None)
        run = function if body is None else torch.compile(body)

        def step(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
            try:
                collector = _Collector(ask.finish)
            except Exception as error:
                raise TapFailed(error, Call(args, kwargs)) from error
            result = _single_step(ask, collector, lambda: run(*args, **kwargs))
            return result, [collector.finished(ask, versions_tell=body is None)]

        return Eager(step) if body is None else Compiled(step, None)

    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        rows, length = as_rows(tensor.shape, batched=batched)
        step = stride(rows, length)
        if step == 1:
            return tensor
        return Thin(tensor.reshape(rows, length)[::step].clone(), tuple(tensor.shape))

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        if isinstance(tensor, tuple):  # a shape
            return np.array(tensor, np.int64)
        host = tensor.detach().cpu().resolve_conj().resolve_neg()
        if host.dtype is torch.bfloat16:  # NumPy has no such type of its own
            return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return host.numpy()

    def nbytes(self, tensor: Any) -> int:
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


ADAPTER = TorchAdapter()
