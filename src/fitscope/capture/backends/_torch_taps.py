"""The taps of the PyTorch backend: the step is Python, so a tap keeps the tensor.

A tap keeps a value detached and without a copy; autograd's own hooks bring the gradients. Tensors that the step changes in place
(weights, and gradients that the next step may overwrite) are copied at once. If a later operation changes a kept tensor in place,
its version counter shows it, and the site is reported as failed rather than recorded wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fitscope._compat import torch_in_backward
from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._harvest import LOCAL, NO_GRADIENT, NOT_FLOATING, Harvest, finished
from fitscope.capture.backends._torch_joined import Part, joined, small, together
from fitscope.capture.backends._torch_weights import WeightTaps
from fitscope.capture.collector import kept, numbers_inside
from fitscope.capture.losses import Losses
from fitscope.capture.patch import guarded, taps_on
from fitscope.capture.shield import shield
from fitscope.pipeline.handover import JOINED, Finish, Thin
from fitscope.plan.wants import LOSS
from fitscope.sites import Site


class Collector:
    """The target of the taps of one step."""

    def __init__(self, finish: Finish, *, joins: bool = False) -> None:
        self.harvest = Harvest()
        self.failed = self.harvest.failed
        self.noted = self.harvest.noted
        self.losses = Losses(self)
        self.finish = finish
        self.joins = joins  #: small tensors leave the step joined; not from within torch.compile
        self.versions: dict[Site, int] = {}
        self._small: dict[Site, Any] = {}  # tensors that leave the step joined
        self._joined: list[tuple[Sequence[Site], Part]] = []  # vectors that were made in the step

    @property
    def recomputing(self) -> bool:
        return not torch.compiler.is_compiling() and torch_in_backward(torch)

    def see_again(self, site: Site, tensor: Any) -> None:
        """Does nothing: the gradient passes the tensor of the forward pass."""

    def see(self, site: Site, tensor: Any) -> Any:
        if self.joins and small(tensor) and site.base not in OF_SAMPLES:
            if site.base in CHANGED:
                self._small[site] = tensor.detach().clone()
            else:
                self._small[site] = tensor
                self.versions[site] = tensor._version
            return tensor
        if isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor  # Keras only asks for a shape
        if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
            self.see(numbers_inside(self, site, "sparse"), tensor.detach().to_sparse().coalesce().values())
            return tensor
        kept = self._kept(site, tensor)
        self._small.pop(site, None)
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
        return tensor.clone() if site.base in CHANGED and not isinstance(tensor, Thin) else tensor

    def see_joined(self, sites: Sequence[Site], part: Part) -> None:
        """Takes small tensors that are one vector already."""
        self._joined.append((sites, part))

    def taken(self, site: Site) -> Any:
        """The tensor of a site so far; None if there is none."""
        return self._small.get(site, self.harvest.tensors.get(site))

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

        def keep(grad: Any) -> None:  # None: autograd calls the hook without a gradient
            if grad is not None and self.taken(site) is None:
                self.failed.pop(site, None)
                guarded(self, site, grad)

        tensor.register_hook(keep)
        return tensor

    def finished(self, ask: Ask, *, versions_tell: bool) -> Harvest:
        """`versions_tell` is False inside torch.compile, whose graphs count versions differently."""
        harvest = self.harvest
        with shield(lambda error: setattr(harvest, "broken", error)):
            names = self.losses.names()
            if names:
                self._small = {names.get(site, site): tensor for site, tensor in self._small.items()}
            harvest.sites.update(zip(self._small, self._small, strict=True))
            harvest.tensors.update(self._small.items())
            for name, version in self.versions.items() if versions_tell else ():
                name = names.get(name, name)
                if name in harvest.tensors and harvest.tensors[name]._version != version:
                    del harvest.tensors[name]
                    self._small.pop(name, None)
                    self.failed[name] = "a later operation of the step changed it in place"
        return finished(harvest, ask, self._finish)

    def _finish(self, tensors: dict[str, Any], sites: dict[str, Site]) -> dict[str, Any]:
        """Joins the small tensors, and finishes the others."""
        small = self._small
        found = self.finish({site: x for site, x in tensors.items() if site not in small}, sites)
        parts = [part for _, part in self._joined] + together(small)
        if parts:
            found[JOINED] = joined(parts)
        for known, _ in self._joined:
            sites.update(zip(known, known, strict=True))
        return found


#: Kinds whose tensors the step changes in place.
CHANGED = frozenset(("weight_gradients", "loss_scale", "learning_rate"))
#: Kinds whose tensors may have a value for each sample; they are never joined with others.
OF_SAMPLES = frozenset(("loss", "sample_loss"))


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
                before = collector.taken(site)  # the gradient of an earlier backward pass of the step
                collector.see(
                    site, gradient if before is None else _plus(before, ask.finish.thin(site, gradient))
                )

        return keep

    if not several():
        yield
        return
    with ExitStack() as undo:
        with kept(collector):
            for weight in ask.anatomy.weights:
                want = ask.wants.get(("weight_gradients", weight.path))
                if want is not None and want.local and weight.variable.value.requires_grad:
                    site = Site.at(("weight_gradients", weight.path), suffix=LOCAL)
                    undo.callback(weight.variable.value.register_hook(see(site)).remove)
        yield


def single_step(ask: Ask, collector: Collector, weights: WeightTaps, run: Any) -> Any:
    """The user's own step with taps, and the taps on its effect on the weights."""
    with (
        taps_on(ask.anatomy, ask.wants, collector),
        _watching_local(ask, collector),
        _watching_backward(collector, LOSS in ask.wants),
        _watching_optimizers(ask, collector),
        weights.on(collector),
    ):
        return run()


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, Thin):
        return Thin(one.rows + other.rows, one.shape)
    return one + other
