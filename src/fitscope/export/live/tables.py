"""Fills a database during training, with the tables of `fitscope.export.database`.

Each flush adds the collected rows in one transaction and closes the file. So other programs see whole steps, and can open a DuckDB file,
which only one process may write at a time. While another process has the file open, rows wait for a later flush, up to a bound.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fitscope.errors import StoreError
from fitscope.export.database import Database, facts, insert_stats, of, there_already
from fitscope.export.live import start_of
from fitscope.export.rows import columns, rows, samples, sites
from fitscope.read.frames import plain
from fitscope.record import Block
from fitscope.store.parts import MOST_MEMORY
from fitscope.store.samples import SamplesRows
from fitscope.store.stats_table import StatsRows

if TYPE_CHECKING:
    from fitscope.read import Run
    from fitscope.record import Record, Samples, Stretch

FLUSH_MEMORY = MOST_MEMORY // 8  #: bytes of waiting rows that make a transaction before the flush is due
LAST_TRIES = 20  #: tries at the end, if another process has the file
PAUSE = 0.25  #: seconds between two tries


class LiveTables:
    """The rows that one attempt adds to a database."""

    def __init__(self, kind: type[Database], out: Path, run: Run, attempt: int, rank: int) -> None:
        self._kind, self._out = kind, out
        self._run, self._attempt = run, attempt
        self._stats = StatsRows(attempt, rank)
        self._samples = SamplesRows(attempt, rank)
        self._begun = False  # whether the rows of this run in the database were checked
        self._enough = FLUSH_MEMORY

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None:
        for block in Block.of(records):
            self._stats.add(block)
        for some in samples:
            with contextlib.suppress(ValueError, TypeError):  # columns that do not fit: the run says so
                self._samples.add(some)
        if self._memory >= self._enough:
            self.flush()

    def write_stretch(self, stretch: Stretch) -> None:
        """Takes the rows of one scalar over many steps."""
        self._stats.add_stretch(stretch)
        if self._memory >= self._enough:
            self.flush()

    def flush(self) -> None:
        if (self._begun and not self._memory) or self._put():
            self._enough = FLUSH_MEMORY
        elif self._memory >= MOST_MEMORY:
            raise self._locked()
        else:
            self._enough = self._memory + FLUSH_MEMORY

    def close(self) -> None:
        """Adds the remaining rows and the final status of the run."""
        for left in reversed(range(LAST_TRIES)):
            if self._put():
                return
            if left:
                time.sleep(PAUSE)
        raise self._locked()

    @property
    def _memory(self) -> int:
        return self._stats.memory + self._samples.memory

    def _put(self) -> bool:
        """Adds the waiting rows and updates the row of the run. Returns False if another process has the file."""
        self._out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._kind(self._out) as tables:
                if not self._begun:
                    self._begin(tables)
                tables.execute("DELETE FROM runs WHERE run = ?", [self._run.id])
                tables.insert("runs", facts(self._run))
                if len(self._stats):
                    insert_stats(tables, self._run, plain(self._stats.table()))
                if len(self._samples):
                    tables.insert("samples", of(self._run, plain(self._samples.table())))
        except Exception as problem:
            if self._kind.is_busy(problem) or self._kind.is_busy(problem.__cause__ or problem):
                return False
            raise
        self._begun = True
        self._stats.clear()
        self._samples.clear()
        return True

    def _begin(self, tables: Database) -> None:
        """Continues from earlier attempts: adds the missing rows, and deletes repeated steps."""
        known = self._run.id in tables.runs()
        if known and not self._attempt:
            raise there_already(self._run, self._out, "take that run out of it")
        if known:
            tables.forget(self._run.id, start_of(self._run, self._attempt))
        elif self._attempt:
            before = {"before": self._attempt}
            for table in rows(self._run, sites(self._run), columns(()), lambda *_: None, **before):
                insert_stats(tables, self._run, table)
            for table in samples(self._run, **before):
                tables.insert("samples", of(self._run, table))

    def _locked(self) -> StoreError:
        return StoreError(
            "a database that can be written to now and then",
            f"{str(self._out)!r}, which another process keeps open",
            "Close it there; `fitscope export` adds all of the run afterwards",
        )
