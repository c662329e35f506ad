"""Reads one Zarr array of a run chunk by chunk.

fitscope reads the chunks itself instead of through zarr-python for one reason: zarr-python silently fills a missing chunk. Here
it is an error that names the chunk, unless nothing was ever captured in it. The arrays are simple, with one codec and no
compression, so a chunk is its bytes. Each is compared with its checksum in the index (see `store/checksum.py`); runs from before
there were checksums have none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fitscope.errors import RunError
from fitscope.read import untrusted
from fitscope.store import checksum
from fitscope.store._base import Objects
from fitscope.store.schema import DATA, FILL, STORED_AS, TENSORS

Array = np.ndarray[Any, Any]
Index = np.ndarray[Any, np.dtype[np.intp]]

MOST_DIMENSIONS = 32  #: what NumPy can
MOST_CHUNK = 64 << 20  #: bytes; the writer splits a capture into chunks of 16 MB or less
PLENTY = 64 << 20  #: bytes of tensors that may always be requested, however much is stored
MOST_PADDING = 64  #: padding, in multiples of the bytes in the store
LARGEST_OFFSET = 2**40


class StoredArray:
    """The committed captures of one array, as of one reading of its zarr.json.

    `report` is called with the key of a chunk that is damaged, and the reason.
    """

    def __init__(
        self, rank: Objects, path: str, document: bytes, report: Callable[[str, str], None] | None = None
    ) -> None:
        self._rank = rank
        self._report = report
        self._files: int | None = None  # the number of stored chunks, once counted
        self._folder = f"{TENSORS}/{path}/{DATA}"
        meta = untrusted.parse(document)
        facts = meta["attributes"]
        self.site = _text(facts, "site")
        self.shape: tuple[int, ...] = _extents("shape", meta["shape"])
        self.chunk: tuple[int, ...] = _extents(
            "chunk_shape", meta["chunk_grid"]["configuration"]["chunk_shape"], least=1
        )
        if not 1 <= len(self.shape) == len(self.chunk) <= MOST_DIMENSIONS:
            raise ValueError(
                f"its shape {self.shape} and its chunks {self.chunk} must have the same number of dimensions, "
                f"from 1 to {MOST_DIMENSIONS}"
            )
        if meta["data_type"] not in FILL:
            raise ValueError(f"its `data_type` is {meta['data_type']!r}, not one of {', '.join(FILL)}")
        self.stored_as = np.dtype(meta["data_type"]).newbyteorder("<")
        self.chunk_bytes = math.prod(self.chunk) * self.stored_as.itemsize
        if self.chunk_bytes > MOST_CHUNK:
            raise ValueError(f"its chunks have {self.chunk_bytes:,} bytes, more than {MOST_CHUNK:,}")
        self.dtype = _dtype(_text(facts, "dtype"), self.stored_as)
        self.batched = facts["batched"] is True
        self.fill: float = math.nan if self.stored_as.kind in "fc" else 0
        count = self.shape[0]
        self.step, self.epoch, self.batch = (
            _column(name, facts[name], count) for name in ("step", "epoch", "batch")
        )
        self.shapes = self._shapes(facts, count)  #: the true shape of each capture
        self.offset = self._offsets(
            facts, count
        )  #: where each capture begins in the whole; None if it is the whole
        self.batch_size = (
            _column("batch_size", facts["batch_size"], count) if self.batched else np.zeros(count, np.int64)
        )
        self._sums: dict[str, int] | None = facts.get("crc32c")
        if "crc32c" in facts and not untrusted.mapping(untrusted.up_to(checksum.MOST))(self._sums):
            raise ValueError("its attribute `crc32c` does not map chunks to checksums")

    def _shapes(self, facts: dict[str, Any], count: int) -> Index:
        inner = self.shape[1:]
        if "shapes" in facts:
            flat = [extent for shape in facts["shapes"] for extent in shape]
            shapes = _column("shapes", flat, count * len(inner)).reshape(count, len(inner))
        else:
            shapes = np.tile(np.array(inner, np.int64), (count, 1))
            if self.batched:
                shapes[:, 0] = _column("size", facts["size"], count)
        if (shapes < 0).any() or (shapes > np.array(inner, np.int64)).any():
            raise ValueError(f"its `shapes` or `size` have captures larger than its shape {inner}")
        size = self.stored_as.itemsize
        if (
            math.prod(inner) * size > PLENTY
            and (shapes.max(axis=0, initial=0) < np.array(inner, np.int64)).any()
        ):
            raise ValueError(f"its shape is {inner}, but none of its captures is that large")
        claimed = sum(math.prod(shape) for shape in shapes.tolist()) * size
        if claimed > PLENTY and claimed > self._stored_bytes():
            raise ValueError(
                f"its captures would have {claimed:,} bytes, more than the {self._stored_bytes():,} of its chunks"
            )
        return shapes

    def _offsets(self, facts: dict[str, Any], count: int) -> Index | None:
        if "offset" not in facts:
            return None
        ndim = len(self.shape) - 1
        flat = [n for offset in facts["offset"] for n in offset]
        offsets = _column("offset", flat, count * ndim).reshape(count, ndim)
        if (offsets < 0).any() or (offsets > LARGEST_OFFSET).any():
            raise ValueError(f"its attribute `offset` has a position outside 0 to {LARGEST_OFFSET:,}")
        return offsets

    def _stored_bytes(self) -> int:
        """The bytes of all existing chunks."""
        if self._files is None:
            try:
                self._files = len(self._rank.list(self._folder))
            except OSError as problem:
                raise self._broken(self._folder, str(problem)) from problem
        return int(self._files * self.chunk_bytes)

    def capture(self, row: int) -> Array:
        """One capture without padding."""
        whole: Array = self.read([np.array([row]), *(np.arange(extent) for extent in self.shapes[row])])
        return whole[0, ...]

    def read(self, wanted: Sequence[Index]) -> Array:
        """The elements at the outer product of `wanted`, one list of places per axis."""
        self._can_be_there(wanted)
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

    def _can_be_there(self, wanted: Sequence[Index]) -> None:
        """Refuses to allocate far more memory than the stored data needs."""
        size = math.prod(len(places) for places in wanted) * self.stored_as.itemsize
        if size <= PLENTY:
            return
        if (
            size > MOST_PADDING * self._stored_bytes()
        ):  # where captures differ in size, the smaller are padded
            raise RunError(
                f"tensors of {self.site!r} that fit into one array",
                f"{size:,} bytes, nearly all of them padding",
                "Take them one by one: run.array(site, step)",
            )

    def _chunk(self, cell: list[int], rows: Index) -> Array | None:
        """The elements of a chunk; None if no wanted capture has data in it."""
        name = ".".join(map(str, cell))
        key = f"{self._folder}/c.{name}"
        if self._sums is not None and name not in self._sums:
            self._may_be_absent(key, cell, rows)
            return None
        try:
            data = self._rank.get(key, self.chunk_bytes)
        except FileNotFoundError:
            self._may_be_absent(key, cell, rows)
            return None
        except OSError as problem:
            raise self._broken(key, str(problem)) from problem
        if len(data) != self.chunk_bytes:
            raise self._broken(key, f"it has {len(data)} bytes")
        found = np.frombuffer(data, np.uint8)
        if self._sums is not None:
            counted = min(self.shape[0] - cell[0] * self.chunk[0], self.chunk[0])
            if checksum.crc32c(found[: counted * (self.chunk_bytes // self.chunk[0])]) != self._sums[name]:
                raise self._broken(key, "its checksum is not the one in the index")
        values: Array = found.view(self.stored_as).reshape(self.chunk)
        return values

    def _may_be_absent(self, key: str, cell: list[int], rows: Index) -> None:
        """Refuses a chunk that does not exist, though one of the wanted captures has data in it."""
        inside = rows[rows // self.chunk[0] == cell[0]]
        starts = np.array(cell[1:], np.int64) * np.array(self.chunk[1:], np.int64)
        if (self.shapes[inside] > starts).all(axis=1).any():
            raise self._broken(key, "it is missing")

    def _broken(self, key: str, what: str) -> RunError:
        if self._report is not None:
            self._report(key, what)
        return RunError(
            f"the tensors of {self.site!r} to be complete, in chunks of {self.chunk_bytes} bytes",
            f"a damaged chunk {self._rank.describe(key)!r}: {what}",
            "Other captures and sites can still be read",
        )


def _text(facts: dict[str, Any], field: str) -> str:
    value = facts[field]
    if not untrusted.text(value):
        raise ValueError(f"its attribute {field!r} is {value!r}, not a name")
    return str(value)


def _extents(field: str, value: Any, least: int = 0) -> tuple[int, ...]:
    if not untrusted.listing(untrusted.count)(value) or any(extent < least for extent in value):
        raise ValueError(f"its `{field}` is {value!r}, not a list of whole numbers from {least} up")
    return tuple(value)


def _column(field: str, values: Any, count: int) -> Index:
    """A column of the index of captures."""
    if not untrusted.listing(untrusted.integer)(values) or len(values) != count:
        raise ValueError(f"its attribute {field!r} does not have {count:,} whole numbers")
    return np.array(values, np.int64)


def _dtype(name: str, stored_as: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a tensor in the step; NumPy knows most, ml_dtypes the rest."""
    if np.dtype(stored_as).name == name:
        return np.dtype(stored_as.name)
    import ml_dtypes

    if name not in STORED_AS and name not in FILL:
        raise ValueError(f"its attribute 'dtype' is {name!r}, not a type of numbers")
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
