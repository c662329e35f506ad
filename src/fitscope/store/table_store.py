"""Writes the table rows of one rank: they wait in memory, and leave as parts and tails.

Rows of two tables, statistics and samples, up to a bound of memory. Errors go to the list of the caller, and rows that failed to
be written wait for the next time. A row that cannot be encoded is lost and counted, so that it does not block all later rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa

from fitscope.errors import StoreError
from fitscope.record import Block, Samples, Stretch
from fitscope.store.meter import Meter
from fitscope.store.parts import MOST_MEMORY, Parts
from fitscope.store.samples import ROW_BYTES as SAMPLE_BYTES
from fitscope.store.samples import SamplesRows, numbers
from fitscope.store.stats_table import ROW_BYTES, StatsRows

T = TypeVar("T")

FLUSH_MEMORY = MOST_MEMORY // 4  #: bytes of waiting rows that make a part before the flush is due


class TableStore:
    """The tables of one rank. `lost` counts, by site, the rows that could not be kept."""

    def __init__(self, meter: Meter, attempt: int, rank: int, full: Callable[[], None]) -> None:
        """`full` is called when rows are lost because the run has reached its limit."""
        self._meter = meter
        self._full = full
        self._new_stats, self._new_samples = StatsRows(attempt, rank), SamplesRows(attempt, rank)
        self.stats = Parts(meter.objects, self._new_stats)
        self.samples = Parts(meter.objects, self._new_samples)
        self.lost: Counter[str] = Counter()

    @property
    def disk_bytes(self) -> int:
        """The approximate size of all waiting rows in parts."""
        return self.stats.disk_bytes + self.samples.disk_bytes

    @staticmethod
    def cost(blocks: Iterable[Block], samples: Iterable[Samples]) -> int:
        """The approximate number of bytes that these rows would add."""
        rows = sum(len(block) for block in blocks) * ROW_BYTES
        return rows + sum(len(some) * SAMPLE_BYTES + numbers(some) * 8 for some in samples)

    # ---- taking rows ----------------------------------------------------------------------------------

    def add(self, block: Block) -> None:
        """Takes the statistics of a step."""
        if self.stats.crowded:
            self.lose(block)
        else:
            self._new_stats.add(block)

    def add_stretch(self, stretch: Stretch) -> bool:
        """Takes one scalar over many steps. Returns whether there was room for it in memory."""
        if self.stats.crowded:
            return False
        self._new_stats.add_stretch(stretch)
        return True

    def add_samples(self, samples: Samples, errors: list[OSError]) -> None:
        """Takes the samples of a batch."""
        if not self.samples.crowded:
            try:
                self._new_samples.add(samples)
                return
            except (ValueError, TypeError) as problem:
                errors.append(StoreError("samples that fit the table", f"{problem}", "Please report this"))
        self.lost[samples.site] += len(samples)

    def lose(self, block: Block) -> None:
        """Counts the rows of a refused block as lost."""
        for head in block.heads:
            self.lost[head.site] += len(block.ats)

    # ---- writing them ---------------------------------------------------------------------------------

    def relieve(self, errors: list[OSError]) -> None:
        """Between two flushes: writes a part, or compresses the rows, if many of them wait."""
        for parts in (self.stats, self.samples):
            if parts.gathering >= FLUSH_MEMORY:
                self.put(parts, errors)
                self._encoded(parts, parts.gather, errors)

    def compress(self, errors: list[OSError]) -> None:
        """Compresses all waiting rows, so that their size is known better."""
        for parts in (self.stats, self.samples):
            self._encoded(parts, parts.gather, errors)

    def put_all(self, errors: list[OSError]) -> None:
        """Writes all waiting rows as parts."""
        for parts in (self.stats, self.samples):
            self.put(parts, errors, due=True)

    def commit(self, errors: list[OSError], *, last: bool) -> None:
        """Writes the waiting rows: as a part if one is due, otherwise as the tail."""
        for parts in (self.stats, self.samples):
            self._commit(parts, errors, last=last)

    def begin_again(self) -> None:
        """Counts all stored rows as lost, because they are gone."""
        for parts in (self.stats, self.samples):
            self.lost.update(parts.begin_again())

    def discard(self) -> None:
        """Discards all waiting rows. Counts them as lost."""
        for parts in (self.stats, self.samples):
            self.lost.update(parts.discard())

    def put(self, parts: Parts, errors: list[OSError], *, due: bool = False) -> None:
        """Writes a part that failed before, then a part of all other rows if one is due."""
        while (part := self._encoded(parts, lambda: parts.next_part(due=due), errors)) is not None:
            if not self._meter.room(len(part)):
                self._full()
                self.lost.update(parts.discard())
                return
            try:
                parts.put()
            except OSError as problem:
                errors.append(problem)
                return
            self._meter.bytes += len(part)

    def _commit(self, parts: Parts, errors: list[OSError], *, last: bool) -> None:
        self.put(parts, errors, due=last)
        tail = self._encoded(parts, parts.next_tail, errors)
        if tail is not None and not self._meter.room(len(tail) - parts.tail_bytes + parts.disk_bytes):
            self.put(parts, errors, due=True)  # a part takes less room
            tail = self._encoded(parts, parts.next_tail, errors)
        if tail is not None:
            try:
                self._meter.put(parts.tail_key, tail, parts.tail_bytes)
                parts.tail_is_put(len(tail))
            except OSError as problem:
                errors.append(problem)

    def _encoded(self, parts: Parts, encode: Callable[[], T], errors: list[OSError]) -> T | None:
        """Encodes rows. A row that cannot be encoded must not block all later rows."""
        try:
            return encode()
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as problem:
            fits = f"rows that fit the {parts.name} table"
            errors.append(StoreError(fits, f"{problem!r}", "Please report this"))
            self.lost.update(parts.abandon())
            return None
