"""The one sink: records go in, a run comes out.

One RunWriter belongs to one rank of one attempt and writes only in its own folder, so any number of
processes write one run without knowing of each other. Once `flush` returns, its rows survive the death of the process at any
moment, and every reader sees them; nothing depends on `close`. Beyond
that:

* **Bounded.** Whole tensors leave at once, small ones and table rows wait for the flush, up to a bound.
* **A limit in bytes** stops the recording, never the training: `write` then refuses all further records
  (`full`).
* **Errors come home as OSError** and leave the writer consistent: the next call that succeeds commits a
  state that is right. `lost` counts, by site, every record that was handed over and is not in the run.

Used by one thread at a time, except for `note`, which anybody may call. `flush` is also the heartbeat by
which other machines tell that this process lives: call it every `interval` seconds, also when nothing is
new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from fitscope.errors import StoreError
from fitscope.record import Block, Record, Samples, Stretch
from fitscope.reduce.average import Average
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.array import Array
from fitscope.store.averages import MOST_BYTES as MOST_AVERAGE
from fitscope.store.averages import Averages, archive_bytes
from fitscope.store.begin import (
    Info,
    Location,
    begin_attempt,
    begin_run,
    beside,
    existing_run,
    usable,
    writer_of,
)
from fitscope.store.black_box import Boxes
from fitscope.store.meeting import meet
from fitscope.store.meter import Meter
from fitscope.store.parts import MOST_MEMORY, PART_BYTES, Parts
from fitscope.store.reserve import FULL, Reserve
from fitscope.store.samples import ROW_BYTES as SAMPLE_BYTES
from fitscope.store.samples import SamplesRows, numbers
from fitscope.store.status import Status
from fitscope.store.tables import ROW_BYTES, STRETCH_BYTES, StatsRows
from fitscope.store.tensors import TensorStore, storable

T = TypeVar("T")

ENDINGS = ("complete", "interrupted", "failed")
FLUSH_MEMORY = MOST_MEMORY // 8  #: bytes of rows waiting that call for a part before the flush is due


def interval(runtime: float) -> float:
    """The seconds to the next flush. They grow with the run: a day has about 4,000 flushes."""
    return min(max(runtime / 500.0, 2.0), 30.0)


class RunWriter:
    """Writes the records of one rank of one attempt. `create`, `attempt` and `join` return one."""

    def __init__(self, run: Objects, run_id: str, attempt: int, rank: int, limit: int | None) -> None:
        self.id = run_id
        self.number = attempt  #: of the attempt
        self.rank = rank
        self.run = run  #: the objects of the whole run
        self.path = run.describe()
        self.full_at: int | None = None  #: the step at which the limit stopped the recording
        self._objects = run.folder(schema.rank_folder(attempt, rank))
        self._meter = Meter(self._objects, limit)
        self._stats = StatsRows(attempt, rank)
        self._samples = SamplesRows(attempt, rank)
        self._stats_parts = Parts(self._objects, self._stats)
        self._samples_parts = Parts(self._objects, self._samples)
        self._tensors = TensorStore(self._meter)
        self._averages = Averages(self._meter)
        self.boxes = Boxes(self._meter)  #: the last steps of a training, written by its black box
        self._refused: dict[str, int] = {}
        self._step: int | None = None
        self._status = Status()
        self._status_bytes = 0
        self._reserve = Reserve(self._objects)
        self._documents: dict[str, bytes] = {}  # of the run and the attempt, by key
        self.trouble: str | None = None  #: why the run is not the one that was asked for

    @classmethod
    def create(
        cls,
        runs: Location,
        run_id: str,
        info: Info | None = None,
        *,
        start_step: int = 0,
        world: int = 1,
        rank: int = 0,
        limit: int | None = None,
    ) -> RunWriter:
        """Starts a new run and its first attempt. `info` goes into the documents of both."""
        run = begin_run(runs, run_id, info or {})
        number = begin_attempt(run, 0, info or {}, start_step=start_step, world=world)
        return cls(run, run_id, number, rank, limit)._begun()

    @classmethod
    def attempt(
        cls,
        runs: Location,
        run_id: str,
        info: Info | None = None,
        *,
        start_step: int,
        world: int = 1,
        rank: int = 0,
        limit: int | None = None,
    ) -> RunWriter:
        """Starts another attempt at an existing run, which owns the steps from `start_step` on.

        Two processes that write one run at once would hide each other's steps. So if another live process writes it,
        this starts a new run next to it, and `trouble` says so.
        """
        run, attempts = existing_run(runs, run_id)
        pid = writer_of(run, attempts)
        if pid is not None:
            name = beside(runs, run_id)
            writer = cls.create(runs, name, info, start_step=start_step, world=world, rank=rank, limit=limit)
            writer.trouble = (
                f"Expected a run that nobody writes. Received: {run_id!r}, which process {pid} still writes. "
                f"This training is recorded beside it, as {name!r}"
            )
            return writer
        number = begin_attempt(run, attempts, info or {}, start_step=start_step, world=world)
        return cls(run, run_id, number, rank, limit)._begun()

    @classmethod
    def share(
        cls,
        runs: Location,
        run_id: str,
        info: Info | None = None,
        *,
        attempt: int,
        start_step: int,
        world: int,
        rank: int,
        limit: int | None = None,
    ) -> RunWriter:
        """Writes as one of several ranks that agreed on the run and the attempt. Whichever comes first begins both."""
        run, number = meet(runs, run_id, attempt, info or {}, start_step=start_step, world=world)
        return cls(run, run_id, number, rank, limit)._begun()

    @classmethod
    def join(
        cls, runs: Location, run_id: str, attempt: int, rank: int, *, limit: int | None = None
    ) -> RunWriter:
        """Joins an attempt as another rank."""
        run, attempts = existing_run(runs, run_id)
        if attempt >= attempts:
            raise StoreError("an attempt that was begun", f"number {attempt} of {run_id!r}", "Begin it first")
        return cls(run, run_id, attempt, rank, limit)._begun()

    def _begun(self) -> RunWriter:
        with usable(self._objects):
            for key in (schema.RUN, schema.attempt_key(self.number)):
                self._documents[key] = self.run.get(key)
            self._reserve.hold()
            self.flush()
        return self

    @property
    def bytes(self) -> int:
        """The bytes of this rank in the store."""
        return self._meter.bytes

    @property
    def limited(self) -> bool:
        """There is a limit."""
        return self._meter.limit is not None

    @property
    def full(self) -> bool:
        """Whether the limit was reached, so that nothing more is recorded."""
        return self.full_at is not None

    @property
    def lost(self) -> dict[str, int]:
        """The rows and captures that were handed over and will not be in the run, counted by site."""
        lost = dict(self._refused)
        for counted in (self._tensors.lost, self._status.refused):
            for site, count in counted.items():
                lost[site] = lost.get(site, 0) + count
        return lost

    def refuse(self, sites: Iterable[str]) -> None:
        """Counts records that are not even handed over, because the run is full. Anybody may call it."""
        self._status.refuse(sites)

    def write(
        self, records: Iterable[Record], samples: Iterable[Samples] = (), blocks: Iterable[Block] = ()
    ) -> None:
        """Takes records, samples and blocks of stats, best those of one step. Within the limit it takes all or none of them.

        Raises the first OSError after it has tried all.
        """
        errors: list[OSError] = []
        records = list(records)
        stats = [*blocks, *Block.of(records)]
        tensors = list(self._storable(records, errors))
        rows = list(samples)
        if self.full or not self._makes_room_for(stats, tensors, rows, errors):
            for record, _ in tensors:
                self._fill_up(record.at.step)
                self._refuse(record.site)
            for block in stats:
                self._refuse_block(block)
                self._fill_up(block.at.step)
            for some in rows:
                self._fill_up(some.at.step)
                self._refuse(some.site, len(some))
            stats, tensors, rows = [], [], []
        taken = (*(block.at for block in stats), *(r.at for r, _ in tensors), *(some.at for some in rows))
        known = (
            [] if self._step is None else [self._step]
        )  # a validation, which comes first, is one step ahead
        fits = (at.step for at in taken if at.step < 1 << 63)  # another one is lost when its rows are encoded
        self._step = max((*known, *fits), default=None)
        for block in stats:
            if self._stats_parts.crowded:
                self._refuse_block(block)
            else:
                self._stats.add(block)
        for record, tensor in tensors:
            try:
                self._tensors.write(record, tensor)
            except OSError as problem:
                errors.append(problem)
        for some in rows:
            self._add_samples(some, errors)
        for parts in (self._stats_parts, self._samples_parts):
            if parts.gathering >= FLUSH_MEMORY:
                self._put_parts(parts, errors)
                self._encoded(parts, parts.gather, errors)
        if errors:
            raise errors[0]

    def write_stretch(self, stretch: Stretch) -> None:
        """Takes the rows of one scalar over many steps: all of them, or none beyond a limit."""
        waiting = self._stats_parts.disk_bytes + self._samples_parts.disk_bytes + PART_BYTES
        room = self._meter.limit is None or self._meter.room(waiting + len(stretch) * STRETCH_BYTES)
        last = int(stretch.steps[-1])
        if self.full or not room:
            self._fill_up(last)
        if self.full or self._stats_parts.crowded:
            self._refuse(stretch.head.site, len(stretch))
            return
        self._step = max(last, self._step or 0)
        self._stats.add_stretch(stretch)

    def average(self, site: str, average: Average) -> None:
        """Takes the running average of a site, which is written at a flush in its current state, and at the end.

        The writer keeps the object and never changes it. The object may grow between calls, and passing it again costs nothing.
        """
        if average.shape is None:
            return
        if archive_bytes(average) > MOST_AVERAGE:
            if site not in self._refused:
                shape = f"{site!r}, of which one observation has the shape {average.shape}"
                self.note(
                    error=f"No average is kept of {shape}: it would take more than {MOST_AVERAGE:,} bytes."
                )
            self._refused.setdefault(site, 1)
        elif not self._averages.stage(site, average):
            self._fill_up(average.last_step or 0)
            self._refused.setdefault(site, 1)

    def flush(self) -> None:
        """Commits everything written. A failed write is repeated next time.

        The order is the guarantee: chunks, their indexes, the parts and tails of the tables, and finally the status.
        """
        errors = self._still_there()
        errors += self._commit()
        self._put_status(errors)
        if errors:
            raise errors[0]

    def _still_there(self) -> list[OSError]:
        """Whether the run's folder is where it was. If somebody moved or removed it, the run begins again in a new one."""
        try:
            self.run.size(schema.RUN)
            return []
        except FileNotFoundError:
            pass
        except OSError as problem:
            return [problem]
        for parts in (self._stats_parts, self._samples_parts):
            for site, rows in parts.begin_again().items():
                self._refuse(site, rows)
        self._tensors.begin_again()
        self._meter.bytes = self._meter.promised = self._status_bytes = 0
        self._averages.begin_again()
        self._reserve.release()
        try:
            for key, document in self._documents.items():
                self.run.put(key, document)
        except OSError as problem:
            return [problem]
        self._reserve.hold()
        return [
            StoreError(
                "the folder of a run to stay where it is while it is written",
                f"none at {self.path!r}: somebody moved or removed it",
                "The run goes on there without what it had; that is counted in run.lost, and is wherever the folder went",
            )
        ]

    def note(self, *, error: str | None = None, **facts: Any) -> None:
        """Adds facts to the next status: `error=` extends the list, other facts replace earlier ones of the same name."""
        self._status.note(error, facts)

    def close(self, status: str = "complete") -> None:
        """Flushes and records how the training ended. A second call does nothing."""
        if status not in ENDINGS:
            raise StoreError(f"one of {', '.join(ENDINGS)}", f"{status!r}", "Say how the recording ended")
        if self._status.word != "running":
            return
        self._status.word = status
        errors = self._commit(last=True)
        self._tensors.discard()
        for parts in (self._stats_parts, self._samples_parts):
            self._discard(parts)
        for site in self._averages.unput():
            self._refuse(site)
        self._put_status(errors)
        self._reserve.release()
        if errors:
            raise errors[0]

    def _commit(self, *, last: bool = False) -> list[OSError]:
        errors = self._tensors.flush()
        for parts in (self._stats_parts, self._samples_parts):
            self._commit_rows(parts, errors, last=last)
        return errors + self._averages.flush(last=last)

    def _storable(self, records: Iterable[Record], errors: list[OSError]) -> Iterator[tuple[Record, Array]]:
        """Each record with a tensor, with the tensor in a storable dtype."""
        for record in records:
            if record.tensor is None:
                continue
            try:
                yield record, storable(record)
            except StoreError as problem:
                errors.append(problem)
                self._refuse(record.site)

    def _add_samples(self, samples: Samples, errors: list[OSError]) -> None:
        if self._samples_parts.crowded:
            self._refuse(samples.site, len(samples))
            return
        try:
            self._samples.add(samples)
        except (ValueError, TypeError) as problem:
            errors.append(StoreError("samples that fit the table", f"{problem}", "Please report this"))
            self._refuse(samples.site, len(samples))

    def _room_for(
        self, stats: list[Block], tensors: list[tuple[Record, Array]], samples: list[Samples]
    ) -> bool:
        if self._meter.limit is None:
            return True
        waiting = self._stats_parts.disk_bytes + self._samples_parts.disk_bytes
        rows = sum(len(block) for block in stats) * ROW_BYTES
        rows += sum(len(some) * SAMPLE_BYTES + numbers(some) * 8 for some in samples)
        captures = sum(self._tensors.cost(record, tensor) for record, tensor in tensors)
        return self._meter.room(captures + waiting + rows + PART_BYTES)

    def _makes_room_for(
        self,
        stats: list[Block],
        tensors: list[tuple[Record, Array]],
        samples: list[Samples],
        errors: list[OSError],
    ) -> bool:
        """Whether there is room. The size of buffered rows is a guess, so it writes them as a part before it refuses."""
        if self._room_for(stats, tensors, samples):
            return True
        for parts in (self._stats_parts, self._samples_parts):
            self._encoded(parts, parts.gather, errors)
        if self._room_for(stats, tensors, samples):
            return True
        for parts in (self._stats_parts, self._samples_parts):
            self._put_parts(parts, errors, due=True)
        return not self.full and self._room_for(stats, tensors, samples)

    def _commit_rows(self, parts: Parts, errors: list[OSError], *, last: bool) -> None:
        """Writes the waiting rows: as a part if one is due, otherwise as the tail."""
        self._put_parts(parts, errors, due=last)
        tail = self._encoded(parts, parts.next_tail, errors)
        if tail is not None and not self._meter.room(len(tail) - parts.tail_bytes + parts.disk_bytes):
            self._put_parts(parts, errors, due=True)  # which takes less room
            tail = self._encoded(parts, parts.next_tail, errors)
        if tail is not None:
            try:
                self._meter.put(parts.tail_key, tail, parts.tail_bytes)
                parts.tail_is_put(len(tail))
            except OSError as problem:
                errors.append(problem)

    def _put_parts(self, parts: Parts, errors: list[OSError], *, due: bool = False) -> None:
        """Writes a part that failed before, then one of all other rows if it is due."""
        while (part := self._encoded(parts, lambda: parts.next_part(due=due), errors)) is not None:
            if not self._meter.room(len(part)):
                self._fill_up(self._step or 0)
                self._discard(parts)
                return
            try:
                parts.put()
            except OSError as problem:
                errors.append(problem)
                return
            self._meter.bytes += len(part)

    def _encoded(self, parts: Parts, encode: Callable[[], T], errors: list[OSError]) -> T | None:
        """Encodes rows. A row that cannot be encoded must not block all later rows."""
        try:
            return encode()
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as problem:
            fits = f"rows that fit the {parts.name} table"
            errors.append(StoreError(fits, f"{problem!r}", "Please report this"))
            for site, rows in parts.abandon().items():
                self._refuse(site, rows)
            return None

    def _discard(self, parts: Parts) -> None:
        for site, rows in parts.discard().items():
            self._refuse(site, rows)

    def _put_status(self, errors: list[OSError]) -> None:
        document = self._status.document(
            step=self._step,
            rows=self._stats_parts.stored,
            parts=self._stats_parts.parts,
            samples=self._samples_parts.stored,
            averages=self._averages.paths,
            captures=self._tensors.captures,
            bytes=self.bytes,
            limit=self._meter.limit,
            full_at=self.full_at,
            lost=self.lost,
        )
        try:
            self._meter.put(schema.STATUS, document, self._status_bytes)
        except OSError as problem:
            errors.append(problem)
            if problem.errno not in FULL or not self._reserve.release():
                return
            try:
                self._meter.put(schema.STATUS, document, self._status_bytes)
            except OSError:
                return
        self._status_bytes = len(document)
        self._reserve.hold()

    def _fill_up(self, step: int) -> None:
        if self.full_at is None:
            self.full_at = step

    def _refuse_block(self, block: Block) -> None:
        for head in block.heads:
            self._refuse(head.site)

    def _refuse(self, site: str, count: int = 1) -> None:
        self._refused[site] = self._refused.get(site, 0) + count
