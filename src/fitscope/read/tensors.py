"""The tensors of one site over a whole run: all arrays, attempts and ranks of it as one.

A step counts in the attempt that owns it. What several ranks saw of the same step follows one another along
`sample`, in the order of the ranks; what is not made of samples (weights, updates) is the same everywhere
and taken from the first. Nothing is read before it is asked for, and then only the chunks needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing  # documented for backends, though under `core`

from fitscope.errors import RunError
from fitscope.read.stored import Array, Index, StoredArray


@dataclass(frozen=True, slots=True)
class Piece:
    """One array's share: its `row[i]` is the capture `place[i]` of the run, from sample `offset[i]` on."""

    array: StoredArray
    row: Index
    place: Index
    offset: Index


class Captures:
    """All captures at one site, ordered by step and within a step as they came."""

    def __init__(self, site: str, ranks: Sequence[Sequence[tuple[StoredArray, int | None]]]) -> None:
        """`ranks`: for each the arrays of the site, with the step at which their attempt stops to count."""
        self.site = site
        places: dict[tuple[int, int, int, int], int] = {}
        sizes: list[int] = []
        batch_sizes: list[int] = []
        found: list[tuple[StoredArray, list[int], list[int], list[int]]] = []
        for arrays in ranks:
            seen: dict[tuple[int, int, int], int] = {}  # a step has several batches in a validation
            for array, end in arrays:
                rows, to, offsets = [], [], []
                moments = zip(array.step.tolist(), array.epoch.tolist(), array.batch.tolist(), strict=True)
                for row, moment in enumerate(moments):
                    if end is not None and moment[0] >= end:
                        continue
                    again = seen[moment] = seen.get(moment, -1) + 1
                    place = places.setdefault((*moment, again), len(places))
                    if place == len(sizes):
                        sizes.append(0)
                        batch_sizes.append(0)
                    elif not array.batched:
                        continue
                    rows.append(row)
                    to.append(place)
                    offsets.append(sizes[place])
                    if array.batched:
                        sizes[place] += int(array.shapes[row, 0])
                        batch_sizes[place] += int(array.batch_size[row])
                if rows:
                    found.append((array, rows, to, offsets))
        moments_found = np.array(list(places), np.int64).reshape(len(places), 4)
        order = np.argsort(moments_found[:, 0], kind="stable")
        rank_of = np.empty(len(order), np.intp)
        rank_of[order] = np.arange(len(order))
        self.step, self.epoch, self.batch = (moments_found[order, axis] for axis in range(3))
        self.size = np.array(sizes, np.int64)[order]
        self.batch_size = np.array(batch_sizes, np.int64)[order]
        self.pieces = [
            Piece(array, np.array(rows), rank_of[np.array(to)], np.array(offsets))
            for array, rows, to, offsets in found
        ]

    def at(self, step: int) -> Array:
        """The newest capture of a step, without padding."""
        places = np.flatnonzero(self.step == step)
        if not len(places):
            raise RunError(
                f"a step at which {self.site!r} was captured",
                f"step {step}",
                f"There are: {_listed(self.step)}",
            )
        found = [
            piece.array.capture(int(row))
            for piece in self.pieces
            for row in piece.row[piece.place == places[-1]]
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def lazy(self) -> xr.DataArray:
        """All of it, lazy: (step, sample, dim_1, …), or (step, dim_0, …) where there are no samples."""
        kinds = {(piece.array.batched, len(piece.array.shape)) for piece in self.pieces}
        if len(kinds) != 1:
            raise RunError(
                f"captures of one number of dimensions at {self.site!r}",
                f"captures of {sorted(ndim - 1 for _, ndim in kinds)} dimensions",
                "Take them one by one: run.array(site, step)",
            )
        batched, ndim = kinds.pop()
        data = LazyCaptures(self)
        dims = ["step", *(f"dim_{axis}" for axis in range(ndim - 1))]
        coords: dict[str, Any] = {
            "step": self.step,
            "epoch": ("step", self.epoch),
            "batch": ("step", self.batch),
        }
        if batched:
            dims[1] = "sample"
            coords["size"] = ("step", self.size)
            coords["batch_size"] = ("step", self.batch_size)
        variable = xr.Variable(dims, indexing.LazilyIndexedArray(data))
        return xr.DataArray(variable, coords, name=self.site, attrs={"site": self.site})


class LazyCaptures(xr.backends.BackendArray):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """What xarray asks for elements."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        arrays = [piece.array for piece in captures.pieces]
        inner = [max(extents) for extents in zip(*(array.shape[1:] for array in arrays), strict=True)]
        if arrays[0].batched:
            inner[0] = int(captures.size.max())
        self.shape = (len(captures.step), *inner)
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Array:
        wanted = [np.atleast_1d(np.arange(extent)[k]) for k, extent in zip(key, self.shape, strict=True)]
        out = self._outer(wanted)
        return out[tuple(0 if isinstance(k, (int, np.integer)) else slice(None) for k in key)]

    def _outer(self, wanted: list[Index]) -> Array:
        shape = tuple(len(places) for places in wanted)
        out: Array | None = None
        for piece in self._captures.pieces:
            row_at = np.full(self.shape[0], -1)
            row_at[piece.place] = piece.row
            offset_at = np.zeros(self.shape[0], np.intp)
            offset_at[piece.place] = piece.offset
            rows = row_at[wanted[0]]
            for offset in np.unique(offset_at[wanted[0][rows >= 0]]):
                # A rank's padding lies where the next rank's samples go, and is overwritten by them.
                moved = list(wanted)
                if len(moved) > 1:
                    moved[1] = moved[1] - offset
                inside = [(rows >= 0) & (offset_at[wanted[0]] == offset)]
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

    def _padding(self, shape: tuple[int, ...]) -> Array:
        fill: float = 0 if self.dtype.kind in "iub" else np.nan
        return np.full(shape, fill, self.dtype)


def _listed(steps: Array) -> str:
    shown = [str(step) for step in np.unique(steps)]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-6:]])
