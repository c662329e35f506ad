"""The kept tensors of a site as one xarray array, which reads only the chunks that a slice needs.

`Captures` maps each row of a stored array to its place in the whole array; the classes here answer xarray's requests for elements.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing  # xarray documents it for backends, though it is under `core`

from fitscope.errors import RunError
from fitscope.read.joint import padding
from fitscope.read.stored import MOST_PADDING, PLENTY, Array, Index, StoredArray
from fitscope.read.tensors import Captures, Share

BLOCK_BYTES = 64 << 20  #: bytes of a pass that are read at once


def lazy(captures: Captures) -> xr.DataArray:
    """All captures of a site as a lazy array: (step, sample, dim_1, …), or (step, dim_0, …) without samples."""
    kinds = {(piece.array.batched, len(piece.array.shape)) for piece in captures.pieces}
    if len(kinds) != 1:
        raise RunError(
            f"captures of one number of dimensions at {captures.site!r}",
            f"captures of {sorted(ndim - 1 for _, ndim in kinds)} dimensions",
            "Take them one by one: run.array(site, step)",
        )
    batched, ndim = kinds.pop()
    dims = [f"dim_{axis}" for axis in range(ndim - 1)]
    shapes = zip(*(_reach(piece) for piece in captures.pieces), strict=True)
    extents = [max(along) for along in shapes]
    if batched:
        dims[0], extents[0] = "sample", int(captures.size.max())
    elif captures.of_pass:
        dims, extents = ["batch", *dims], [int(captures.size.max()), *extents]
    coords: dict[str, Any] = {"step": captures.step}
    coords |= {name: ("step", values) for name, values in captures.beside.items()}
    data = (LazyPasses if captures.of_pass else LazyBatches)(captures, [len(captures.step), *extents])
    variable = xr.Variable(["step", *dims], indexing.LazilyIndexedArray(data))
    return xr.DataArray(variable, coords, name=captures.site, attrs={"site": captures.site})


class Lazy(xr.backends.BackendArray, ABC):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """The object that xarray asks for elements."""

    def __init__(self, captures: Captures, shape: Sequence[int]) -> None:
        self._captures = captures
        self.shape = tuple(shape)
        self.dtype = np.result_type(*(piece.array.dtype for piece in captures.pieces))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Array:
        self._can_be_there(key)
        wanted = [_places(k, extent) for k, extent in zip(key, self.shape, strict=True)]
        out = self._outer(wanted)
        return out[tuple(0 if isinstance(k, (int, np.integer)) else slice(None) for k in key)]

    def _can_be_there(self, key: tuple[Any, ...]) -> None:
        """Refuses to allocate far more memory than the captures need: shards may claim to lie anywhere."""
        lengths = (_length(k, extent) for k, extent in zip(key, self.shape, strict=True))
        size = math.prod(lengths) * self.dtype.itemsize
        if size > PLENTY and size > MOST_PADDING * self._captures.values * self.dtype.itemsize:
            raise RunError(
                f"tensors of {self._captures.site!r} that fit into one array",
                f"{size:,} bytes, nearly all of them padding",
                "Take them one by one: run.array(site, step)",
            )

    @abstractmethod
    def _outer(self, wanted: list[Index]) -> Array:
        """The elements at the outer product of `wanted`, one list of places per axis."""

    def _padding(self, shape: tuple[int, ...]) -> Array:
        return np.full(shape, padding(self.dtype), self.dtype)


class LazyBatches(Lazy):
    """Captures of a training: an entry is one row of an array, or one row per rank."""

    def _outer(self, wanted: list[Index]) -> Array:
        shape = tuple(len(places) for places in wanted)
        out: Array | None = None
        for piece in self._captures.pieces:
            row_at = np.full(self.shape[0], -1)
            row_at[piece.place] = piece.row
            offset_at = np.zeros((self.shape[0], len(self.shape) - 1), np.intp)
            offset_at[piece.place] = piece.inner
            if piece.array.batched:
                offset_at[piece.place, 0] = piece.offset
            rows = row_at[wanted[0]]
            for offset in np.unique(offset_at[wanted[0][rows >= 0]], axis=0):
                # A rank's padding lies where the next rank's samples go, and is overwritten by them.
                moved = [wanted[0], *(places - n for places, n in zip(wanted[1:], offset, strict=True))]
                inside = [(rows >= 0) & (offset_at[wanted[0]] == offset).all(axis=1)]
                inside += [
                    (places >= 0) & (places < extent)
                    for places, extent in zip(moved[1:], piece.array.shape[1:], strict=True)
                ]
                block = piece.array.read(
                    [rows[inside[0]], *(p[i] for p, i in zip(moved[1:], inside[1:], strict=True))]
                )
                if block.shape == shape and out is None:
                    out = block.astype(self.dtype, copy=False)
                    continue
                if out is None:
                    out = self._padding(shape)
                out[np.ix_(*(np.flatnonzero(i) for i in inside))] = block
        return self._padding(shape) if out is None else out


class LazyPasses(Lazy):
    """Captures of passes: an entry is many rows of an array."""

    def _outer(self, wanted: list[Index]) -> Array:
        out = self._padding(tuple(len(places) for places in wanted))
        if not out.size:
            return out
        for piece in self._captures.pieces:
            array = piece.array
            shift = (
                piece.inner[0][1:] if array.batched else piece.inner[0]
            )  # the shard of a rank keeps its place
            inner = [places - n for places, n in zip(wanted[2:], shift, strict=True)]
            within = zip(inner, self._inner(array), strict=True)
            inside = [(places >= 0) & (places < extent) for places, extent in within]
            inner = [places[i] for places, i in zip(inner, inside, strict=True)]
            sizes = array.shapes[piece.row, 0] if array.batched else np.ones(len(piece.row), np.int64)
            needed = np.isin(piece.place, wanted[0])
            needed &= (piece.offset <= wanted[1].max()) & (piece.offset + sizes > wanted[1].min())
            at = np.flatnonzero(needed)
            each = math.prod(array.shape[1:]) * array.dtype.itemsize
            step = max(1, BLOCK_BYTES // max(1, each))
            for start in range(0, len(at), step):
                some = at[start : start + step]
                axes = [np.arange(sizes[some].max())] if array.batched else []
                block = array.read([piece.row[some], *axes, *inner])
                for values, one in zip(block, some, strict=True):
                    local = wanted[1] - piece.offset[one]
                    here = (local >= 0) & (local < sizes[one])
                    to = (wanted[0] == piece.place[one], here, *inside)
                    taken = values[local[here]] if array.batched else values[None]
                    out[np.ix_(*(np.flatnonzero(mask) for mask in to))] = taken
        return out

    @staticmethod
    def _inner(array: StoredArray) -> tuple[int, ...]:
        return array.shape[2:] if array.batched else array.shape[1:]


def _reach(piece: Share) -> tuple[int, ...]:
    """Where the captures of an array end along each axis of the whole."""
    return tuple((piece.inner.max(axis=0) + np.array(piece.array.shape[1:], np.int64)).tolist())


def _length(key: Any, extent: int) -> int:
    """The number of places along an axis that a key selects."""
    return len(range(*key.indices(extent))) if isinstance(key, slice) else int(np.size(key))


def _places(key: Any, extent: int) -> Index:
    """The places along an axis that a key selects."""
    if isinstance(key, slice):
        return np.arange(*key.indices(extent))
    places = np.atleast_1d(np.asarray(key, np.intp))
    if ((places < -extent) | (places >= extent)).any():
        raise IndexError(f"{key!r} is out of bounds for an axis of {extent}")
    return np.where(places < 0, places + extent, places)
