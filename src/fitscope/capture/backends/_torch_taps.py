"""The taps of the PyTorch backend: the step is Python, so a tap keeps the tensor.

A tap keeps a value detached and without a copy; autograd's own hooks bring the gradients. Tensors that the step changes in place
(weights, and gradients that the next step may overwrite) are copied at once. If a later operation changes a kept tensor in place,
its version counter shows it, and the site is reported as failed rather than recorded wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fitscope.capture.backends._base import (
    LOCAL,
    NO_GRADIENT,
    NOT_FLOATING,
    Ask,
    Harvest,
    finished,
)
from fitscope.capture.backends._weights import Values, taps_on_weights
from fitscope.capture.collector import kept, numbers_inside
from fitscope.capture.losses import Losses
from fitscope.capture.patch import guarded, taps_on
from fitscope.capture.shield import shield
from fitscope.pipeline.handover import Finish, Thin
from fitscope.plan.wants import LOSS
from fitscope.sites import Site


class Collector:
    """The target of the taps of one step."""

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
        """A value that later operations do not change, or whose version shows that they did."""
        if not isinstance(tensor, Thin):  # the old value of a weight
            tensor = torch.as_tensor(tensor).detach()
            if not torch.compiler.is_compiling():
                tensor = self.finish.thin(site, tensor)
        changed = site.base in ("weight_gradients", "loss_scale", "learning_rate")
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

        def keep(grad: Any) -> None:  # None: autograd passes by, but has nothing to hand on
            if grad is not None and site not in self.harvest.tensors:
                self.failed.pop(site, None)
                guarded(self, site, grad)

        tensor.register_hook(keep)
        return tensor

    def finished(self, ask: Ask, *, versions_tell: bool) -> Harvest:
        """`versions_tell` is False inside torch.compile, whose graphs count versions differently."""
        harvest = self.harvest
        with shield(lambda error: setattr(harvest, "broken", error)):
            names = self.losses.names()
            for name, version in self.versions.items() if versions_tell else ():
                name = names.get(name, name)
                if name in harvest.tensors and harvest.tensors[name]._version != version:
                    del harvest.tensors[name]
                    self.failed[name] = "a later operation of the step changed it in place"
        return finished(harvest, ask)


@contextmanager
def _watching_backward(collector: Collector, wanted: bool) -> Iterator[None]:
    """Finds the loss of a custom step that never calls `compute_loss`: the tensor that it calls `backward` on."""
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
def _watching_optimizers(ask: Ask, collector: Collector) -> Iterator[None]:
    """Watches torch optimizers, which a custom loop may use."""
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


def several() -> bool:
    """Whether several processes train together."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


@contextmanager
def _watching_local(ask: Ask, collector: Collector) -> Iterator[None]:
    """Watches the gradients of the weights before processes reduce them. DistributedDataParallel does so when autograd has added a
    gradient to its weight; a hook on the weight is called before that.
    """

    def see(site: Site) -> Callable[[Any], None]:
        def keep(gradient: Any) -> None:
            if gradient is None:
                return
            with kept(collector, site):
                before = collector.harvest.tensors.get(site)  # of an earlier backward pass of the step
                collector.see(
                    site, gradient if before is None else _plus(before, ask.finish.thin(site, gradient))
                )

        return keep

    with ExitStack() as undo:
        with kept(collector):
            for weight in ask.anatomy.weights:
                want = ask.wants.get(("weight_gradients", weight.path))
                if want is not None and want.local and several() and weight.variable.value.requires_grad:
                    site = Site.at(("weight_gradients", weight.path), suffix=LOCAL)
                    undo.callback(weight.variable.value.register_hook(see(site)).remove)
        yield


def single_step(ask: Ask, collector: Collector, run: Any) -> Any:
    """The user's own step with taps, and the taps on its effect on the weights."""
    with (
        taps_on(ask.anatomy, ask.wants, collector),
        _watching_local(ask, collector),
        _watching_backward(collector, LOSS in ask.wants),
        _watching_optimizers(ask, collector),
        taps_on_weights(ask, collector, _VALUES),
    ):
        return run()


def _now(ask: Ask, weight: Any, site: Site) -> Any:
    return ask.finish.thin(site, weight.variable.value.detach())


def _copy(ask: Ask, weight: Any, site: Site) -> Any:
    """A copy of a weight, or of the needed part, because the step changes it in place."""
    value = _now(ask, weight, site)
    return value if isinstance(value, Thin) else value.clone()


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, Thin):
        return Thin(one.rows + other.rows, one.shape)
    return one + other


def _minus(new: Any, old: Any) -> Any:
    if isinstance(new, Thin):
        return Thin(_minus(new.rows, old.rows), new.shape)
    return new - old if new.dtype is not torch.bool else new ^ old


_VALUES = Values(_copy, _now, _minus)
