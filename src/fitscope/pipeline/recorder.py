"""Takes captures to a run: opens the run, owns the queue, and ends both.

A recorder knows nothing about models and steps. A `Recording` for Keras, or a session for TF1, passes captures to it and reports
how the training ended. The recorder opens the run when its first step is known, works on another thread, and is finished exactly
once: by the end of the training, an exception, the next training, or the end of the process. A finished recorder takes nothing
more. The writer then empties its queue, and the process waits for that (`unfinished`).
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fitscope.errors import FitscopeWarning
from fitscope.pipeline import signals
from fitscope.pipeline.costs import Costs
from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.pipeline.digest import Digest
from fitscope.pipeline.ending import Ending
from fitscope.pipeline.epoch_logs import EpochLogs
from fitscope.pipeline.fate import Fate
from fitscope.pipeline.handover import HostAdapter, Shown
from fitscope.pipeline.identity import Standings
from fitscope.pipeline.output import Capture, Output
from fitscope.pipeline.queue import Transport
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.sinks import Make, Sinks
from fitscope.pipeline.troubles import Troubles
from fitscope.plan.wants import LOSS, Wants
from fitscope.record import Moment
from fitscope.reduce.average import Average
from fitscope.sites import TRAIN
from fitscope.store import RunWriter

if TYPE_CHECKING:
    from fitscope.capture.exceptions import Frame

LOG_BYTES = 200  #: of one number of the logs of an epoch, in the queue
DERIVE = 0.5  #: seconds between two looks at the losses of batches
LOOK = 0.1  #: seconds between two looks whether an exception has ended the training


class Recorder:
    """One run being written, from its first captured step to its end."""

    def __init__(
        self,
        open_run: Callable[[int], RunWriter],
        adapter: HostAdapter,
        *,
        memory: int,
        when_full: str,
        samples: Callable[[Callable[[str, str], None]], SampleLosses] | None = None,
        sinks: Mapping[str, Make] | None = None,
        configuration: Mapping[str, Any] | None = None,
        diagnosis: Callable[[], Diagnosis | None] = lambda: None,
    ) -> None:
        self.stopped = False  #: nothing more is recorded: the run could not be made, or is full
        self.leaving: Callable[[], None] = lambda: None  #: called once, when the training ends
        #: called by the writer's thread, before it closes the run
        self.account: Callable[[], None] = lambda: None
        self.hurry: Callable[[], None] = lambda: None  #: called when something is due sooner than was known
        self.costs = Costs(self.failed)  #: of the training and of watching it
        self.identity = Standings()  #: whether watching changed anything
        self._open_run = open_run  # start step -> RunWriter
        self._adapter = adapter
        self._memory, self._when_full = memory, when_full
        self._digest = Digest(
            adapter,
            self.failed,
            None if samples is None else lambda: samples(self._no_samples),
            self.unseen,
            configuration,
        )
        self.output = Output(
            self._digest, Sinks(sinks or {}, self.failed), diagnosis, self.failed, self._facts
        )  #: used by the writer's thread
        self.costs.work = lambda: self.output.captures_cpu
        self.costs.judging = lambda: self.output.diagnosis.cpu if self.output.diagnosis is not None else 0.0
        self._transport: Transport[Capture | EpochLogs] | None = None
        self._troubles = Troubles()
        self._early: list[str] = []  # errors from before there was a run
        self._unseen: dict[str, str] = {}
        self._seen: set[str] = set()  # recorded sites, even if another kind of step could not record them
        self._checkpoints: list[dict[str, Any]] = []
        self._newest: dict[str, Shown] = {}  #: by pass, without tensors, if there is a limit
        self._flush_at = 0.0
        self._fate = Fate()

    # ---- on the training thread ----------------------------------------------------------------------------

    def ready(self, step: int) -> bool:
        """Whether there is a run to record to; it is created when its first step is known."""
        if self.writer is None and not self.stopped:
            try:
                self.output.writer = self._open_run(step)
            except Exception as error:  # an unusable disk must not stop the training
                self.failed(error)
                self.stopped = True
                self.tell()
                return False
            assert self.writer is not None
            if self.output.live is not None:
                self.output.live.path = self.writer.path
            for text in self._early:
                self.writer.note(error=text)
            if self.writer.trouble is not None:
                self.failed(self.writer.trouble)
            if self._checkpoints:
                self.writer.note(checkpoints=list(self._checkpoints))
            self._transport = self.costs.transport = Transport(
                self._work,
                self._idle,
                self._on_error,
                limit=self._memory,
                when_full=self._when_full,
                start=self.output.start,
                end=self._end,
                skipped=self._skipped,
                owner=self,
            )
            if self.writer.patient is not None:
                self.writer.patient.may_wait = self._transport.may_wait
                self.writer.patient.troubled = self.failed
            signals.listen()
            self._fate.listen()
        self.stopped = self.stopped or self.full
        return not self.stopped

    def refuse(self, wants: Wants, in_pass: str) -> None:
        """Counts the records of a due step that is not captured because the run is full: as many as the newest captured step had."""
        if self.writer is not None and self.full and (newest := self._newest.get(in_pass)) is not None:
            # The losses of steps that are not captured come from Keras, and are counted there.
            besides = LOSS if in_pass == TRAIN and self.output.batch_ends is not None else None
            sites = replace(newest, wants=wants).names()
            self.writer.refuse(site for site in sites if site.place != besides)

    @property
    def full(self) -> bool:
        """Whether the run has reached its limit."""
        return self.writer is not None and self.writer.full

    @property
    def finished(self) -> bool:
        """Whether the training has ended. Nothing more is taken."""
        return self._fate.known

    @property
    def writer(self) -> RunWriter | None:
        """The writer of the run, once there is one."""
        return self.output.writer

    @property
    def disturbed(self) -> bool:
        """Whether there is something to report, or the newest captured step raised."""
        return bool(self._troubles.new) or self.raised is not None

    @property
    def raised(self) -> Ending | None:
        """How the training ends, if the last exception reaches the top: it passed a place that fitscope sees."""
        return self._fate.raised

    @raised.setter
    def raised(self, ending: Ending | None) -> None:
        self._fate.raised = ending
        if ending is not None and self._transport is not None:
            self._transport.look()

    def put(self, at: Moment, shown: Shown) -> None:
        """Hands over the tensors of a step."""
        assert self._transport is not None
        if self.writer is not None and self.writer.limited:
            self._newest[shown.in_pass] = shown.without_tensors()
        if self.finished:  # the process is about to end
            return
        if self.output.light and self.output.pulse is not None:
            shown = self.output.pulse.lightened(shown)
        capture = Capture(at, shown)
        if shown.in_pass == TRAIN:
            self.begin_picture()
            self.expect(at.step)
        if self._transport.put(capture, shown.nbytes(self._adapter)):
            self.costs.captured += 1
        elif not self.finished:  # a signal may have ended the run just now, without this step
            self._skipped(capture)

    def begin_picture(self) -> None:
        """Shows the picture of the training in the cell that runs, in a notebook."""
        live = self.output.live
        if live is None:
            return
        try:
            live.begin()
        except Exception as error:  # an unexpected front end must not end the recording
            self.output.live = None
            self.failed(error)

    def expect(self, step: int) -> None:
        """Announces that a captured training step will be handed over, now or later."""
        if self.output.batch_ends is not None:
            self.output.batch_ends.expect(step)

    def expect_no_more(self, step: int) -> None:
        """It will not."""
        if self.output.batch_ends is not None:
            self.output.batch_ends.expect_no_more(step)

    def look_closer(self, step: int) -> None:
        """A loss spiked or a rule fired at this step. The next steps are captured closely.

        Called on any thread. Where `every` says when to capture, nothing changes.
        """
        if self.costs.budget is not None:
            self.costs.budget.look_closer(step)
            self.hurry()

    def look(self) -> None:
        """Makes the writer check for work now."""
        if self._transport is not None:
            self._transport.look()

    def epoch_logs(self, at: Moment, logs: Mapping[str, Any]) -> None:
        """Hands over Keras's logs of the epoch that just ended."""
        said = EpochLogs(at, dict(logs))
        if self._transport is None or self.finished or not said.logs:
            return
        if not self._transport.put(said, LOG_BYTES * len(said.logs)) and not self.finished:
            self._troubles.dropped.update(said.names())

    def average(self, site: str) -> Average | None:
        """A copy of the running average of a site so far; None if it has none."""
        if self._transport is not None:
            self._transport.drain()
        with self._digest.lock:
            average = self._digest.averages.get(site)
            return None if average is None else average.copy()

    @property
    def averages(self) -> list[str]:
        """The sites that have a running average."""
        return list(self._digest.averages)

    def checkpoint(self, path: str, step: int, epoch: int) -> None:
        """Notes a checkpoint, saved after this many steps."""
        self._checkpoints.append({"path": path, "step": step, "epoch": epoch, "time": time.time()})
        if self.writer is not None:
            self.writer.note(checkpoints=list(self._checkpoints))

    def unseen(self, site: str, why: str | None) -> None:
        """Notes that a watched site is not recorded, with the reason; None withdraws it."""
        if why is None:
            self.seen([site])
        elif site not in self._seen:
            self._unseen.setdefault(site, why)

    def seen(self, sites: Iterable[str]) -> None:
        """Notes sites that one step recorded, although another could not."""
        for site in sites:
            self._seen.add(site)
            self._unseen.pop(site, None)

    def _no_samples(self, site: str, why: str) -> None:
        self.failed(f"{site}: {why}")
        self.unseen(site, why)

    def failed(self, error: BaseException | str) -> None:
        """Stores an error, in the run too; `tell` reports it."""
        text = self._troubles.add(error)
        if self.writer is not None:
            self.writer.note(error=text)
        else:
            self._early.append(text)

    def tell(self, *, last: bool = False) -> None:
        """Warns of new errors, once per kind, and of all of them again at the end."""
        self._troubles.tell(last=last)

    # ---- the end -----------------------------------------------------------------------------------------

    def abandon(self, error: BaseException | None = None, *, wait: bool = True) -> None:
        """Ends the recording of a training that ended without a report. Pass the exception if it is known."""
        self.finish(self._fate.unreported(error), wait=wait)

    def finish(self, ending: Ending, *, wait: bool = True) -> None:
        """Closes the run when everything queued is written. Only the first call decides how the training ended.

        With `wait`, returns when that is done, and reports errors. If an exception such as Ctrl-C ends the wait, the writer continues.
        """
        first = self._fate.settle(ending)
        if first:
            self.leaving()
        if self._transport is not None:
            self._transport.close(wait=wait)
        elif first and self.writer is not None:  # an exception came between the run and its writer
            try:
                self._end()
            except Exception as error:
                self.failed(error)
        if wait:
            signals.listen_no_more()
            self.tell(last=first)

    def finish_with(self, owner: object, frame: Frame | None = None) -> None:
        """Finishes when `owner` is garbage-collected: the training ended without a report.

        The garbage collector may call this anywhere, so it only leaves a message for the writer thread. A reference to an
        exception also keeps `owner` alive; in that case the training is over when something was raised and its frame has ended.
        """
        self._fate.frame = frame
        weakref.finalize(owner, _owner_gone, weakref.ref(self)).atexit = False

    # ---- the process ends before the training does: `transport.Owner` ------------------------------------------

    def more_may_come(self) -> bool:
        """Whether the training continues in a thread that Python waits for."""
        return self._fate.in_other_thread

    def process_ends(self, signal: str | None) -> None:
        """Ends the recording with the process. Patches stay, because nothing uses the model any more and a signal may come at any point."""
        self.stopped = True
        self._fate.settle(self._fate.with_process(signal))

    def over(self) -> bool:
        """Whether the training has ended, or an unreported exception has left it."""
        return self.finished or self._fate.leaving

    def goodbye(self) -> None:
        try:
            self.tell(last=True)
        except FitscopeWarning as warning:  # the user wants warnings to be errors
            print(f"FitscopeWarning: {warning}", file=sys.stderr)

    # ---- on the writer's thread ----------------------------------------------------------------------------

    def _work(self, items: Sequence[Capture | EpochLogs]) -> None:
        self.output.work(items)

    def _idle(self) -> float:
        """Does the regular work, and returns the seconds until it is due again."""
        pause = self._regular()
        return min(pause, self.output.draw())

    def _regular(self) -> float:
        looking = self._fate.leaving
        if self._fate.left:
            self.abandon(wait=False)
            return 0.0
        early = self._flush_at - time.monotonic()
        often = self.output.batch_ends is not None or self.output.live is not None
        if early > 0 and (looking or often):
            self.output.derive()
            return LOOK if looking else min(DERIVE, early)
        try:
            self.output.flush()
        finally:
            assert self.writer is not None
            pause = self.writer.pace.pause(self.costs.wall)
            self._flush_at = time.monotonic() + pause
        return LOOK if looking else min(DERIVE, pause) if often else pause

    def _end(self) -> None:
        """When everything is written."""
        try:
            self.account()
        except Exception as error:  # the run must be closed all the same
            self.failed(error)
        self.output.end(self._fate.ending)

    def _skipped(self, item: Capture | EpochLogs) -> None:
        """Counts a capture that is not recorded, for lack of room or time."""
        self._troubles.dropped.update(item.names())
        if isinstance(item, Capture) and item.shown.in_pass == TRAIN:
            self.expect_no_more(item.at.step)

    def _on_error(self, error: Exception, _: Sequence[Capture | EpochLogs]) -> None:
        self.failed(error)

    def _facts(self) -> dict[str, Any]:
        """The facts about the recording that the run stores."""
        return {
            "overhead": self.costs.describe(),
            "dropped": dict(self._troubles.dropped),
            "unseen": dict(self._unseen),
            "bad_samples": dict(self._digest.bad_samples.found),
            "identity": self.identity.describe(self.costs.captured),
            **({} if self.output.kept is None else {"black_box": self.output.kept.describe()}),
        }


def _owner_gone(reference: weakref.ref[Recorder]) -> None:
    recorder = reference()
    if recorder is not None and not recorder.finished:
        try:
            recorder.abandon(sys.exc_info()[1], wait=False)
        except Exception as error:  # a finalizer must not raise
            recorder.failed(error)
