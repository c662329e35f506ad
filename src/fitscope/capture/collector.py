"""The collector that taps report to, and the tensors of a nested structure by name.

`guarded` and `kept` are the shield inside the step: an error at a site becomes the reason why that site was not recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fitscope._compat import versions
from fitscope.capture.shield import shield, told
from fitscope.errors import FitscopeWarning
from fitscope.pipeline.troubles import described
from fitscope.sites import Site

if TYPE_CHECKING:
    from fitscope.capture.losses import Losses


class Collector(Protocol):
    """The target of taps. There is one per execution of an eager step, or per trace of a compiled one."""

    harvest: Any  #: the collected tensors, see `backends._harvest.Harvest`
    losses: Losses
    failed: dict[Site, str]  #: site → why it could not be recorded
    noted: list[str]  #: warnings for the user

    @property
    def recomputing(self) -> bool:
        """Whether the backward pass is computing a part of the forward pass again, to save memory (`keras.remat`)."""
        ...

    def see(self, site: Site, tensor: Any) -> Any: ...

    def see_gradient(self, site: Site, tensor: Any) -> Any: ...

    def see_again(self, site: Site, tensor: Any) -> None:
        """Takes a tensor of `see_gradient` that was computed again; None if it may belong to another call of the layer."""


def leaves(structure: Any, names: list[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The tensors of a nested structure, with the suffix of their site names: "", "/name" or "[0]"."""
    if isinstance(structure, Mapping):
        for key in structure:
            for suffix, tensor in leaves(structure[key]):
                yield f"/{key}{suffix}", tensor
    elif isinstance(structure, list | tuple):
        if len(structure) == 1:
            yield from leaves(structure[0])
            return
        named = names if names is not None and len(names) == len(structure) else None
        for i, item in enumerate(structure):
            for suffix, tensor in leaves(item):
                yield (f"/{named[i]}" if named else f"[{i}]") + suffix, tensor
    elif structure is not None:
        yield "", structure


def rebuilt(structure: Any, tensors: Iterator[Any]) -> Any:
    """The same structure with its leaves replaced, in the order of `leaves`."""
    if isinstance(structure, Mapping):
        same_type: Any = type(structure)
        return same_type((key, rebuilt(structure[key], tensors)) for key in structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(rebuilt(item, tensors) for item in structure))
    if isinstance(structure, list | tuple):
        return type(structure)([rebuilt(item, tensors) for item in structure])
    return None if structure is None else next(tensors)


def guarded(collector: Collector, site: Site, tensor: Any, *, gradient: bool = False) -> Any:
    """Passes a tensor to the collector; an error in fitscope never becomes an error of the step."""
    # Does what `kept` does, without creating an object: an eager step comes here hundreds of times.
    try:
        return (collector.see_gradient if gradient else collector.see)(site, tensor)
    except FitscopeWarning:
        raise
    except Exception as error:
        told(functools.partial(_missed, collector, (site,)), error)
    return tensor


def kept(collector: Collector, *sites: Site) -> AbstractContextManager[None]:
    """Turns an error inside the block into the reason why these sites are missing, and warns the user, with versions."""
    return shield(functools.partial(_missed, collector, sites))


def _missed(collector: Collector, sites: Sequence[Site], error: Exception) -> None:
    collector.failed.update(dict.fromkeys(sites, described(error)))
    with_versions = versions("keras", "jax", "tensorflow", "torch")
    collector.noted.append(f"{described(error)} ({with_versions})" if with_versions else described(error))


def numbers_inside(collector: Collector, site: Site, what: str) -> Site:
    """The site for the values of a sparse or ragged tensor; the site of the tensor itself gets the reason."""
    inside = site.but(suffix=f"{site.suffix}/values", batched=False)
    collector.failed[site] = f"it is a {what} tensor; the numbers in it are recorded as {inside}"
    return inside
