"""From captures to a run: the open run, the queue before it, what went wrong, and what it cost.

A recorder knows nothing of models and steps. Whoever watches a training (a `Recording` for Keras, a session for TF1) hands it
captures and tells it how the training ended; it opens the run when its first step is known, works on another thread, and is finished
exactly once: by the end of the training, by an exception, by the next training, or when the process ends. Finished means that nothing
more is taken: the writer then works off its queue, and the process does not end before it has (`unfinished`).
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fitscope.errors import FitscopeWarning
from fitscope.pipeline import signals
from fitscope.pipeline.digest import Digest
from fitscope.pipeline.handover import Border, Shown
from fitscope.pipeline.queue import Transport
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.sinks import Make, Sinks
from fitscope.pipeline.standing import Standings
from fitscope.plan.budget import Budget, Spent, Time, Timing
from fitscope.record import Moment
from fitscope.reduce import host
from fitscope.reduce.average import Average
from fitscope.schedule import Turn
from fitscope.shield import shield
from fitscope.store import RunWriter, interval

if TYPE_CHECKING:
    from fitscope.capture.leaving import Frame

LOOK = 0.1  #: seconds between two looks whether an exception has ended the training


@dataclass(frozen=True, slots=True)
class Ending:
    """How a training ended. Not the exception itself: that would keep alive all that its traceback knows, the training too."""

    status: str
    by_what: str | None

    @classmethod
    def by(cls, error: BaseException | None) -> Ending:
        if error is None:
            return UNKNOWN
        by_hand = isinstance(error, KeyboardInterrupt | SystemExit)
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        return cls("interrupted" if by_hand else "failed", text)


COMPLETE = Ending("complete", None)
UNKNOWN = Ending("interrupted", "unknown: nothing reported how the training ended")


@dataclass(frozen=True, slots=True)
class Capture:
    """What one step showed, on its way to the writer."""

    at: Moment
    shown: Shown


class Recorder:
    """One run being written, from its first captured step until it ends, however it ends."""

    def __init__(
        self,
        open_run: Callable[[int], RunWriter],
        border: Border,
        *,
        memory: int,
        when_full: str,
        samples: Callable[[Callable[[str, str], None]], SampleLosses] | None = None,
        sinks: Mapping[str, Make] | None = None,
    ) -> None:
        self.writer: RunWriter | None = None
        self.finished = False
        self.stopped = False  #: nothing more is recorded: the run could not be made, or is full
        self.trainer = threading.current_thread()  #: that hands over
        self.first_calls: Callable[[], list[float]] = list  #: seconds, of steps that were compiled
        self.proofs: Callable[[], list[float]] = list  #: seconds, of steps that were proofs of identity
        self.leaving: Callable[[], None] = lambda: None  #: called once, when the training ends
        self.budget: Budget | None = None  #: that decides how often to capture
        self.steps = 0  #: begun, captured or not
        self.identity = Standings()  #: whether watching changed anything
        self._open_run = open_run  # start step -> RunWriter
        self._border = border
        self._memory, self._when_full = memory, when_full
        self._digest = Digest(
            border,
            self.failed,
            None if samples is None else lambda: samples(self._no_samples),
            self.unseen,
        )
        self._sinks = Sinks(sinks or {}, self.failed)
        self._transport: Transport[Capture] | None = None
        self._errors: list[tuple[str, str]] = []  # not told yet: what kind of error, and its text
        self._told: Counter[str] = Counter()
        self._texts: dict[str, str] = {}  # by kind
        self._early: list[str] = []  # from before there was a run
        self._unseen: dict[str, str] = {}
        self._seen: set[str] = set()  # that are not unseen, whatever another kind of step says
        self._dropped: Counter[str] = Counter()
        self._checkpoints: list[dict[str, Any]] = []
        self._began = time.perf_counter(), time.process_time()
        self._captured, self._thread_seconds = 0, 0.0
        self._names: Sequence[str] = ()  # of what the newest captured step showed, where a limit may stop it
        self._raised: Ending | None = None
        self._frame: Frame | None = None  # in which the training runs
        self._flush_at = 0.0
        self._ending = UNKNOWN
        self._lock = threading.RLock()  # a finalizer may run anywhere, also inside itself

    # ---- on the training thread ----------------------------------------------------------------------------

    def ready(self, step: int) -> bool:
        """Whether there is a run to record to; made when its first step is known."""
        if self.writer is None and not self.stopped:
            try:
                self.writer = self._open_run(step)
            except Exception as error:  # an unusable disk must not stop the training
                self.failed(error)
                self.stopped = True
                self.tell()
                return False
            for text in self._early:
                self.writer.note(error=text)
            if self.writer.trouble is not None:
                self.failed(self.writer.trouble)
            if self._checkpoints:
                self.writer.note(checkpoints=list(self._checkpoints))
            self._transport = Transport(
                self._work,
                self._idle,
                self._on_error,
                limit=self._memory,
                when_full=self._when_full,
                start=self._start,
                end=self._end,
                skipped=lambda capture: self._dropped.update(capture.shown.names()),
                owner=self,
            )
            signals.listen()
        if self.writer is not None and self.writer.full:
            self.stopped = True
            self.writer.refuse(self._names)  # as many as at the step before it was full
        return not self.stopped

    @property
    def disturbed(self) -> bool:
        """Whether there is something to tell, or the newest captured step raised."""
        return bool(self._errors) or self.raised is not None

    @property
    def raised(self) -> Ending | None:
        """How the training ends, if what was raised last goes all the way up: it passed a place that we see."""
        return self._raised

    @raised.setter
    def raised(self, ending: Ending | None) -> None:
        self._raised = ending
        if ending is not None and self._transport is not None:
            self._transport.look()

    def put(self, at: Moment, shown: Shown) -> None:
        """Hands over what a step showed."""
        assert self._transport is not None
        if self.writer is not None and self.writer.limited:
            self._names = shown.names()
        if self.finished:  # the process is about to end
            return
        if self._transport.put(Capture(at, shown), shown.nbytes(self._border)):
            self._captured += 1
        elif not self.finished:  # a signal may have ended the run just now: this step is none of it any more
            self._dropped.update(shown.names())

    def weigh(self, turns: Sequence[Turn], captured: int, tapped: int) -> Timing | None:
        """Tells the budget of steps that are about to run: in so many of them something is captured, or looked at, because of it.

        What times them, if they are to be.
        """
        if self.budget is None or not self.budget.next(turns[0].step, len(turns), captured, tapped):
            return None
        ready = (
            self._transport is None or self._transport.ready
        )  # else the process is busy with getting the kernel ready
        return Timing(self._start_timed, self._stop_timed) if ready else None

    def _start_timed(self) -> None:
        self._timed(lambda budget: budget.start(self._spent()))

    def _stop_timed(self) -> None:
        self._timed(lambda budget: budget.stop(self._spent()))

    def _timed(self, act: Callable[[Budget], None]) -> None:
        """This runs around the user's own step: an error of ours ends our timing, not the training."""
        assert self.budget is not None
        trouble = self.budget.trouble
        try:
            act(self.budget)
        except Exception as error:
            self.failed(error)
        if self.budget.trouble is not trouble:
            _warn(f"fitscope cannot keep its budget: {self.budget.trouble}")

    def _spent(self) -> Spent:
        transport = self._transport
        return Spent(
            Time(time.perf_counter(), time.process_time()),
            transport.cpu if transport is not None else 0.0,
            transport.waited if transport is not None else 0.0,
            len(self.first_calls()) + len(self.proofs()),
        )

    def average(self, site: str) -> Average | None:
        """The running average of a site over all that was captured so far, as a copy; None if it has none."""
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
        """A checkpoint was saved after so many steps."""
        self._checkpoints.append({"path": path, "step": step, "epoch": epoch, "time": time.time()})
        if self.writer is not None:
            self.writer.note(checkpoints=list(self._checkpoints))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """What happens in this block on the training thread is our cost."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._thread_seconds += time.thread_time() - began

    def unseen(self, site: str, why: str | None) -> None:
        """Something that was asked for is not recorded, and why; None if it is, after all."""
        if why is None:
            self.seen([site])
        elif site not in self._seen:
            self._unseen.setdefault(site, why)

    def seen(self, sites: Iterable[str]) -> None:
        """Sites that one step showed, although another could not."""
        for site in sites:
            self._seen.add(site)
            self._unseen.pop(site, None)

    def _no_samples(self, site: str, why: str) -> None:
        self.failed(f"{site}: {why}")
        self.unseen(site, why)

    def failed(self, error: BaseException | str) -> None:
        """Keeps what went wrong; `tell` says it."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        # A full disk says the same of one file after the other.
        kind = f"errno {error.errno}" if isinstance(error, OSError) and error.errno is not None else text
        self._errors.append((kind, text))
        if self.writer is not None:
            self.writer.note(error=text)
        else:
            self._early.append(text)

    def tell(self, *, last: bool = False) -> None:
        """Warns of new errors, of each kind once, and of all of them again at the end."""
        if not self._errors and not last:
            return
        new, self._errors = self._errors, []
        fresh = {kind: text for kind, text in reversed(new) if kind not in self._told}
        self._told.update(kind for kind, _ in new)
        self._texts.update(fresh)
        for text in fresh.values():
            _warn(f"fitscope could not observe everything, training goes on. {text}")
        if last and self._told.total() > len(fresh):
            worst = "; ".join(
                f"{self._texts[kind]} ({n}×)" if n > 1 else self._texts[kind]
                for kind, n in self._told.most_common(3)
            )
            _warn(f"fitscope met {self._told.total()} errors in this training: {worst}")
        if last and self._dropped:
            _warn(
                f"fitscope dropped {self._dropped.total()} records because its queue was full; "
                "see run.dropped, or give Scope more `memory`"
            )

    # ---- the end -----------------------------------------------------------------------------------------

    def abandon(self, error: BaseException | None = None, *, wait: bool = True) -> None:
        """The training ended and nobody told us; the exception says how, where it is known."""
        self.finish(self.raised or Ending.by(error), wait=wait)

    def finish(self, ending: Ending, *, wait: bool = True) -> None:
        """Has the run closed when all that is queued is written. Only the first call says how the training ended.

        With `wait`, returns when that is done, and says what went wrong. An exception that ends the wait, like Ctrl-C, costs nothing:
        the writer goes on.
        """
        first = self._finished(ending)
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

    def _finished(self, ending: Ending) -> bool:
        """Whether this is the first word about how the training ended."""
        with self._lock:
            first, self.finished = not self.finished, True
            if first:
                self._ending = ending
        return first

    def finish_with(self, owner: object, frame: Frame | None = None) -> None:
        """Finishes when `owner` goes away: the training ended and nobody told us.

        The garbage collector may call this anywhere, so it only leaves word for the writer's thread. Whoever holds on to an exception
        holds on to `owner` too; then it is the end when something was raised and the frame of the training was left.
        """
        self._frame = frame
        weakref.finalize(owner, _owner_gone, weakref.ref(self)).atexit = False

    # ---- the process ends before the training does: `transport.Owner` ------------------------------------------

    def more_may_come(self) -> bool:
        """Whether the training goes on in a thread that Python waits for."""
        main = self.trainer is threading.main_thread()
        return not self.finished and not main and not self.trainer.daemon and self.trainer.is_alive()

    def process_ends(self, signal: str | None) -> None:
        """Nothing is undone: nobody will see the model again, and a signal may have come in the middle of anything."""
        self.stopped = True
        by_process = Ending("interrupted", signal or "the process ended before the training was finished")
        self._finished(self.raised or (None if signal else self._uncaught()) or by_process)

    def _uncaught(self) -> Ending | None:
        """By the exception that ends the process, if it is the one that ended this training."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None or (hasattr(sys, "ps1") if self._frame is None else not self._frame.passed(error)):
            return None
        return Ending.by(error)

    def goodbye(self) -> None:
        try:
            self.tell(last=True)
        except FitscopeWarning as warning:  # the user wants warnings to be errors
            print(f"FitscopeWarning: {warning}", file=sys.stderr)

    # ---- on the writer's thread ----------------------------------------------------------------------------

    def _start(self) -> None:
        assert self.writer is not None
        self._sinks.open(self.writer)
        host.warm_up()

    def _work(self, capture: Capture) -> None:
        assert self.writer is not None
        blocks, records, samples = self._digest.take(capture.at, capture.shown)
        try:
            self.writer.write(records, samples, blocks)
        finally:
            if self._sinks and not self.writer.full:
                self._sinks.write([*(r for block in blocks for r in block.records()), *records], samples)

    def _idle(self) -> float:
        """Returns after how many seconds to look again."""
        looking = self.raised is not None and self._frame is not None
        if looking and self._frame is not None and self._frame.left():
            self.abandon(wait=False)
            return 0.0
        if looking and time.monotonic() < self._flush_at:
            return LOOK
        try:
            self._flush()
        finally:
            pause = interval(time.perf_counter() - self._began[0])
            self._flush_at = time.monotonic() + pause
        return LOOK if looking else pause

    def _flush(self) -> None:
        assert self.writer is not None
        self._note()
        self._average()
        try:
            self.writer.flush()
        finally:
            self._sinks.flush()

    def _end(self) -> None:
        """When everything is written."""
        assert self.writer is not None
        if self.writer.full:
            lost = sum(self.writer.lost.values())
            self.failed(
                f"the run reached its limit at step {self.writer.full_at}; {lost} records were not kept"
            )
        self._note()
        self._average()
        if self._ending.by_what is not None:
            self.writer.note(ended_by=self._ending.by_what)
        self._sinks.flush()  # what goes wrong there is still noted in the run
        try:
            self.writer.close(self._ending.status)
        finally:
            self._sinks.close()  # now they can say how it ended

    def _average(self) -> None:
        assert self.writer is not None
        for site, average in self._digest.averages.items():
            self.writer.average(site, average)

    def _on_error(self, error: Exception, _: Capture | None) -> None:
        self.failed(error)

    def _note(self) -> None:
        assert self.writer is not None  # the transport may be: its thread runs before we have it
        self.writer.note(
            overhead=self.overhead(),
            dropped=dict(self._dropped),
            unseen=dict(self._unseen),
            identity=self.identity.describe(self._captured),
        )

    def overhead(self) -> dict[str, Any]:
        """What observing has cost so far. Shares are of the CPU time of the whole process since the training began."""
        wall, cpu = (
            now() - then
            for now, then in zip((time.perf_counter, time.process_time), self._began, strict=True)
        )
        transport = self._transport
        return {
            "steps": self.steps,
            "captured": self._captured,
            "wall_seconds": wall,
            "cpu_seconds": cpu,
            "training_thread_seconds": self._thread_seconds,
            "writer_seconds": transport.cpu if transport else 0.0,
            "warm_up_seconds": transport.start_cpu if transport else 0.0,
            "waited_seconds": transport.waited if transport else 0.0,
            "first_call_seconds": self.first_calls(),
            "proof_seconds": sum(self.proofs()),
            "queue_peak_bytes": transport.peak if transport else 0,
            **({"budget": self.budget.describe()} if self.budget is not None else {}),
            "cpu_share": (self._thread_seconds + (transport.cpu if transport else 0.0)) / cpu if cpu else 0.0,
        }


def _warn(text: str) -> None:
    warnings.warn(text, FitscopeWarning, stacklevel=3)


def _owner_gone(reference: weakref.ref[Recorder]) -> None:
    recorder = reference()
    if recorder is not None and not recorder.finished:
        with shield(recorder.failed):
            recorder.abandon(sys.exc_info()[1], wait=False)
