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

from fitscope.attach import Site, attached, guarded, show_batch
from fitscope.backends._base import PHASES, Adapter, Ask, Harvest, TappedStep, finished, steps_of


class _Collector:
    """Where the taps of one step report to."""

    def __init__(self) -> None:
        self.harvest = Harvest()
        self.failed = self.harvest.failed
        self.noted = self.harvest.noted
        self.versions: dict[str, int] = {}

    def see(self, site: Site, tensor: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor  # Keras is only asking for a shape
        kept = torch.as_tensor(tensor).detach()
        if site.place[0] in ("weight_gradients", "loss_scale"):
            kept = kept.clone()
        self.harvest.sites[site.name] = site
        self.harvest.tensors[site.name] = kept
        self.versions[site.name] = kept._version
        return tensor

    def see_gradient(self, site: Site, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta or not tensor.is_floating_point():
            return tensor
        self.harvest.sites[site.name] = site
        if not tensor.requires_grad:
            self.failed[site.name] = "nothing below it is trained, so no gradient is computed for it"
            return tensor
        self.failed[site.name] = "no gradient of the loss reaches it"

        def keep(grad: Any) -> None:
            if site.name not in self.harvest.tensors:
                self.failed.pop(site.name, None)
                self.harvest.tensors[site.name] = grad.detach()
                self.versions[site.name] = grad._version

        tensor.register_hook(keep)
        return tensor

    def finished(self, ask: Ask, *, versions_tell: bool) -> Harvest:
        """`versions_tell`: not inside torch.compile, whose graphs count versions in their own way."""
        harvest = self.harvest
        for name, version in self.versions.items():
            if versions_tell and harvest.tensors[name]._version != version:
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
        if "loss" not in collector.harvest.sites:
            guarded(collector, Site("loss", ("loss", ""), False), tensor)
        return original(tensor, *args, **kwargs)

    torch.Tensor.backward = backward
    try:
        yield
    finally:
        torch.Tensor.backward = original


@contextmanager
def _watching_optimizers(ask: Ask, collector: _Collector) -> Iterator[None]:
    """A loop of the user's own may use an optimizer of torch's."""
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
                    guarded(collector, Site(f"weight_gradients/{path}", place, False), parameter.grad)

    handle = register_optimizer_step_pre_hook(see)
    try:
        yield
    finally:
        handle.remove()


def _single_step(ask: Ask, collector: _Collector, run: Any) -> Any:
    """The user's own step with taps, and the taps on what it did to the weights."""
    weights = [
        w for w in ask.anatomy.weights if {("weights", w.path), ("updates", w.path)} & ask.wants.keys()
    ]
    with (
        attached(ask.anatomy, ask.wants, collector),
        _watching_backward(collector, ("loss", "") in ask.wants),
        _watching_optimizers(ask, collector),
    ):
        before = [w.variable.value.detach().clone() for w in weights]
        result = run()
        for weight, old in zip(weights, before, strict=True):
            if ("weights", weight.path) in ask.wants:
                guarded(collector, Site(f"weights/{weight.path}", ("weights", weight.path), False), old)
            if ("updates", weight.path) in ask.wants:
                new = weight.variable.value.detach()
                moved = new - old if new.dtype is not torch.bool else new ^ old
                guarded(collector, Site(f"updates/{weight.path}", ("updates", weight.path), False), moved)
    return result


class TorchAdapter(Adapter):
    name = "torch"

    def why_not(self, model: Any) -> str | None:  # noqa: ARG002
        return None

    def unbuilt(self, model: Any, *, loss: bool = False) -> bool:  # noqa: ARG002
        return not all(layer.built for layer in model._flatten_layers())  # only predict() leaves it at that

    def build(self, model: Any, phase: str, *args: Any) -> tuple[Any, ...]:  # noqa: ARG002
        from keras.src import backend
        from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

        x, _, _ = unpack_x_y_sample_weight(args[0][0])
        backend.compute_output_spec(model, x, training=False)  # shapes only
        return args

    def tapped(self, ask: Ask) -> TappedStep:
        if ask.function is not None:
            return self._function(ask, ask.function)
        model, name = ask.anatomy.model, PHASES[ask.phase][1]
        compiled = model.jit_compile and not model.run_eagerly

        def run(data: Any) -> Any:
            return getattr(model, name)(data)

        if compiled:
            run = torch.compile(run)

        def step(data: Any) -> tuple[Any, list[Harvest]]:
            collector = _Collector()
            with contextlib.nullcontext() if ask.phase == "train" else torch.no_grad():

                def own() -> Any:
                    show_batch(ask.wants, ask.anatomy, collector, data[0])
                    return run(data[0])

                logs = _single_step(ask, collector, own)
            return logs, [collector.finished(ask, versions_tell=not compiled)]

        return step

    def _function(self, ask: Ask, function: Any) -> TappedStep:
        """The user's own step: compiled anew if `torch.compile` made it, or run as it is."""
        body = getattr(function, "_torchdynamo_orig_callable", None)
        run = function if body is None else torch.compile(body)

        def step(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
            collector = _Collector()
            result = _single_step(ask, collector, lambda: run(*args, **kwargs))
            return result, [collector.finished(ask, versions_tell=body is None)]

        return step

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        host = tensor.detach().cpu().resolve_conj().resolve_neg()
        if host.dtype is torch.bfloat16:  # NumPy has no such type of its own
            return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return host.numpy()

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.numel()) * int(tensor.element_size())

    def iterations(self, optimizer: Any) -> int:
        return int(steps_of(optimizer).value)

    def on_accelerator(self) -> bool:
        return torch.cuda.is_available() or torch.backends.mps.is_available()


ADAPTER = TorchAdapter()
