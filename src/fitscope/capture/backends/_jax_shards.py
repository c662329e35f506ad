"""Divides JAX tensors that lie on several devices, or on the devices of several processes.

A process records the shards that it owns: those with `replica_id == 0` on its own devices. JAX gives that number to exactly one of
the devices that hold the same elements, so over all processes every element is recorded once. Nothing is gathered, and no process
asks another one. Together the shards of one process are a block of the whole tensor; if they are not, the site says so.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from fitscope.capture.backends._harvest import Harvest
from fitscope.pipeline.handover import Shard

NO_BLOCK = "the shards of one process do not form a block of the tensor, which is not supported"


def spread() -> bool:
    """Whether tensors lie on several devices, as far as is known while a step is traced."""
    from keras.distribution import distribution

    return jax.process_count() > 1 or distribution() is not None


def divide(harvest: Harvest) -> None:
    """Replaces each tensor of all processes by the part that this process owns, and drops the others."""
    for name, tensor in list(harvest.tensors.items()):
        if not isinstance(tensor, jax.Array) or tensor.is_fully_addressable:
            if jax.process_index() > 0:  # every process has it, and the first one records it
                del harvest.tensors[name]
            continue
        try:
            part = owned(tensor)
        except ValueError as error:
            harvest.failed[harvest.sites[name]] = str(error)
            part = None
        if part is None:
            del harvest.tensors[name]
        else:
            harvest.tensors[name] = part


def owned(tensor: jax.Array) -> Shard | None:
    """The part of a tensor that this process records; None if there is none."""
    mine = [shard for shard in tensor.addressable_shards if shard.replica_id == 0]
    if not mine:
        return None
    starts = [tuple(int(axis.start or 0) for axis in shard.index) for shard in mine]
    shapes = [shard.data.shape for shard in mine]
    offset = tuple(min(along) for along in zip(*starts, strict=True))
    ends = zip(
        *(map(sum, zip(start, shape, strict=True)) for start, shape in zip(starts, shapes, strict=True)),
        strict=True,
    )
    extent = tuple(max(along) - first for along, first in zip(ends, offset, strict=True))
    if sum(math.prod(shape) for shape in shapes) != math.prod(extent):
        raise ValueError(NO_BLOCK)
    inside = (tuple(n - first for n, first in zip(start, offset, strict=True)) for start in starts)
    blocks = tuple(zip(inside, (shard.data for shard in mine), strict=True))
    return Shard(blocks, offset, extent, tensor.shape, tensor.dtype)


def assembled(part: Shard) -> np.ndarray[Any, Any]:
    """The values of a part."""
    if len(part.blocks) == 1:
        return np.asarray(part.blocks[0][1])
    whole = np.empty(part.extent, part.dtype)
    for start, block in part.blocks:
        whole[tuple(slice(n, n + size) for n, size in zip(start, block.shape, strict=True))] = np.asarray(
            block
        )
    return whole
