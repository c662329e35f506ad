"""Decides whether a run has room for the data that a writer gets at once.

A run with a limit takes all records of a step or none. Several steps that come together are a `Load`; if the run has no room for
all of them, the writer tries them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fitscope.record import Block, Moment, Record, Samples
from fitscope.store.array import SHARED_CHUNK, Array
from fitscope.store.meter import Meter
from fitscope.store.parts import PART_BYTES
from fitscope.store.table_store import TableStore
from fitscope.store.tensors import TensorStore


@dataclass(frozen=True, slots=True)
class Load:
    """Statistics, tensors and samples of one step or several."""

    stats: list[Block] = field(default_factory=list)
    tensors: list[tuple[Record, Array]] = field(default_factory=list)  #: with the tensor in a storable dtype
    samples: list[Samples] = field(default_factory=list)

    def moments(self) -> Iterator[Moment]:
        """When its records were captured, in no particular order."""
        yield from (at for block in self.stats for at in block.ats)
        yield from (record.at for record, _ in self.tensors)
        yield from (some.at for some in self.samples)

    def by_step(self) -> list[Load]:
        """The load split into one load for each step."""
        found: dict[Moment, Load] = {}
        for each in (each for block in self.stats for each in block.each()):
            found.setdefault(each.ats[0], Load()).stats.append(each)
        for record, tensor in self.tensors:
            found.setdefault(record.at, Load()).tensors.append((record, tensor))
        for some in self.samples:
            found.setdefault(some.at, Load()).samples.append(some)
        return list(found.values())


class Room:
    """The room of a run below its limit, for data that is not on disk yet."""

    def __init__(self, meter: Meter, tables: TableStore, tensors: TensorStore) -> None:
        self._meter = meter
        self._tables = tables
        self._tensors = tensors

    def has(self, load: Load) -> bool:
        """Whether the load fits, by a guess of the size of buffered rows."""
        if self._meter.limit is None:
            return True
        rows = self._tables.cost(load.stats, load.samples)
        captures = sum(self._tensors.cost(record, tensor) for record, tensor in load.tensors)
        # `cost` is that of one more capture. Each further capture of the same site may begin a chunk.
        captures += (len(load.tensors) - len({record.site for record, _ in load.tensors})) * SHARED_CHUNK
        return self._meter.room(captures + self._tables.disk_bytes + rows + PART_BYTES)

    def make(self, load: Load, errors: list[OSError]) -> bool:
        """Whether the load fits once the buffered rows are compressed, or written as a part."""
        if self.has(load):
            return True
        self._tables.compress(errors)
        if self.has(load):
            return True
        self._tables.put_all(errors)
        return self.has(load)
