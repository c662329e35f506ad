"""Writes captures, on the writer's thread, to the run, the sinks, the diagnosis, and the picture of a notebook.

The training thread sets `writer` once, before the thread starts. From then on only the writer's thread works here. The run
records an error in a sink or in the diagnosis, which ends neither the run nor the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fitscope.pipeline.batch_ends import BatchEnds
from fitscope.pipeline.black_box import Kept
from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.pipeline.digest import Digest
from fitscope.pipeline.ending import COMPLETE, Ending
from fitscope.pipeline.epoch_logs import EpochLogs
from fitscope.pipeline.handover import Shown
from fitscope.pipeline.live import LivePicture
from fitscope.pipeline.pulse import Pulse
from fitscope.pipeline.sinks import Sinks
from fitscope.pipeline.troubles import described
from fitscope.record import Block, Moment, Record, Samples
from fitscope.reduce import host, units
from fitscope.sites import TRAIN, Site
from fitscope.store import RunWriter


@dataclass(frozen=True, slots=True)
class Capture:
    """The captured tensors of one step, on their way to the writer."""

    at: Moment
    shown: Shown

    def names(self) -> list[Site]:
        return self.shown.names()


class Output:
    """Everything that one recording writes to."""

    def __init__(
        self,
        digest: Digest,
        sinks: Sinks,
        diagnosis: Callable[[], Diagnosis | None],
        failed: Callable[[BaseException | str], None],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self.writer: RunWriter | None = None
        self.batch_ends: BatchEnds | None = None  #: the ends of batches, if Keras logs the loss
        self.diagnosis: Diagnosis | None = None
        self.live: LivePicture | None = None  #: the picture in a notebook
        self.kept: Kept | None = None  #: the steps that the black box keeps
        self.captures_cpu = 0.0  #: CPU seconds for captures and their rows, which fewer captures would save
        self.pulse: Pulse | None = None  #: the pulse of this rank, if there are others
        self._least_flush = math.inf  # seconds of CPU
        self._digest = digest
        self._sinks = sinks
        self._make_diagnosis = diagnosis  # called when there is a run
        self._failed = failed
        self._facts = facts  # returns facts about the recording, for the run

    @property
    def light(self) -> bool:
        """Whether this rank records only its pulse."""
        return self.writer is not None and self.writer.pace.light

    def start(self) -> None:
        """Opens the sinks and compiles the kernels."""
        assert self.writer is not None
        if self.writer.rank == 0:  # two processes cannot write one file; `fitscope export` has all ranks
            self._sinks.open(self.writer)
        self.diagnosis = None if self.light else self._make_diagnosis()  # it would have only the loss
        if self.diagnosis is not None:
            self.diagnosis.failed = self._failed
            if self.writer.world == 1:
                self.diagnosis.evidence.bad_samples = self._digest.bad_samples.found
            self.diagnosis.drawn = self.live is not None
        host.warm_up()
        units.warm_up()

    def work(self, items: Sequence[Capture | EpochLogs]) -> None:
        """Writes some steps, and the logs of epochs."""
        together = not self._sinks and self.pulse is None  # sinks and the pulse take one step after the other
        with self._for_captures():
            for at_once, some in groupby(items, key=lambda item: together and isinstance(item, Capture)):
                for group in [list(some)] if at_once else ([item] for item in some):
                    self._write(group)

    @contextmanager
    def _for_captures(self) -> Iterator[None]:
        begun = time.thread_time()
        try:
            yield
        finally:
            self.captures_cpu += time.thread_time() - begun

    def _write(self, items: Sequence[Capture | EpochLogs]) -> None:
        """Writes captures, or the logs of one epoch."""
        assert self.writer is not None
        blocks: list[Block]
        records: list[Record] = []
        samples: list[Samples] = []
        if self.light:
            self._take_pulse(items[0])
            return
        captures = [item for item in items if isinstance(item, Capture)]
        if captures:
            if self._sinks:
                self.derive()  # so that sinks get the steps in order
            blocks, records, samples = self._digest.take((item.at, item.shown) for item in captures)
            trained = [item.at for item in captures if item.shown.in_pass == TRAIN]
            if self.batch_ends is not None:
                self.batch_ends.captured([at.step for at in trained], blocks)
            if self.pulse is not None and trained:
                self.pulse.take(trained[0], blocks, records)
        else:
            blocks = [block for item in items if isinstance(item, EpochLogs) and (block := item.block())]
        try:
            self.writer.write(records, samples, blocks)
        finally:
            if self._sinks and not self.writer.full:
                self._sinks.write([*(r for block in blocks for r in block.records()), *records], samples)
        if not self.writer.full:
            self._diagnosed(lambda diagnosis: diagnosis.take(blocks, records))

    def _take_pulse(self, item: Capture | EpochLogs) -> None:
        """Takes a step on a light rank, which does nothing else with it."""
        assert self.writer is not None
        assert self.pulse is not None
        if isinstance(item, Capture) and item.shown.in_pass == TRAIN:
            blocks, records, _ = self._digest.take([(item.at, item.shown)])
            if self.batch_ends is not None:
                self.batch_ends.captured([item.at.step], blocks)
            self.pulse.take(item.at, blocks, records)
            self.writer.reached(item.at.step)

    def flush(self) -> None:
        """Flushes everything written so far to disk."""
        assert self.writer is not None
        self.derive()
        self._judge(last=False)
        self._note()
        begun = time.thread_time()
        try:
            self.writer.flush(tensors=self.writer.pace.tensors_due())
        finally:
            took = time.thread_time() - begun
            self._least_flush = min(self._least_flush, took)  # the time of a flush without new data
            self.captures_cpu += took - self._least_flush
            self._sinks.flush()

    def end(self, ending: Ending) -> None:
        """Closes the run, when everything is written."""
        assert self.writer is not None
        try:
            self.derive(last=True)
        except Exception as error:
            self._failed(error)
        fired = self._judge(last=True)
        if ending.status != COMPLETE.status:
            self._write_kept([*fired, ending.by_what or ending.status], newest=True)
        if self.writer.full:
            lost = sum(self.writer.lost.values())
            self._failed(
                f"the run reached its limit at step {self.writer.full_at}; {lost} records were not kept"
            )
        self.draw(ending)
        self._note()
        if ending.by_what is not None:
            self.writer.note(ended_by=ending.by_what)
        self._sinks.flush()  # their errors can still be stored in the run
        try:
            self.writer.close(ending.status)
        finally:
            self._sinks.close()  # now the sinks can record how the training ended

    def draw(self, ending: Ending | None = None) -> float:
        """Draws the picture in the notebook if one is due, also at the end of the training. Returns the seconds until the next one."""
        live, diagnosis = self.live, self.diagnosis
        if live is None:
            return math.inf
        try:
            if diagnosis is not None and (ending is not None or not live.pause()):
                live.draw(diagnosis.evidence, diagnosis.found, ending)
        except Exception as error:
            live.end()
            self.live = None
            self._failed(error)
            return math.inf
        return live.pause()

    def derive(self, *, last: bool = False) -> None:
        """Writes the loss of the batches that ended since the last call."""
        found = self.batch_ends.derive(last=last) if self.batch_ends is not None else None
        if found is not None and self.writer is not None and not self.light:
            self.writer.write_stretch(found)
            self._sinks.write_stretch(found)
            self._diagnosed(lambda diagnosis: diagnosis.take_losses(found))

    def _diagnosed(self, act: Callable[[Diagnosis], dict[str, Any] | None]) -> None:
        """Works on the diagnosis, and stores its findings in the run. An error in it ends the diagnosis, not the recording."""
        if self.diagnosis is None or self.writer is None:
            return
        try:
            found = act(self.diagnosis)
        except Exception as error:
            self._failed(error)
            self.diagnosis = None
        else:
            if found is not None:
                self.writer.note(findings=found)

    def _judge(self, *, last: bool) -> list[str]:
        """Applies the rules, and lets the black box write at a finding. Returns the findings that fired."""
        self._diagnosed(lambda diagnosis: diagnosis.judge(last=last))
        if self.kept is None or self.diagnosis is None:
            return []
        severe = [f for f in self.diagnosis.fired if self.kept.settings.writes_at(f.severity)]
        fired = [f"{finding.rule}: {finding.title}" for finding in severe]
        if fired:
            self._write_kept(fired, newest=False)
        return fired

    def _write_kept(self, why: list[str], *, newest: bool) -> None:
        if self.kept is None or self.writer is None:
            return
        try:
            self.kept.write(self.writer, why, newest=newest)
        except Exception as error:  # the disk is full, memory ran out, or the disk is gone
            self._failed(f"the black box could not be written: {described(error)}")

    def _note(self) -> None:
        """Stores the facts about the recording, and the running averages."""
        assert self.writer is not None
        self.writer.note(**self._facts())
        if self.pulse is not None:
            self.writer.note(pulse=self.pulse.describe())
        for site, average in self._digest.averages.items():
            self.writer.average(site, average)
