"""A table on its way into the store: rows gather in memory and leave as immutable Parquet parts.

A part is visible whole or not at all, never changes afterwards, and is read by every Parquet tool. Each page
carries a checksum.

The first `SHARE` flushes make a part each. Thousands of small parts would be slow to read, so from then on a part is
due when it would hold one `SHARE`th of what all parts hold, or `MOST_WAITING` bytes of rows wait; between, a flush
puts what waits as the tail of the table (see `tail`). A run has then some hundreds of parts, whatever its length.

A part that could not be put is kept as it is and put again later, under the same name and with the same
bytes; meanwhile rows gather up to a bound and are refused beyond it, so a full disk costs neither memory nor
the order of things. Not thread-safe: one writer, one thread.
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

MOST_MEMORY = 50_000_000  #: bytes of rows that may wait, of one table
MOST_WAITING = (
    32_000_000  #: bytes of compressed rows, some 250,000, that are a part even if that is a smaller share
)
MOST_DECODED = (
    112_000_000  #: bytes of rows likewise, as a reader decodes them: it refuses a part of `decoded.MOST`
)
SHARE = 32  #: a part holds at least one such part of all rows before it
LONG_STRETCH = 64  #: rows of a site in a part, on average, from which on it pays to say where they are
PART_BYTES = 4_000  #: what a part costs beside its rows

_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,  # 2.7 kB a part to tell Arrow what Parquet's own schema says
    "write_page_checksum": True,
}


class Encoding(NamedTuple):
    """How a table's columns are stored, as its owner has measured it."""

    dictionaries: list[str]
    encodings: dict[str, str]
    statistics: list[str]


class Rows(ABC):
    """The newest rows of one table."""

    name: str  #: of the table, and of its folder
    encoding: Encoding
    by: str | None = None  #: the column by which a part is sorted

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """The bytes they take up here, about."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """What they will take up in a part, guessed high."""

    @abstractmethod
    def sites(self) -> Counter[str]:
        """How many rows there are of each site."""

    @abstractmethod
    def table(self) -> pa.Table:
        """All of them; there must be some. Sorted as a part is."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets them."""


class Parts:
    """The parts of one table, and its tail."""

    def __init__(self, objects: Objects, rows: Rows) -> None:
        self._objects = objects
        self._new = rows
        self._waiting = Waiting(TABLES[rows.name], rows.by)
        self._waiting_disk = 0  # what those will take up in a part, guessed high
        self._part: bytes | None = None  # encoded, not yet put
        self._part_sites: Counter[str] = Counter()
        self._number = 0  # of the next part
        self._in_tail: Counter[str] = Counter()  # rows in the tail, of which there is no part
        self._outdated = False  # there is a tail with rows that are in a part, or given up
        self.name = rows.name
        self.parts = 0  #: in the store
        self.rows = 0  #: in them
        self.tail_key = tail_key(rows.name)
        self.tail_bytes = 0  #: of the tail in the store
        self._put_sites: Counter[str] = Counter()  # rows in parts

    @property
    def stored(self) -> int:
        """The rows in the store, in a part or in the tail."""
        return self.rows + self._in_tail.total()

    @property
    def gathering(self) -> int:
        """The bytes that the newest rows take up here."""
        return self._new.memory

    @property
    def memory(self) -> int:
        """The bytes that all that waits takes up here."""
        return self._new.memory + self._waiting.bytes + len(self._part or b"")

    @property
    def crowded(self) -> bool:
        """Whether so much waits already that nothing may be added."""
        return self.memory >= MOST_MEMORY

    @property
    def disk_bytes(self) -> int:
        """What all that waits will take up in parts, about."""
        # Compressed as they wait they take more than in a part, but less than is guessed of the newest.
        waiting = self._new.disk_bytes + min(self._waiting_disk, self._waiting.bytes)
        return (waiting + PART_BYTES if waiting else 0) + len(self._part or b"")

    def next_part(self, *, due: bool = False) -> bytes | None:
        """The bytes of the next part to put: the one that failed before, else all rows if it is due, else None."""
        rows = len(self._new) + len(self._waiting)
        share = self.parts < SHARE or rows * SHARE >= self.rows
        much = self._waiting.bytes >= MOST_WAITING or self._waiting.memory >= MOST_DECODED
        if self._part is None and rows and (due or share or much):
            self._encode()
        return self._part

    def put(self) -> None:
        """Puts the part given by `next_part`. If that raises, the part is still the next one."""
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
        """The bytes of the tail to put. None if the one in the store will do, or a part has to be put first."""
        if self._part is not None:
            return None
        self.gather()
        if len(self._waiting) <= self._in_tail.total() and not self._outdated:
            return None
        return self._waiting.tail(part_name(self._number))

    def tail_is_put(self, size: int) -> None:
        """The tail given by `next_tail`, of so many bytes, is in the store."""
        self._in_tail, self._outdated = self._waiting.sites.copy(), False
        self.tail_bytes = size

    def begin_again(self) -> Counter[str]:
        """All that was put is gone. Returns how many rows of each site that were; those that wait are put once more."""
        gone, self._put_sites = self._put_sites, Counter()
        self.rows, self._in_tail, self.tail_bytes = 0, Counter(), 0
        self._outdated = False
        return gone

    def discard(self) -> Counter[str]:
        """Gives up all that waits, for good. Returns how many rows of each site are in neither a part nor the tail."""
        lost = self._part_sites + self._waiting.sites + self._new.sites() - self._in_tail
        self._part, self._part_sites = None, Counter()
        self._new.clear()
        self._forget_waiting()
        return lost

    def abandon(self) -> Counter[str]:
        """Gives up what cannot be encoded: the newest rows, or if there are none, all that waits, tail and all."""
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
        """What the tail holds no longer waits for a part."""
        self._number += 1
        self._part, self._part_sites = None, Counter()
        self._in_tail, self._outdated = Counter(), self.tail_bytes > 0


def parquet(tables: Iterator[pa.Table], encoding: Encoding, by: str | None = None) -> bytes:
    """Tables as a part, each a row group; where rows of a site are many, the footer says where they lie."""
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
