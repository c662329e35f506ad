"""The tail of a table: rows that wait for the next part, already safe in the store.

A large part is fast to read, because one site is one long stretch. So in a long run rows collect here over several flushes,
compressed, before they become a part. Each flush writes them all as one object, the tail, which the next flush replaces. It is an
Arrow IPC stream that names the part that will contain its rows. **The rows of a tail count as long as that part does not exist.**
So a reader never sees a row twice and never misses one, even after a crash. Parts are not rewritten, and nothing is deleted.

Rows wait in a few ranges of sites. A part is made range by range, in little memory, and each range is one of its row groups.
"""

from __future__ import annotations

import io
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from fitscope.store import decoded

GROUP_ROWS = 16_384  #: rough rows in a row group, all of which a reader decodes for one site
MOST_GROUPS = 16  #: the most row groups in a part: more would enlarge its footer
SITES = b"fitscope.sites"  #: in a part's footer: [[site, rows], …] in the order of its rows
PART = b"fitscope.part"  #: in a tail's schema: the part that its rows will be in
CHECKSUM = b"fitscope.crc32"  #: in a tail's schema: the checksum of all bytes after it

_END = b"\xff\xff\xff\xff\0\0\0\0"  # the end of an IPC stream
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)  # LZ4 costs 0.6 µs less per row than zstd


class Waiting:
    """The rows of one table that wait for a part. `by` is the column that a part is sorted by, if any."""

    def __init__(self, form: pa.Schema, by: str | None) -> None:
        self._form = form
        self._by = by
        self._bounds: list[str] = []  # the names with which each range but the first begins
        self._batches: list[tuple[int, bytes]] = []  # messages of the stream, each with its range
        self._checksum = 0
        self.sites: Counter[str] = Counter()  #: the number of waiting rows of each site
        self.bytes = 0  #: bytes of the rows, here and in a tail
        self.memory = 0  #: bytes of the decoded rows

    def __len__(self) -> int:
        return self.sites.total()

    def expect(self, rows: int, like: Counter[str]) -> None:
        """Chooses the ranges for a part of this many rows, with sites like these. No rows may wait."""
        assert not self._batches
        groups = min(max(rows // GROUP_ROWS, 1), MOST_GROUPS)
        names = sorted(like)
        ends = list(accumulate(like[name] for name in names))
        cuts = {bisect_left(ends, ends[-1] * n / groups) + 1 for n in range(1, groups)} if names else set()
        self._bounds = [names[cut] for cut in sorted(cuts) if cut < len(names)]

    def add(self, table: pa.Table, sites: Counter[str]) -> None:
        """Takes rows, with their number for each site."""
        pieces = [(0, table)] if self._by is None else self._ranges(sort(table, self._by))
        for place, rows in pieces:
            message = _message(rows, self._form)
            self._batches.append((place, message))
            self._checksum = zlib.crc32(message, self._checksum)
            self.bytes += len(message)
            self.memory += rows.nbytes
        self.sites += sites

    def groups(self) -> Iterator[pa.Table]:
        """All rows by site, in tables of about the size of a row group."""
        if self._by is None:
            yield from self._as_they_came()
            return
        for place in range(len(self._bounds) + 1):
            batches = [_batch(message, self._form) for where, message in self._batches if where == place]
            if batches:
                yield sort(pa.Table.from_batches(batches), self._by)

    def tail(self, part: str) -> bytes:
        """The object that keeps the rows until the part exists."""
        facts = {PART: part.encode(), CHECKSUM: f"{self._checksum:08x}".encode()}
        head = self._form.with_metadata(facts).serialize().to_pybytes()
        return b"".join([head, *(message for _, message in self._batches), _END])

    def clear(self) -> None:
        """Forgets them."""
        self._batches, self._checksum = [], 0
        self.sites, self.bytes, self.memory = Counter(), 0, 0

    def _ranges(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a sorted table in each range."""
        names, rows = stretches(table[self._by])
        edges = [0, *(bisect_left(names, bound) for bound in self._bounds), len(names)]
        for place, (first, last) in enumerate(pairwise(rows[edge] for edge in edges)):
            if last > first:
                yield place, table.slice(first, last - first)

    def _as_they_came(self) -> Iterator[pa.Table]:
        batches: list[pa.RecordBatch] = []
        for _, message in self._batches:
            batches.append(_batch(message, self._form))
            if sum(batch.num_rows for batch in batches) >= GROUP_ROWS:
                yield pa.Table.from_batches(batches)
                batches = []
        if batches:
            yield pa.Table.from_batches(batches)


class Tail:
    """One tail, which a reader reads again and again while it grows."""

    def __init__(self, part: str) -> None:
        self.part = part  #: the name of the part that its rows will be in
        self._taken = 0  # the bytes of messages taken so far
        self._checksum = 0  # the checksum of these bytes

    def take(self, data: bytes) -> list[pa.RecordBatch]:
        """The rows added since the last call. Raises, in one of many ways, if it cannot be read."""
        stream = pa.BufferReader(data)
        form = pa.ipc.read_schema(pa.ipc.read_message(stream))
        begin = stream.tell() + self._taken
        stream.seek(begin)
        end = len(data) - len(_END)
        checksum = zlib.crc32(memoryview(data)[begin:end], self._checksum)
        if f"{checksum:08x}".encode() != form.metadata[CHECKSUM]:
            raise ValueError("its checksum is not that of its rows")
        batches = []
        memory = 0
        while stream.tell() < end:
            message = pa.ipc.read_message(stream)
            memory = decoded.within(memory + decoded.message_size(message), "it")
            batches.append(pa.ipc.read_record_batch(message, form))
            batches[-1].validate(full=True)  # Arrow does not check the offsets in a message itself
        self._taken, self._checksum = self._taken + end - begin, checksum
        return batches


def part_of(data: bytes) -> str:
    """The name of the part that will contain the rows of a tail."""
    name: bytes = pa.ipc.read_schema(pa.ipc.read_message(pa.BufferReader(data))).metadata[PART]
    return name.decode()


def sort(table: pa.Table, by: str) -> pa.Table:
    """The rows sorted by the names in a dictionary column, in order within a name."""
    column = table[by].combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    names = np.array(column.dictionary.to_pylist(), object)
    places = np.argsort(names)
    codes = np.argsort(places)[column.indices.to_numpy()].astype(np.int32)
    table = table.set_column(
        table.column_names.index(by),
        by,
        pa.DictionaryArray.from_arrays(codes, pa.array(names[places], pa.string())),
    )
    if (np.diff(codes) >= 0).all():
        return table
    return table.take(pa.array(np.argsort(codes, kind="stable")))


def stretches(column: pa.ChunkedArray) -> tuple[list[str], list[int]]:
    """The names in a sorted column, and where the rows of each name begin and end."""
    found = column.combine_chunks()
    codes = found.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    names = found.dictionary.take(pa.array(codes[starts])).to_pylist()
    return names, [*starts.tolist(), len(codes)]


def _message(table: pa.Table, form: pa.Schema) -> bytes:
    """Rows as one message of a stream in that form."""
    batches = table.cast(form).combine_chunks().to_batches()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, form, options=_LZ4) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()[len(form.serialize()) : -len(_END)]


def _batch(message: bytes, form: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.ipc.read_message(message), form)
