"""Writes the records of a training as a run.

One RunWriter belongs to one rank of one attempt and writes only in its own folder, so any number of processes can write one run
independently. Once `flush` returns, its rows survive the death of the process at any moment, and every reader sees them; nothing
depends on `close`. Beyond that:

* **Bounded.** Whole tensors leave at once, small ones and table rows wait for the flush, up to a bound.
* **A limit in bytes** stops the recording, never the training: `write` then refuses all further records (`full`).
* **Errors are raised as OSError** and leave the writer consistent: the next successful call commits a correct state. `lost` counts,
  by site, every record that was handed over and is not in the run.

Used by one thread at a time, except for `note`, which any thread may call. `flush` is also the heartbeat by
which other machines know that this process lives: call it whenever `pace` says so, also when nothing is new.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

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
from fitscope.store.outages import PatientStore
from fitscope.store.pace import Pace
from fitscope.store.parts import PART_BYTES
from fitscope.store.reserve import FULL, Reserve
from fitscope.store.room import Load, Room
from fitscope.store.stats_table import STRETCH_BYTES
from fitscope.store.status import Status
from fitscope.store.table_store import TableStore
from fitscope.store.tensors import TensorStore, storable

ENDINGS = ("complete", "interrupted", "failed")


class RunWriter:
    """Writes the records of one rank of one attempt. `create`, `attempt` and `join` return one."""

    def __init__(self, run: Objects, run_id: str, attempt: int, rank: int, limit: int | None) -> None:
        self.id = run_id
        self.number = attempt  #: the number of the attempt
        self.rank = rank
        self.world = 1  #: the number of ranks that write this attempt
        self.shards = False  #: whether ranks hold parts of the same tensors
        self.run = run  #: the objects of the whole run
        self.path = run.describe()
        self.full_at: int | None = None  #: the step at which the limit stopped the recording
        mine = run.folder(schema.rank_folder(attempt, rank))
        self.patient = (
            None if mine.requests is None else PatientStore(mine)
        )  #: the store may be unreachable for a while
        self._objects = self.patient or mine
        self.pace = Pace(self._objects)  #: when to flush
        self._meter = Meter(self._objects, limit)
        self._tables = TableStore(self._meter, attempt, rank, lambda: self._fill_up(self._step or 0))
        self._tensors = TensorStore(self._meter)
        self._room = Room(self._meter, self._tables, self._tensors)
        self._averages = Averages(self._meter)
        self.boxes = Boxes(self._meter)  #: the last steps of a training, written by its black box
        self._refused: Counter[str] = Counter()
        self._step: int | None = None
        self._status = Status()
        self._status_bytes = 0
        self._reserve = Reserve(self._objects)
        self._documents: dict[str, bytes] = {}  # the documents of the run and the attempt, by key
        self.trouble: str | None = None  #: why the run is not the requested one

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
                f"This training is recorded next to it, as {name!r}"
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
        """Writes as one of several ranks that agreed on the run and the attempt. The first rank begins both."""
        told = info or {}
        run, number = meet(runs, run_id, attempt, told, start_step=start_step, world=world)
        writer = cls(run, run_id, number, rank, limit)
        writer.world, writer.shards = world, bool(told.get("shards"))
        writer.pace.light = rank not in (told.get("sampled") or [rank])
        return writer._begun()

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
        """Whether there is a limit."""
        return self._meter.limit is not None

    @property
    def full(self) -> bool:
        """Whether the limit was reached, so that nothing more is recorded."""
        return self.full_at is not None

    @property
    def lost(self) -> dict[str, int]:
        """The rows and captures that were handed over and will not be in the run, counted by site."""
        return dict(self._refused + self._tables.lost + Counter(self._tensors.lost) + self._status.refused)

    def reached(self, step: int) -> None:
        """Records a step without data: a light rank writes only its status."""
        self._step = max(step, self._step or 0)

    def refuse(self, sites: Iterable[str]) -> None:
        """Counts records that the training does not hand over because the run is full. Any thread may call it."""
        self._status.refuse(sites)

    def write(
        self, records: Iterable[Record], samples: Iterable[Samples] = (), blocks: Iterable[Block] = ()
    ) -> None:
        """Takes records, samples and blocks of stats, of one step or several. Within the limit it takes a step whole or not at all.

        Raises the first OSError after it has tried all.
        """
        errors: list[OSError] = []
        records = list(records)
        stats = [*blocks, *Block.of(records)]
        self._take(Load(stats, list(self._storable(records, errors)), list(samples)), errors)
        self._tables.relieve(errors)
        if errors:
            raise errors[0]

    def _take(self, load: Load, errors: list[OSError]) -> None:
        """Takes a load if there is room for it, otherwise as many of its steps as fit."""
        if self.full or not self._room.make(load, errors) or self.full:
            steps = [] if self.full else load.by_step()
            if len(steps) > 1:
                for step in steps:
                    self._take(step, errors)
            else:
                self._refuse(load)
            return
        # A validation, which comes first, is one step ahead. A step of more than 63 bits is lost when its rows are encoded.
        known = [] if self._step is None else [self._step]
        self._step = max((*known, *(at.step for at in load.moments() if at.step < 1 << 63)), default=None)
        for block in load.stats:
            self._tables.add(block)
        with self._waiting():  # a large tensor is put now or lost
            for record, tensor in load.tensors:
                try:
                    self._tensors.write(record, tensor)
                except OSError as problem:
                    errors.append(problem)
        for some in load.samples:
            self._tables.add_samples(some, errors)

    def _refuse(self, load: Load) -> None:
        """Counts a load as lost, because the run is full."""
        for at in load.moments():
            self._fill_up(at.step)
        for record, _ in load.tensors:
            self._refused[record.site] += 1
        for block in load.stats:
            self._tables.lose(block)
        for some in load.samples:
            self._refused[some.site] += len(some)

    def write_stretch(self, stretch: Stretch) -> None:
        """Takes the rows of one scalar over many steps: all of them, or none beyond a limit."""
        waiting = self._tables.disk_bytes + PART_BYTES
        room = self._meter.limit is None or self._meter.room(waiting + len(stretch) * STRETCH_BYTES)
        last = int(stretch.steps[-1])
        if self.full or not room:
            self._fill_up(last)
        if self.full or not self._tables.add_stretch(stretch):
            self._refused[stretch.head.site] += len(stretch)
            return
        self._step = max(last, self._step or 0)

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

    def flush(self, *, tensors: bool = True) -> None:
        """Commits everything written. A failed write is repeated next time. Without `tensors`, tensors and averages wait.

        The order is the guarantee: chunks, their indexes, the parts and tails of the tables, and finally the status.
        """
        errors = self._still_there() if self.pace.look_due() else []
        if tensors:
            self.pace.counted(lambda: errors.extend(self._commit_tensors()), tensors=True)
        self.pace.counted(lambda: self._commit_tables(errors))
        if errors:
            raise errors[0]

    def _still_there(self) -> list[OSError]:
        """Checks that the run's folder is still there. If it was moved or removed, the run begins again in a new one."""
        try:
            self.run.size(schema.RUN)
            return []
        except FileNotFoundError:
            pass
        except OSError as problem:
            return [problem]
        self._tables.begin_again()
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
                "The run continues there without its earlier data, which run.lost counts and the moved folder still has",
            )
        ]

    def note(self, *, error: str | None = None, **facts: Any) -> None:
        """Adds facts to the next status: `error=` extends the list, other facts replace earlier ones of the same name."""
        self._status.note(error, facts)

    def close(self, status: str = "complete") -> None:
        """Flushes and records how the training ended. A second call does nothing."""
        if status not in ENDINGS:
            raise StoreError(f"one of {', '.join(ENDINGS)}", f"{status!r}", "Pass one of these as the status")
        if self._status.word != "running":
            return
        self._status.word = status
        if self.patient is not None:
            self.patient.try_now()
        with self._waiting():
            errors = self._still_there() + self._commit_tensors(last=True)
            self._tables.commit(errors, last=True)
            self._tensors.discard()
            self._tables.discard()
            self._refused.update(self._averages.unput())
            self._put_status(errors)
        self._reserve.release()
        if errors:
            raise errors[0]

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        """Waits for an unreachable store inside the block, as long as the queue has room."""
        return contextlib.nullcontext() if self.patient is None else self.patient.waiting()

    def _commit_tensors(self, *, last: bool = False) -> list[OSError]:
        return self._tensors.flush() + self._averages.flush(last=last)

    def _commit_tables(self, errors: list[OSError]) -> None:
        self._tables.commit(errors, last=False)
        self._put_status(errors)

    def _storable(self, records: Iterable[Record], errors: list[OSError]) -> Iterator[tuple[Record, Array]]:
        """Each record with a tensor, with the tensor in a storable dtype."""
        for record in records:
            if record.tensor is None:
                continue
            try:
                yield record, storable(record)
            except StoreError as problem:
                errors.append(problem)
                self._refused[record.site] += 1

    def _put_status(self, errors: list[OSError]) -> None:
        document = self._status.document(
            step=self._step,
            rows=self._tables.stats.stored,
            parts=self._tables.stats.parts,
            samples=self._tables.samples.stored,
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
