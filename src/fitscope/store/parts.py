"""Brings a table into the store: rows collect in memory and leave as immutable Parquet parts.

A part is visible completely or not at all, never changes, and every Parquet tool can read it. Each page has a checksum.

The first `SHARE` flushes make one part each. Thousands of small parts would be slow to read. So after that a part is due when it
would hold one `SHARE`th of the rows of all parts, or when `MOST_WAITING` bytes of rows wait. Other flushes write the waiting rows
as the tail of the table (see `tail`). So a run of any length has a few hundred parts.

A part that could not be written is kept and written again later, with the same name and bytes. Meanwhile rows collect up to a
bound and are refused beyond it. So on a full disk memory stays bounded, and the rows keep their order. Not thread-safe: one
writer, one thread.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fitscope.store._base import Objects
from fitscope.store.schema import TABLES, part_name, tail_key
from fitscope.store.tail import SITES, Waiting, stretches

MOST_MEMORY = 50_000_000  #: the most bytes of waiting rows of one table
MOST_WAITING = (
    #: Bytes of compressed rows (some 250,000 rows) that make a part even if their share is smaller.
    32_000_000
)
MOST_DECODED = 112_000_000  #: likewise the bytes of decoded rows: a reader refuses a part of `decoded.MOST`
SHARE = 32  #: a part holds at least one SHARE-th of all earlier rows
LONG_STRETCH = 64  #: average rows of a site in a part from which on it pays to list their places
PART_BYTES = 4_000  #: the bytes of a part in addition to its rows

_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,  # 2.7 kB a part, and Parquet's own schema says the same
    "write_page_checksum": True,
}


class Encoding(NamedTuple):
    """How a table's columns are stored, as its owner has measured it."""

    dictionaries: list[str]
    encodings: dict[str, str]
    statistics: list[str]


class Rows(ABC):
    """The newest rows of one table."""

    name: str  #: the name of the table and of its folder
    encoding: Encoding
    by: str | None = None  #: the column by which a part is sorted

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """The approximate size of the rows in memory."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """The size of the rows in a part, estimated high."""

    @abstractmethod
    def sites(self) -> Counter[str]:
        """The number of rows of each site."""

    @abstractmethod
    def table(self) -> pa.Table:
        """All rows, sorted as in a part. There must be at least one."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets them."""


class Parts:
    """The parts of one table, and its tail."""

    def __init__(self, objects: Objects, rows: Rows) -> None:
        self._objects = objects
        self._new = rows
        self._waiting = Waiting(TABLES[rows.name], rows.by)
        self._waiting_disk = 0  # an upper estimate of their bytes in a part
        self._part: bytes | None = None  # the next part, encoded but not stored yet
        self._part_sites: Counter[str] = Counter()
        self._number = 0  # the number of the next part
        self._in_tail: Counter[str] = Counter()  # rows that are in the tail and in no part
        self._outdated = False  # whether the stored tail has rows that are in a part or discarded
        self.name = rows.name
        self.parts = 0  #: the number of stored parts
        self.rows = 0  #: the number of rows in them
        self.tail_key = tail_key(rows.name)
        self.tail_bytes = 0  #: bytes of the stored tail
        self._put_sites: Counter[str] = Counter()  # the number of rows in parts, by site

    @property
    def stored(self) -> int:
        """The rows in the store, in a part or in the tail."""
        return self.rows + self._in_tail.total()

    @property
    def gathering(self) -> int:
        """The size of the newest rows in memory."""
        return self._new.memory

    @property
    def memory(self) -> int:
        """The size of all waiting rows in memory."""
        return self._new.memory + self._waiting.bytes + len(self._part or b"")

    @property
    def crowded(self) -> bool:
        """Whether too many rows wait to take more."""
        return self.memory >= MOST_MEMORY

    @property
    def disk_bytes(self) -> int:
        """The approximate size of all waiting rows in parts."""
        # Compressed rows in the tail take more than in a part, but less than the estimate for the newest rows.
        waiting = self._new.disk_bytes + min(self._waiting_disk, self._waiting.bytes)
        return (waiting + PART_BYTES if waiting else 0) + len(self._part or b"")

    def next_part(self, *, due: bool = False) -> bytes | None:
        """The bytes of the next part: the part that failed before, or all rows if a part is due, or None."""
        rows = len(self._new) + len(self._waiting)
        share = self.parts < SHARE or rows * SHARE >= self.rows
        much = self._waiting.bytes >= MOST_WAITING or self._waiting.memory >= MOST_DECODED
        if self._part is None and rows and (due or share or much):
            self._encode()
        return self._part

    def put(self) -> None:
        """Writes the part from `next_part`. If that raises, the part stays the next one."""
        assert self._part is not None
        self._objects.put(f"{self.name}/{part_name(self._number)}", self._part)
        self.parts += 1
        self.rows += self._part_sites.total()
        self._put_sites += self._part_sites
        self._begin_next()

    def gather(self) -> None:
        """Sets the newest rows aside, compressed, until a part is due."""
        if len(self._new):
            self._waiting.add(self._new.table(), self._new.sites())
            self._waiting_disk += self._new.disk_bytes
            self._new.clear()

    def next_tail(self) -> bytes | None:
        """The bytes of the tail to write. None if the stored tail is current, or a part must be written first."""
        if self._part is not None:
            return None
        self.gather()
        if len(self._waiting) <= self._in_tail.total() and not self._outdated:
            return None
        return self._waiting.tail(part_name(self._number))

    def tail_is_put(self, size: int) -> None:
        """Records that the tail from `next_tail`, of this many bytes, is in the store."""
        self._in_tail, self._outdated = self._waiting.sites.copy(), False
        self.tail_bytes = size

    def begin_again(self) -> Counter[str]:
        """Starts again, because all stored parts are gone. Returns their rows by site; waiting rows are written again."""
        gone, self._put_sites = self._put_sites, Counter()
        self.rows, self._in_tail, self.tail_bytes = 0, Counter(), 0
        self._outdated = False
        return gone

    def discard(self) -> Counter[str]:
        """Discards all waiting rows. Returns the number of rows of each site that are in neither a part nor the tail."""
        lost = self._part_sites + self._waiting.sites + self._new.sites() - self._in_tail
        self._part, self._part_sites = None, Counter()
        self._new.clear()
        self._forget_waiting()
        return lost

    def abandon(self) -> Counter[str]:
        """Discards rows that cannot be encoded: the newest rows, or without any, all waiting rows including the tail."""
        lost = self._new.sites()
        if not lost:
            lost = self._waiting.sites
            self._forget_waiting()
            self._begin_next()
        self._new.clear()
        return lost

    def _encode(self) -> None:
        if len(self._waiting):
            self.gather()
            sites, tables = self._waiting.sites, self._waiting.groups()
        else:
            sites, tables = self._new.sites(), iter([self._new.table()])
        self._part, self._part_sites = parquet(tables, self._new.encoding, self._new.by), sites
        self._new.clear()
        self._forget_waiting()
        self._waiting.expect((self.rows + sites.total()) // SHARE, sites)

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_disk = 0

    def _begin_next(self) -> None:
        """Starts the next part; the rows of the tail no longer wait."""
        self._number += 1
        self._part, self._part_sites = None, Counter()
        self._in_tail, self._outdated = Counter(), self.tail_bytes > 0


def parquet(tables: Iterator[pa.Table], encoding: Encoding, by: str | None = None) -> bytes:
    """Tables as one part, each a row group; if a site has many rows, the footer says where they are."""
    sink = io.BytesIO()
    first = next(tables)
    dictionaries, encodings, statistics = encoding
    where: list[tuple[str, int]] = []
    rows = 0
    with pq.ParquetWriter(
        sink,
        first.schema,
        use_dictionary=dictionaries,
        column_encoding=encodings,
        write_statistics=statistics,
        **_PARQUET,
    ) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
            rows += table.num_rows
            if by is not None:
                names, edges = stretches(table[by])
                where += zip(names, (end - start for start, end in pairwise(edges)), strict=True)
        if where and rows >= LONG_STRETCH * len(where):
            writer.add_key_value_metadata({SITES: json.dumps(where, separators=(",", ":"))})
    return sink.getvalue()
