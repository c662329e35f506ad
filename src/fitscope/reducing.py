"""Where a tensor becomes a record: in this machine's memory, or partly inside the step.

On a CPU the whole tensor leaves the step without a copy and is reduced by the writer's thread. On an accelerator the step itself
reduces it (`finish`), and only a few numbers and the kept samples travel. Both halves of each way stand in this file,
because they must agree; the rest of the code does not know which way was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fitscope.attach import Site
from fitscope.backends._base import Finish
from fitscope.plan import SAMPLE_LOSS, Want, Wants
from fitscope.record import Moment, Record
from fitscope.reduce import host
from fitscope.reduce.average import Average


class Border(Protocol):
    """What is asked of whoever made a tensor: an adapter, or anything like it."""

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]: ...

    def nbytes(self, tensor: Any) -> int: ...


def finish_on_host(wants: Wants) -> Finish:  # noqa: ARG001
    """The step hands out the tensors as they are."""
    return lambda tensors, _: tensors


def finish_in_step(wants: Wants) -> Finish:
    """The step hands out stats, and of the tensor only what is kept."""
    from keras import ops

    from fitscope.reduce import in_step

    def finish(tensors: dict[str, Any], sites: Mapping[str, Site]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, tensor in tensors.items():
            want = wants.at(sites[name].place)
            if want is None or want.whole or sites[name].place == SAMPLE_LOSS:
                found[name] = tensor
                continue
            shape = ops.convert_to_tensor(ops.shape(tensor), "int32")  # in a graph it may be known only there
            found[name] = {"shape": shape, "like": tensor[:0] if len(tensor.shape) else tensor}
            if want.stats:
                found[name]["stats"] = in_step.pack(tensor)
            if want.tensor:
                found[name]["tensor"] = _first(tensor, want, sites[name])
            if want.mean:
                found[name]["moments"] = in_step.moments(tensor, batched=sites[name].batched)
        return found

    return finish


def nbytes(value: Any, border: Border) -> int:
    """How much memory a harvested value holds."""
    if isinstance(value, dict):
        return sum(nbytes(item, border) for item in value.values())
    if isinstance(value, tuple):
        return sum(nbytes(item, border) for item in value)
    return border.nbytes(value)


def record(site: Site, want: Want, value: Any, at: Moment, border: Border) -> Record:
    """What was seen at a site, from what the step handed out."""
    if isinstance(value, dict):
        from fitscope.reduce import in_step

        shape = tuple(int(n) for n in border.to_numpy(value["shape"]))
        dtype = border.to_numpy(value["like"]).dtype
        stats = in_step.unpack([border.to_numpy(part) for part in value["stats"]]) if want.stats else None
        kept = border.to_numpy(value["tensor"]) if want.tensor else None
    else:
        array = border.to_numpy(value)
        shape, dtype = array.shape, array.dtype
        stats = host.reduce(array) if want.stats else None
        kept = _first(array, want, site) if want.tensor else None
        if kept is not None and kept.nbytes < array.nbytes:
            kept = kept.copy()  # a view would hold on to the whole tensor
    return Record(site.name, at, shape, dtype.name, stats, kept, batched=site.batched and len(shape) > 0)


def add_to_average(average: Average, site: Site, value: Any, at: Moment, border: Border) -> None:
    """Adds what the step handed out to a running average."""
    if isinstance(value, dict):
        shape = border.to_numpy(value["shape"])
        mean, m2 = (border.to_numpy(part) for part in value["moments"])
        average.add_moments(mean, m2, int(shape[0]) if site.batched and len(shape) else 1, at.step)
    else:
        array = border.to_numpy(value)
        average.add(array, at.step, site.batched and array.ndim > 0)


def tensor_of(value: Any, border: Border) -> np.ndarray[Any, Any] | None:
    """The values themselves, where the step handed them out."""
    if isinstance(value, dict):
        return border.to_numpy(value["tensor"]) if "tensor" in value else None
    return border.to_numpy(value)


def _first(tensor: Any, want: Want, site: Site) -> Any:
    return (
        tensor[: want.samples] if want.samples is not None and site.batched and len(tensor.shape) else tensor
    )
