"""Copies small tensors of an eager torch step to one vector.

A tensor that leaves the step by itself costs the training thread and the writer thread some microseconds of Python each. Joined, it
costs one, because torch copies all of them in one call. A vector has a *layout*: for each tensor its number, its rank and its shape.
Layouts are the same at every step, so each is made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors

from fitscope.pipeline.handover import SMALL, number
from fitscope.plan import sampling
from fitscope.sites import Site

Layout = np.ndarray[Any, Any]
Part = tuple[Any, Layout]  #: a vector, and the tensors in it

_REAL = frozenset(
    getattr(torch, name)
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
    )
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may be anything
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # inside vmap or grad: valid there alone
MOST_KNOWN = 1_000  #: layouts; a training on sequences of many lengths has more


def small(tensor: Any) -> bool:
    """Whether a tensor may leave the step joined with others, whole: of one with more than `sampling.ENOUGH` elements only some rows do."""
    return (
        type(tensor) in _PLAIN
        and tensor.numel() <= min(SMALL, sampling.ENOUGH)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype in _REAL
        and not _wrapped(tensor)
    )


def flat(tensors: Sequence[Any]) -> Any:
    """A copy of these tensors of one dtype, one after the other."""
    with torch.no_grad():
        if len(tensors) == 1:  # torch makes a view of a single tensor
            return tensors[0].reshape(-1).clone()
        return _flatten_dense_tensors(tensors)


_layouts: dict[tuple[Any, ...], Layout] = {}
_together: dict[tuple[int, ...], tuple[list[Layout], Layout]] = {}


def layout_of(names: Sequence[str], shapes: Sequence[Any]) -> Layout:
    """The layout of tensors with these names and shapes: the very same object at every step."""
    key = (*names, *shapes)
    known = _layouts.get(key)
    if known is None:
        _bounded(_layouts)
        parts = [
            n for name, shape in zip(names, shapes, strict=True) for n in (number(name), len(shape), *shape)
        ]
        known = _layouts[key] = np.array(parts, np.int64)
    return known


def together(small: Mapping[Site, Any]) -> list[Part]:
    """These small tensors as a vector for each dtype."""
    by_dtype: dict[Any, tuple[list[Site], list[Any]]] = {}
    for site, tensor in small.items():
        sites, some = by_dtype.setdefault(tensor.dtype, ([], []))
        sites.append(site)
        some.append(tensor)
    return [
        (flat(some), layout_of(sites, [tensor.shape for tensor in some])) for sites, some in by_dtype.values()
    ]


def joined(parts: Sequence[Part]) -> list[Part]:
    """Vectors of one dtype as one vector each."""
    by_dtype: dict[Any, list[Part]] = {}
    for vector, layout in parts:
        by_dtype.setdefault(vector.dtype, []).append((vector, layout))
    found = []
    for some in by_dtype.values():
        vectors, layouts = [vector for vector, _ in some], [layout for _, layout in some]
        found.append(some[0] if len(some) == 1 else (torch.cat(vectors), _one(layouts)))
    return found


def _one(layouts: list[Layout]) -> Layout:
    key = tuple(map(id, layouts))
    known = _together.get(key)
    if known is None:
        _bounded(_together)
        # The dict keeps the layouts, and so their ids.
        known = _together[key] = layouts, np.concatenate(layouts)
    return known[1]


def _bounded(known: dict[Any, Any]) -> None:
    if len(known) >= MOST_KNOWN:
        known.clear()
