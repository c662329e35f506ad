"""One Zarr v3 array that grows by one capture at a time and is always readable.

A chunk of an uncompressed Zarr array is nothing but its elements' bytes, so chunks are put as they are,
without a copy where the capture has the chunk's shape. `zarr.json` carries the length of the array, the
index of its captures and the checksums of its chunks in one object and is put *after* the chunks it counts:
that is the commit. So every reader sees only complete captures at any moment.

    write    the capture's chunks are put, or wait in the tail chunk if small captures share one
    stage    tail chunks are put
    commit   zarr.json is put, counting all that is staged

The life of a capture is three counts: `captures` ≥ `stored` (chunks are in the store) ≥ `committed`. If a put fails, committed data
stays, and the next successful commit is consistent again: captures that cannot be kept are removed and counted as lost. Not
thread-safe.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np

from fitscope.record import Moment
from fitscope.store import checksum
from fitscope.store.meter import Meter
from fitscope.store.schema import DATA, FILL, TENSORS

Array = np.ndarray[Any, Any]
Cell = tuple[int, ...]

LARGEST_CHUNK = (
    16 << 20
)  #: a larger capture is split along its first axis, or along the next one if a single row is larger
SHARED_CHUNK = 256 << 10  #: captures of up to half this size share a chunk of this size
MOST_SHARED = 1024  #: captures in one chunk
INDEX_BYTES = 60  #: rough bytes of a capture in the index

_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The shape of a chunk of (step, *shape): several small captures, one, or a share of a large one."""
    inner = [max(1, extent) for extent in shape]
    size = math.prod(inner) * itemsize
    shared = max(1, min(SHARED_CHUNK // size, MOST_SHARED))
    for axis, rows in enumerate(inner):
        size = math.prod(inner) * itemsize
        if size <= LARGEST_CHUNK:
            break
        pieces = min(rows, math.ceil(size / LARGEST_CHUNK))
        # A split without remainder needs no padding, hence no copy: look for one a little further on.
        pieces = next((n for n in range(pieces, min(2 * pieces, rows) + 1) if rows % n == 0), pieces)
        inner[axis] = math.ceil(rows / pieces)
    return (shared, *inner)


def cells(shape: tuple[int, ...], chunk: tuple[int, ...]) -> list[Cell]:
    """The chunks that a capture of `shape` touches, without their place along the steps."""
    return list(
        itertools.product(*(range(-(-extent // c)) for extent, c in zip(shape, chunk[1:], strict=True)))
    )


class ArrayKind(NamedTuple):
    """The common properties of all captures of one array."""

    site: str
    dtype: str  #: the dtype in the step
    stored_as: np.dtype[Any]
    ndim: int  #: the dimensions of one capture
    batched: bool
    sharded: bool = False  #: whether captures are parts of larger tensors, each with an offset


class GrowingArray:
    """The captures of one kind, in the group `path`, laid out for captures like the `first`."""

    def __init__(self, meter: Meter, path: str, kind: ArrayKind, first: tuple[int, ...]) -> None:
        self.kind = kind
        self.path = path
        self.stored = 0
        self.committed = 0
        self._meter = meter
        self._stored_as = stored_as = kind.stored_as
        self._fill = np.nan if stored_as.kind in "fc" else 0
        self._first = first
        self._chunk = chunk_shape(first, stored_as.itemsize)
        self.chunk_bytes = math.prod(self._chunk) * stored_as.itemsize
        self._suited = first  # the newest shape that fits this array
        self._extent = first  # grows to hold the largest capture
        self._varies = False  # whether captures differ in more than the number of rows
        self._tails: dict[Cell, Array] = {}  # the chunks still being filled, by cell
        self._tails_put: set[Cell] = set()  # tail chunks of which the store has an earlier state
        # Chunks put for a capture that then failed: the next capture must overwrite them.
        self._stale: set[Cell] = set()
        self._sums: dict[str, int] = {}  # the checksum of the `stored` bytes, by chunk
        self._json_bytes = 0
        index = ("step", "epoch", "batch", *(("size", "batch_size") if kind.batched else ()), "shapes")
        index += ("offset",) if kind.sharded else ()
        # as JSON text, so that a commit only has to join it
        self._index: dict[str, list[str]] = {name: [] for name in index}

    @property
    def captures(self) -> int:
        return len(self._index["step"])

    def cost(self, shape: tuple[int, ...]) -> int:
        """The approximate number of bytes of one more capture."""
        if self.captures % self._chunk[0] == 0:
            return len(cells(shape, self._chunk)) * self.chunk_bytes + INDEX_BYTES
        return INDEX_BYTES

    def suits(self, shape: tuple[int, ...]) -> bool:
        """False for a capture so much larger than the first that it would need many small chunks."""
        if shape == self._suited:
            return True
        ideal = len(cells(shape, chunk_shape(shape, self._stored_as.itemsize)))
        if len(cells(shape, self._chunk)) > 4 * ideal + 60:
            return False
        self._suited = shape
        return True

    def write(
        self, tensor: Array, at: Moment, batch_size: int, offset: tuple[int, ...] | None = None
    ) -> None:
        """Adds a capture. If that raises, the caller must `roll_back`."""
        place = self.captures
        self._note(tensor.shape, at, batch_size)
        if offset is not None:
            self._index["offset"].append(str([int(n) for n in offset]))
        if self._chunk[0] == 1:
            self._put_capture(place, tensor)
            self.stored = self.captures
        else:
            self._into_tails(place % self._chunk[0], tensor)
            if self.captures % self._chunk[0] == 0:
                self.stage()
                self._tails, self._tails_put = {}, set()
        if tensor.shape != self._extent:
            self._extent = tuple(map(max, self._extent, tensor.shape))

    def stage(self) -> None:
        """Writes the tail chunks, so that all captures are in the store."""
        if self.stored == self.captures:
            return
        row, full = divmod(self.stored, self._chunk[0])
        sums = {}
        for cell, chunk in self._tails.items():
            again, name = cell in self._tails_put, _name(row, cell)
            self._meter.put(self._chunk_key(name), _bytes(chunk), self.chunk_bytes if again else 0)
            if not again:
                self._tails_put.add(cell)
                self._meter.promised -= self.chunk_bytes
            if checksum.FAST:
                known = name in self._sums
                new = chunk[full if known else 0 : self.captures - row * self._chunk[0]]
                sums[name] = checksum.crc32c(_flat(new), self._sums.get(name, 0))
        self._sums |= sums
        self.stored = self.captures

    def commit(self) -> None:
        """Writes zarr.json, which makes all staged captures visible."""
        if self.stored == self.captures > self.committed:
            document = self._document().encode()
            self._meter.put(f"{TENSORS}/{self.path}/{DATA}/zarr.json", document, self._json_bytes)
            self._json_bytes = len(document)
            self.committed = self.stored

    def roll_back(self) -> int:
        """Drops the captures whose chunks are not in the store, and returns their number."""
        lost = self.captures - self.stored
        for column in self._index.values():
            del column[self.stored :]
        if self.stored % self._chunk[0] == 0:  # the tails contained nothing else
            self._meter.promised -= len(self._tails.keys() - self._tails_put) * self.chunk_bytes
            self._stale |= self._tails_put
            self._tails, self._tails_put = {}, set()
        return lost

    def _put_capture(self, row: int, tensor: Array) -> None:
        wanted, sums = cells(tensor.shape, self._chunk), {}
        # If this capture is smaller, chunks of a failed one at this place must not remain readable.
        for cell in self._stale.difference(wanted):
            self._meter.put(self._chunk_key(_name(row, cell)), _bytes(self._empty()), self.chunk_bytes)
        for cell in wanted:
            block = tensor[self._region(cell)]
            if block.shape != self._chunk[1:]:
                padded = self._empty()
                padded[_corner(0, block)] = block
                block = padded
            data, name = _flat(block), _name(row, cell)
            self._meter.put(self._chunk_key(name), data.data, self.chunk_bytes if cell in self._stale else 0)
            self._stale.add(cell)
            if checksum.FAST:
                sums[name] = checksum.crc32c(data)
        self._sums |= sums
        self._stale.clear()

    def _into_tails(self, place: int, tensor: Array) -> None:
        if tensor.shape == self._chunk[1:] and len(self._tails) == 1 and not self._stale:  # the usual case
            next(iter(self._tails.values()))[place] = tensor
            return
        wanted = set(cells(tensor.shape, self._chunk)) | self._stale
        for cell in wanted.difference(self._tails):
            self._tails[cell] = self._empty()
            self._meter.promised += 0 if cell in self._stale else self.chunk_bytes
        self._tails_put |= self._stale
        self._stale.clear()
        for cell, chunk in self._tails.items():
            block = tensor[self._region(cell)]
            if block.shape != self._chunk[1:]:
                chunk[place] = self._fill  # a dropped capture may have left values here
            chunk[_corner(place, block)] = block

    def _note(self, shape: tuple[int, ...], at: Moment, batch_size: int) -> None:
        skip = 1 if self.kind.batched else 0
        self._varies = self._varies or shape[skip:] != self._first[skip:]
        index = self._index
        index["step"].append(str(int(at.step)))
        index["epoch"].append(str(int(at.epoch)))
        index["batch"].append(str(int(at.batch)))
        if self.kind.batched:
            index["size"].append(str(shape[0]))
            index["batch_size"].append(str(batch_size))
        index["shapes"].append(str(list(shape)))

    def _region(self, cell: Cell) -> tuple[slice, ...]:
        return tuple(slice(i * c, (i + 1) * c) for i, c in zip(cell, self._chunk[1:], strict=True))

    def _chunk_key(self, name: str) -> str:
        return f"{TENSORS}/{self.path}/{DATA}/c.{name}"

    def _empty(self) -> Array:
        return np.full(self._chunk, self._fill, self._stored_as)

    def _document(self) -> str:
        names = [f"dim_{axis}" for axis in range(len(self._extent))]
        if self.kind.batched:
            names[0] = "sample"
        head = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.captures, *self._extent],
            "data_type": self._stored_as.name,
            "dimension_names": ["step", *names],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self._chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": FILL[self._stored_as.name],
            "codecs": [{"name": "bytes"} if self._stored_as.itemsize == 1 else _LITTLE_ENDIAN],
        }
        facts = {"site": self.kind.site, "dtype": self.kind.dtype, "batched": self.kind.batched}
        index = "".join(
            f',\n"{name}":[{",".join(column)}]'
            for name, column in self._index.items()
            if name != "shapes" or self._varies
        )
        if checksum.FAST:
            index += f',\n"crc32c":{json.dumps(self._sums, separators=(",", ":"))}'
        return f'{json.dumps(head)[:-1]},\n"attributes":{json.dumps(facts)[:-1]}{index}}}}}'


def _corner(place: int, block: Array) -> tuple[int | slice, ...]:
    return (place, *(slice(extent) for extent in block.shape))


def _name(row: int, cell: Cell) -> str:
    """The name of a chunk after `c.`, and in the index."""
    return ".".join(map(str, (row, *cell)))


def _flat(array: Array) -> checksum.Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes(array: Array) -> memoryview:
    return _flat(array).data
