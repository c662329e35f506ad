"""Writes TensorBoard event files during training: one per attempt, in the directory of the run.

A step is written when the next one arrives, or when nothing arrived between two flushes. So the batches of a validation become one
value, as in an export. A slower pass is written in its current state, and again when it is over. If steps are repeated, the file
tells TensorBoard to forget the earlier values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from fitscope.export.live import start_of
from fitscope.export.place import folder
from fitscope.export.rows import columns, rows, sites
from fitscope.export.tensorboard import Events, Steps, by_step, directory, file_name
from fitscope.record import scalar
from fitscope.sites import pass_of

if TYPE_CHECKING:
    from fitscope.read import Run
    from fitscope.record import Record, Samples


class LiveEvents:
    """The event file of one attempt."""

    def __init__(self, logs: Path, run: Run, attempt: int) -> None:
        where = folder(directory(logs, run), force=True)
        self._steps = Steps()
        self._events = Events(where / file_name(run, attempt), run.created.timestamp())
        if attempt:
            self._go_on(run, attempt)

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None:
        del samples  # TensorBoard cannot show samples
        for record in records:
            if record.stats is None:
                continue
            for seen in self._steps.at(record.at.step):
                self._events.add(seen)
            value = scalar(record)
            at = record.at
            self._steps.of(record.site, at.time).take(at.time, record.stats, value, record.cosine)

    def flush(self) -> None:
        for seen in self._steps.quiet():
            self._events.add(seen)
        self._events.flush()

    def close(self) -> None:
        try:
            for seen in self._steps.rest():
                self._events.add(seen)
        finally:
            self._events.close()

    def _go_on(self, run: Run, attempt: int) -> None:
        """Tells TensorBoard to forget repeated steps, except the passes at the first of them."""
        start = start_of(run, attempt)
        passed = [status["step"] for status in run._statuses() if status.get("step") is not None]
        if max(passed, default=start) <= start:
            return
        self._events.restart(start, time.time())
        passes = [site for site in sites(run) if pass_of(site) is not None]
        for table in rows(run, passes, columns(()), lambda *_: None, before=attempt):
            for seen in by_step([table.filter(pc.equal(table["step"], start))]):
                self._events.add(seen)
        self._events.flush()
