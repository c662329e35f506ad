"""Converts a tensor to a record on the writer thread: the other half of `handover`.

A step returns a tensor whole, some rows of it, or statistics. Each function here reads one of these forms, so it must agree with
the `Finish` that made it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fitscope.pipeline.handover import HostAdapter, ReplicaRows, Shard, Thin, first_samples
from fitscope.pipeline.replicas import together
from fitscope.plan.sampling import as_rows, stride
from fitscope.plan.wants import Want
from fitscope.record import Head, Moment, Record
from fitscope.reduce.average import Average
from fitscope.sites import Site

Array = np.ndarray[Any, Any]


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype. Cached, because NumPy takes 6 µs to find it."""
    return dtype.name


class HostTensor(NamedTuple):
    """A tensor on the host: the part to compute stats from, and the facts of the whole."""

    head: Head
    array: Array


def seen(site: Site, want: Want, value: Any, adapter: HostAdapter) -> HostTensor:
    """The tensor of a site, from the result of the step: whole, or some rows."""
    if isinstance(value, Thin):
        array = adapter.to_numpy(value.rows)
        shape = tuple(int(n) for n in adapter.to_numpy(value.shape))
    else:
        array = value if isinstance(value, np.ndarray) else adapter.to_numpy(value)
        shape = value.shape if isinstance(value, Shard) else array.shape
        if want.sampled:
            rows, length = as_rows(array.shape, batched=site.batched)
            step = stride(rows, length)
            if step > 1:
                array = np.ascontiguousarray(array.reshape(rows, length)[::step])
    return HostTensor(Head(site, shape, _name_of(array.dtype), site.batched and len(shape) > 0), array)


def one_loss(array: Array) -> Array:
    """The loss of a batch as one number: the mean, if the loss has one value per sample."""
    if array.ndim == 0:
        return array
    return np.asarray(array.mean(dtype=np.float64) if array.size else np.nan, array.dtype)


def kept(site: Site, want: Want, value: Any, at: Moment, adapter: HostAdapter) -> Record | None:
    """The record of the kept part of a whole tensor, without stats; None if this process holds nothing of that part."""
    array = adapter.to_numpy(value)
    batched, shape, offset = site.batched and array.ndim > 0, array.shape, None
    if isinstance(value, Shard):
        shape, offset = value.shape, value.offset
        if batched and want.samples is not None:
            want = replace(want, samples=max(want.samples - offset[0], 0))
            if want.samples == 0:
                return None
    tensor = first_samples(array, want, site)
    if tensor.nbytes < array.nbytes:
        tensor = tensor.copy()  # a view would keep the whole tensor
    return Record(site, at, shape, _name_of(array.dtype), None, tensor, batched, offset=offset)


def reduced(site: Site, want: Want, value: Mapping[str, Any], at: Moment, adapter: HostAdapter) -> Record:
    """The record of statistics that the step computed itself."""
    from fitscope.reduce import in_step

    shape = tuple(int(n) for n in adapter.to_numpy(value["shape"]))
    dtype = adapter.to_numpy(value["like"]).dtype
    stats = in_step.unpack([adapter.to_numpy(part) for part in value["stats"]]) if want.stats else None
    tensor = adapter.to_numpy(value["tensor"]) if want.tensor else None
    return Record(site, at, shape, dtype.name, stats, tensor, site.batched and len(shape) > 0)


def add_to_average(average: Average, site: Site, value: Any, at: Moment, adapter: HostAdapter) -> None:
    """Adds the result of a step to a running average."""
    if isinstance(value, dict):
        shape = adapter.to_numpy(value["shape"])
        mean, m2 = (adapter.to_numpy(part) for part in value["moments"])
        average.add_moments(mean, m2, int(shape[0]) if site.batched and len(shape) else 1, at.step)
    else:
        array = adapter.to_numpy(value)
        part = isinstance(value, Shard) and array.shape != value.shape
        if part and not (site.batched and value.whole_rows):
            raise ValueError("each process holds only a part of every sample, so there is no average")
        average.add(array, at.step, site.batched and array.ndim > 0)


def tensor_of(value: Any, adapter: HostAdapter) -> Array | None:
    """The values themselves, if the step returned all of them."""
    if isinstance(value, ReplicaRows):
        value = together(value, adapter)
    if isinstance(value, Thin):
        rows = adapter.to_numpy(value.rows)
        shape = tuple(adapter.to_numpy(value.shape).tolist())
        return rows.reshape(shape) if rows.size == math.prod(shape) else None
    if isinstance(value, dict):
        return adapter.to_numpy(value["tensor"]) if "tensor" in value else None
    return value if isinstance(value, np.ndarray) else adapter.to_numpy(value)
