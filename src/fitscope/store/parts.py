"""A table on its way into the store: rows gather in memory and leave as one immutable Parquet part per flush.

A part is visible whole or not at all, never changes afterwards, and is read by every Parquet tool. Each page
carries a checksum.

A part that could not be put is kept as it is and put again later, under the same name and with the same
bytes; meanwhile rows gather up to a bound and are refused beyond it, so a full disk costs neither memory nor
the order of things. Not thread-safe: one writer, one thread.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fitscope.store._base import Objects
from fitscope.store.schema import part_name

MOST_MEMORY = 50_000_000  #: bytes of rows that may wait, of one table
PART_BYTES = 4_000  #: what a part costs beside its rows

_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,  # 2.7 kB a part to tell Arrow what Parquet's own schema says
    "write_page_checksum": True,
}


class Rows(ABC):
    """The rows of one table that are not in a part yet."""

    name: str  #: of the table, and of its folder

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
    def encode(self) -> bytes:
        """All of them as a part."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets them."""


class Parts:
    """The parts of one table."""

    def __init__(self, objects: Objects, rows: Rows) -> None:
        self._objects = objects.folder(rows.name)
        self._new = rows
        self._part: bytes | None = None  # encoded, not yet put
        self._part_memory = 0
        self._part_sites: Counter[str] = Counter()
        self.name = rows.name
        self.parts = 0  #: in the store
        self.rows = 0  #: in them

    @property
    def memory(self) -> int:
        """The bytes that all that waits takes up here; a part counts as its rows did."""
        return self._new.memory + self._part_memory

    @property
    def crowded(self) -> bool:
        """Whether so much waits already that nothing may be added."""
        return self.memory >= MOST_MEMORY

    @property
    def disk_bytes(self) -> int:
        """What all that waits will take up, about."""
        waiting = self._new.disk_bytes
        return (waiting + PART_BYTES if waiting else 0) + len(self._part or b"")

    def next_part(self) -> bytes | None:
        """The bytes of the next part to put: the one that failed before, else all rows so far, else None."""
        if self._part is None and len(self._new):
            self._part = self._new.encode()
            self._part_sites, self._part_memory = self._new.sites(), self._new.memory
            self._new.clear()
        return self._part

    def put(self) -> None:
        """Puts the part given by `next_part`. If that raises, the part is still the next one."""
        assert self._part is not None
        self._objects.put(part_name(self.parts), self._part)
        self.parts += 1
        self.rows += self._part_sites.total()
        self._forget_part()

    def discard(self) -> Counter[str]:
        """Gives up all that waits. Returns how many rows of each site those were."""
        lost = self._part_sites + self._new.sites()
        self._forget_part()
        self._new.clear()
        return lost

    def _forget_part(self) -> None:
        self._part, self._part_memory, self._part_sites = None, 0, Counter()


def parquet(
    table: pa.Table, dictionaries: list[str], encodings: dict[str, str], statistics: list[str]
) -> bytes:
    """A table as a part: the encoding of each column as its owner has measured it."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        use_dictionary=dictionaries,
        column_encoding=encodings,
        write_statistics=statistics,
        **_PARQUET,
    )
    return sink.getvalue()
