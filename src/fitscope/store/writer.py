"""The one sink: records go in, a run comes out.

One RunWriter belongs to one rank of one attempt and writes only in its own folder, so any number of
processes write one run without knowing of each other. What `flush` has returned from survives the death of
the process at any moment, and is seen by every reader from then on; nothing depends on `close`. Beyond
that:

* **Bounded.** Whole tensors leave at once, small ones and table rows wait for the flush, up to a bound.
* **A limit in bytes** stops the recording, never the training: `write` then refuses all further records
  (`full`).
* **Errors come home as OSError** and leave the writer consistent: the next call that succeeds commits a
  state that is right. Whatever was handed over and is not in the run is counted, by site, in `lost`.

Used by one thread at a time, except for `note`, which anybody may call. `flush` is also the heartbeat by
which other machines tell that this process lives: call it every `interval` seconds, also when nothing is
new.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from fitscope.errors import StoreError
from fitscope.record import Record
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.array import Array
from fitscope.store.begin import Info, Place, begin_attempt, begin_run, existing_run, usable
from fitscope.store.meter import Meter
from fitscope.store.status import Status
from fitscope.store.tables import PART_BYTES, ROW_BYTES, StatsTable
from fitscope.store.tensors import TensorStore, storable

ENDINGS = ("complete", "interrupted", "failed")
FLUSH_ROWS = 25_000  #: rows waiting that call for a part before the flush is due


def interval(runtime: float) -> float:
    """Seconds to the next flush: it grows with the run, so that a long one has some 2,500 parts at most."""
    return min(max(runtime / 500.0, 2.0), 30.0)


class RunWriter:
    """Writes what one rank of one attempt recorded. Made by `create`, `attempt` and `join`."""

    def __init__(self, run: Objects, run_id: str, attempt: int, rank: int, limit: int | None) -> None:
        self.id = run_id
        self.number = attempt  #: of the attempt
        self.path = run.describe()
        self.full_at: int | None = None  #: the step at which the limit stopped the recording
        self._objects = run.folder(schema.rank_folder(attempt, rank))
        self._meter = Meter(self._objects, limit)
        self._table = StatsTable(self._objects.folder(schema.STATS), attempt, rank)
        self._tensors = TensorStore(self._meter)
        self._refused: dict[str, int] = {}
        self._step: int | None = None
        self._status = Status()
        self._status_bytes = 0

    @classmethod
    def create(
        cls,
        runs: Place,
        run_id: str,
        info: Info | None = None,
        *,
        start_step: int = 0,
        world: int = 1,
        rank: int = 0,
        limit: int | None = None,
    ) -> RunWriter:
        """Begins a new run, and the first attempt at it. `info` goes into the documents of both."""
        run = begin_run(runs, run_id, info or {})
        number = begin_attempt(run, 0, info or {}, start_step=start_step, world=world)
        return cls(run, run_id, number, rank, limit)._begun()

    @classmethod
    def attempt(
        cls,
        runs: Place,
        run_id: str,
        info: Info | None = None,
        *,
        start_step: int,
        world: int = 1,
        rank: int = 0,
        limit: int | None = None,
    ) -> RunWriter:
        """Begins a further attempt at an existing run. From `start_step` on its steps are the run's."""
        run, attempts = existing_run(runs, run_id)
        number = begin_attempt(run, attempts, info or {}, start_step=start_step, world=world)
        return cls(run, run_id, number, rank, limit)._begun()

    @classmethod
    def join(
        cls, runs: Place, run_id: str, attempt: int, rank: int, *, limit: int | None = None
    ) -> RunWriter:
        """A further rank of an attempt that another rank has begun."""
        run, attempts = existing_run(runs, run_id)
        if attempt >= attempts:
            raise StoreError("an attempt that was begun", f"number {attempt} of {run_id!r}", "Begin it first")
        return cls(run, run_id, attempt, rank, limit)._begun()

    def _begun(self) -> RunWriter:
        with usable(self._objects):
            self.flush()
        return self

    @property
    def bytes(self) -> int:
        """The bytes this rank takes up in the store."""
        return self._meter.bytes

    @property
    def full(self) -> bool:
        """The limit was reached: nothing more is recorded."""
        return self.full_at is not None

    @property
    def lost(self) -> dict[str, int]:
        """By site: the rows and captures handed over that are not in the run and will not be."""
        lost = dict(self._refused)
        for site, count in self._tensors.lost.items():
            lost[site] = lost.get(site, 0) + count
        return lost

    def write(self, records: Iterable[Record]) -> None:
        """Takes records, best those of one step: within the limit, all of them are taken or none.

        Raises the first OSError met, after all records were tried.
        """
        errors: list[OSError] = []
        batch = list(self._storable(records, errors))
        if self.full or not self._room_for(batch):
            for record, tensor in batch:
                self._fill_up(record.at.step)
                self._refuse(record.site, (record.stats is not None) + (tensor is not None))
            batch = []
        self._step = max((record.at.step for record, _ in batch), default=self._step)
        for record, tensor in batch:
            if record.stats is not None and not self._table.add(record, record.stats):
                self._refuse(record.site)
            if tensor is not None:
                try:
                    self._tensors.write(record, tensor)
                except OSError as problem:
                    errors.append(problem)
        if self._table.waiting >= FLUSH_ROWS:
            self._put_parts(errors)
        if errors:
            raise errors[0]

    def flush(self) -> None:
        """Commits all that was written. What a failure keeps from being committed is tried again next time.

        The order is the guarantee: chunks, what counts them, the table's part, and at last the status.
        """
        errors = self._tensors.flush()
        self._put_parts(errors)
        self._put_status(errors)
        if errors:
            raise errors[0]

    def note(self, *, error: str | None = None, **facts: Any) -> None:
        """Facts for the next status: `error=` is added to the list, all others replace their like."""
        self._status.note(error, facts)

    def close(self, status: str = "complete") -> None:
        """Flushes and says how it ended. A second call does nothing."""
        if status not in ENDINGS:
            raise StoreError(f"one of {', '.join(ENDINGS)}", f"{status!r}", "Say how the recording ended")
        if self._status.word != "running":
            return
        self._status.word = status
        errors = self._tensors.flush()
        self._put_parts(errors)
        self._tensors.discard()
        for site, rows in self._table.discard().items():
            self._refuse(site, rows)
        self._put_status(errors)
        if errors:
            raise errors[0]

    def _storable(
        self, records: Iterable[Record], errors: list[OSError]
    ) -> Iterator[tuple[Record, Array | None]]:
        """Each record with its tensor in a type that can be stored, if it has one."""
        for record in records:
            tensor = None
            if record.tensor is not None:
                try:
                    tensor = storable(record)
                except StoreError as problem:
                    errors.append(problem)
                    self._refuse(record.site)
            yield record, tensor

    def _room_for(self, batch: list[tuple[Record, Array | None]]) -> bool:
        if self._meter.limit is None:
            return True
        rows = self._table.waiting + sum(record.stats is not None for record, _ in batch)
        captures = sum(self._tensors.cost(record, tensor) for record, tensor in batch if tensor is not None)
        return self._meter.room(captures + rows * ROW_BYTES + PART_BYTES)

    def _put_parts(self, errors: list[OSError]) -> None:
        """Puts the rows that wait: first a part that failed before, then all the others."""
        while (part := self._next_part(errors)) is not None:
            if not self._meter.room(len(part)):
                self._fill_up(self._step or 0)
                for site, rows in self._table.discard().items():
                    self._refuse(site, rows)
                return
            try:
                self._table.put()
            except OSError as problem:
                errors.append(problem)
                return
            self._meter.bytes += len(part)

    def _next_part(self, errors: list[OSError]) -> builtins.bytes | None:
        """A row that cannot be encoded must not stand in the way of all that come after it."""
        try:
            return self._table.next_part()
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as problem:
            errors.append(StoreError("rows that fit the stats table", f"{problem!r}", "Please report this"))
            for site, rows in self._table.discard().items():
                self._refuse(site, rows)
            return None

    def _put_status(self, errors: list[OSError]) -> None:
        document = self._status.document(
            step=self._step,
            rows=self._table.rows,
            parts=self._table.parts,
            captures=self._tensors.captures,
            bytes=self.bytes,
            limit=self._meter.limit,
            full_at=self.full_at,
            lost=self.lost,
        )
        try:
            self._meter.put(schema.STATUS, document, self._status_bytes)
            self._status_bytes = len(document)
        except OSError as problem:
            errors.append(problem)

    def _fill_up(self, step: int) -> None:
        if self.full_at is None:
            self.full_at = step

    def _refuse(self, site: str, count: int = 1) -> None:
        self._refused[site] = self._refused.get(site, 0) + count
