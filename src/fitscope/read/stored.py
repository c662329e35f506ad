"""Reads one Zarr array of a run chunk by chunk.

fitscope reads the chunks itself instead of through zarr-python for one reason: zarr-python silently fills a missing chunk. Here
it is an error that names the chunk, unless nothing was ever captured in it. The arrays are simple, with one codec and no
compression, so a chunk is its bytes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fitscope.errors import RunError
from fitscope.store._base import Objects
from fitscope.store.schema import DATA, TENSORS

Array = np.ndarray[Any, Any]
Index = np.ndarray[Any, np.dtype[np.intp]]


class StoredArray:
    """The committed captures of one array, as of one reading of its zarr.json."""

    def __init__(self, rank: Objects, path: str, document: bytes) -> None:
        self._rank = rank
        self._folder = f"{TENSORS}/{path}/{DATA}"
        meta = json.loads(document)
        facts = meta["attributes"]
        self.site = str(facts["site"])
        self.shape: tuple[int, ...] = tuple(meta["shape"])
        self.chunk: tuple[int, ...] = tuple(meta["chunk_grid"]["configuration"]["chunk_shape"])
        self.stored_as = np.dtype(meta["data_type"]).newbyteorder("<")
        self.dtype = _dtype(facts["dtype"], self.stored_as)
        self.batched = bool(facts["batched"])
        self.fill: float = math.nan if self.stored_as.kind in "fc" else 0
        count = self.shape[0]
        self.step, self.epoch, self.batch = (
            np.array(facts[name], np.int64) for name in ("step", "epoch", "batch")
        )
        shapes = np.tile(np.array(self.shape[1:], np.int64), (count, 1))
        if "shapes" in facts:
            shapes = np.array(facts["shapes"], np.int64).reshape(count, len(self.shape) - 1)
        elif self.batched:
            shapes[:, 0] = facts["size"]
        self.shapes = shapes  #: the true shape of each capture
        self.batch_size = (
            np.array(facts["batch_size"], np.int64) if self.batched else np.zeros(count, np.int64)
        )
        if not len(self.step) == len(self.epoch) == len(self.batch) == len(self.batch_size) == count:
            raise ValueError("the index and the length differ")

    def capture(self, row: int) -> Array:
        """One capture without padding."""
        whole: Array = self.read([np.array([row]), *(np.arange(extent) for extent in self.shapes[row])])
        return whole[0, ...]

    def read(self, wanted: Sequence[Index]) -> Array:
        """The elements at the outer product of `wanted`, one list of places per axis."""
        out = np.full([len(places) for places in wanted], self.fill, self.stored_as)
        if out.size:
            axes = [_by_chunk(places, size) for places, size in zip(wanted, self.chunk, strict=True)]
            for pieces in itertools.product(*axes):
                chunk = self._chunk([piece[0] for piece in pieces], wanted[0])
                if chunk is not None:
                    out[_outer([piece[1] for piece in pieces])] = chunk[
                        _outer([piece[2] for piece in pieces])
                    ]
        return out.astype(self.dtype, copy=False)

    def _chunk(self, cell: list[int], rows: Index) -> Array | None:
        """The elements of a chunk; None if no wanted capture has data in it."""
        key = f"{self._folder}/c.{'.'.join(map(str, cell))}"
        try:
            data = self._rank.get(key)
        except FileNotFoundError:
            inside = rows[rows // self.chunk[0] == cell[0]]
            starts = np.array(cell[1:], np.int64) * np.array(self.chunk[1:], np.int64)
            if not (self.shapes[inside] > starts).all(axis=1).any():
                return None
            raise self._broken(key, "it is missing") from None
        except OSError as problem:
            raise self._broken(key, str(problem)) from problem
        if len(data) != math.prod(self.chunk) * self.stored_as.itemsize:
            raise self._broken(key, f"it has {len(data)} bytes")
        return np.frombuffer(data, self.stored_as).reshape(self.chunk)

    def _broken(self, key: str, what: str) -> RunError:
        size = math.prod(self.chunk) * self.stored_as.itemsize
        return RunError(
            f"the tensors of {self.site!r} to be complete, in chunks of {size} bytes",
            f"a damaged chunk {self._rank.describe(key)!r}: {what}",
            "Other captures and sites can still be read",
        )


def _dtype(name: str, stored_as: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a tensor in the step; NumPy knows most, ml_dtypes the rest."""
    if np.dtype(stored_as).name == name:
        return np.dtype(stored_as.name)
    import ml_dtypes

    kind = getattr(ml_dtypes, name, None)
    return np.dtype(stored_as.name if kind is None else kind)


def _by_chunk(places: Index, size: int) -> list[tuple[int, Any, Any]]:
    """Groups places on one axis by chunk: (chunk, target places, places in the chunk)."""
    if len(places) == 0:
        return []
    chunk = places // size
    if (np.diff(places) == 1).all():  # one stretch: slices, so that NumPy copies blocks
        first = int(places[0])
        return [
            (
                c,
                slice(max(c * size, first) - first, min((c + 1) * size, first + len(places)) - first),
                slice(max(c * size, first) - c * size, min((c + 1) * size, first + len(places)) - c * size),
            )
            for c in range(int(chunk[0]), int(chunk[-1]) + 1)
        ]
    return [
        (int(c), (here := np.flatnonzero(chunk == c)), places[here] - int(c) * size) for c in np.unique(chunk)
    ]


def _outer(places: list[Any]) -> tuple[Any, ...]:
    """An index for the outer product of slices and lists of places."""
    if all(isinstance(place, slice) for place in places):
        return tuple(places)
    lists = [np.arange(place.start, place.stop) if isinstance(place, slice) else place for place in places]
    return np.ix_(*lists)
