"""One training being recorded, from its first step until it ends, however it ends.

A recording owns everything that lives as long as one `fit`: the plan, the tapped steps, the queue with its writer thread, the open
run and the tally of what observing cost. It is made by `Scope`, told of every step before it runs, and finished
exactly once: by the end of the training, by an exception, by the next training, or when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fitscope import reducing
from fitscope.attach import Site
from fitscope.backends import Adapter, Harvest
from fitscope.batch import Batch
from fitscope.dispatch import Request, StandIn, TappedSteps, install
from fitscope.errors import FitscopeWarning
from fitscope.plan import LOSS_SCALE, Due, Plan, Want
from fitscope.record import Moment
from fitscope.reduce import host
from fitscope.store import RunWriter, interval
from fitscope.transport import Transport
from fitscope.watch import Turn


@dataclass(frozen=True, slots=True)
class Capture:
    """What one step showed, on its way to the writer."""

    at: Moment
    items: list[tuple[Site, Want, Any]]
    nbytes: int


def _kept(method: Callable[..., None]) -> Callable[..., None]:
    """An error of ours inside this method stays ours: it is kept and told, and the training goes on."""

    @functools.wraps(method)
    def kept(self: Recording, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except FitscopeWarning:  # the user wants warnings to be errors
            raise
        except Exception as error:
            self._failed(error)

    return kept


class Recording:
    """One training being recorded."""

    def __init__(
        self,
        plan: Plan,
        adapter: Adapter,
        open_run: Any,
        *,
        memory: int,
        when_full: str,
        in_step: bool,
        after: Recording | None = None,
    ) -> None:
        self.plan = plan
        self.adapter = adapter
        self.model = plan.anatomy.model
        self.batch: Batch | None = None
        self.writer: RunWriter | None = None
        self.finished = False
        self.next_step: int | None = None  #: the step after the last one announced
        self.seen_step: int | None = None  #: the last one that was captured
        self._optimizer = getattr(self.model, "optimizer", None)
        self._open_run = open_run  # start step -> RunWriter
        self._memory, self._when_full = memory, when_full
        finish = reducing.finish_in_step if in_step else reducing.finish_on_host
        self._steps = TappedSteps(adapter, plan.anatomy, finish)
        self._counted: int | None = None  # by the optimizer, when the newest epoch began
        if after is not None and after.plan.same(plan):  # nothing to compile again
            self._steps = after._steps
        if after is not None and after._optimizer is self._optimizer:
            self.next_step, self._counted = after.next_step, after._counted
        self._first_calls = len(self._steps.first_calls)  # of those before us
        self._stand_in: StandIn | None = None
        self._transport: Transport[Capture] | None = None
        self._epoch, self._epoch_start = 0, 0
        self._batches: int | None = None
        self._pending: Capture | None = None  # due only if it turns out to be the last of its epoch
        self._stopped = False  # nothing more is captured: the run could not be made, or is full
        self._raise: BaseException | None = None  # what the newest captured step raised
        self._errors: list[tuple[str, str]] = []  # not told yet: what kind of error, and its text
        self._told: Counter[str] = Counter()
        self._texts: dict[str, str] = {}  # by kind
        self._early: list[str] = []  # from before there was a run
        self._unseen: dict[str, str] = {}
        self._looked: set[Due] = set()
        self._dropped: Counter[str] = Counter()
        self._began = time.perf_counter(), time.process_time()
        self._steps_begun, self._captured, self._thread_seconds = 0, 0, 0.0
        self._ending: tuple[str, BaseException | None] = "interrupted", None
        self._lock = threading.RLock()  # a finalizer may run anywhere, also inside itself
        _open.add(self)

    # ---- told by the training ----------------------------------------------------------------------------

    @_kept
    def epoch(self, epoch: int, batches: int | None) -> None:
        """An epoch begins."""
        self._epoch, self._batches = epoch, batches

    @_kept
    def before_step(self, batch: int) -> None:
        """A step (or several in one execution) is about to run, beginning with this batch of the epoch."""
        self._raise = None
        if self._errors:
            self._tell()
        together = self.model.steps_per_execution
        if batch == 0 or self.next_step is None:
            self._epoch_start = self._count(batch)
        step = self._epoch_start + batch
        self.next_step = step + together
        self._steps_begun += together
        if self._stopped:
            return
        turns = [Turn(step + k, self._epoch, batch + k, self._batches) for k in range(together)]
        due = [self.plan.due(turn) for turn in turns]
        wanted: Due = frozenset().union(*(now | later for now, later in due))
        if wanted and self._ready(step):
            self._stand_in = install(
                self._steps,
                "train",
                Request(
                    who=id(self),
                    key=(id(self._steps), wanted),
                    wants=self.plan.wants(wanted),
                    deliver=lambda harvests: self._deliver(turns, due, harvests),
                    failed=self._failed,
                    raised=self._raised,
                ),
            )

    @_kept
    def epoch_end(self) -> None:
        """An epoch is over, so the step that might have been its last one was."""
        self._raise = None  # it only said that there are no more batches
        if self._pending is not None:
            self._hand_over(self._pending)
            self._pending = None

    def abandon(self, error: BaseException | None = None, *, wait: bool = True) -> None:
        """The training ended and nobody told us; the exception says how, where it is known."""
        error = self._raise or error
        lost = error is not None and not isinstance(error, KeyboardInterrupt | SystemExit)
        self.finish("failed" if lost else "interrupted", error, wait=wait)

    def finish(self, status: str, error: BaseException | None = None, *, wait: bool = True) -> None:
        """Has the run closed when all that is queued is written. Only the first call says how the training ended.

        With `wait`, returns when that is done, and says what went wrong.
        """
        with self._lock:
            first, self.finished = not self.finished, True
        if first:
            self._ending = status, error
            _open.discard(self)
            if self._stand_in is not None:
                self._stand_in.withdraw(id(self))
            self._pending = None  # its epoch never ended
        if self._transport is not None:
            self._transport.close(wait=wait)
        if wait:
            self._tell(last=first)

    def _end(self) -> None:
        """On the writer's thread, when everything is written."""
        assert self.writer is not None
        status, error = self._ending
        if self.writer.full:
            lost = sum(self.writer.lost.values())
            self._failed(
                f"the run reached its limit at step {self.writer.full_at}; {lost} records were not kept"
            )
        self._note()
        if error is not None:
            self.writer.note(ended_by=f"{type(error).__name__}: {error}")
        self.writer.close(status)

    # ---- the count of steps ------------------------------------------------------------------------------

    def _count(self, batch: int) -> int:
        """The step at which this epoch's batch 0 stands (or stood, when told in the middle of an epoch).

        The optimizer's own count, so that a resumed training goes on where it was. Where that does not move, because a
        custom step has no use for it, it is ours: the steps announced. Ours alone would be too high, as a generator that
        ends, or the last of several steps in one execution, is announced too. Never a step that was captured before:
        loss scaling does not count a batch that overflowed.
        """
        known = self.adapter.iterations(self._optimizer) if self._optimizer is not None else 0
        moved, self._counted = known != self._counted, known
        ours = 0 if moved or self.next_step is None else self.next_step
        return max(known - batch, ours, 0 if self.seen_step is None else self.seen_step + 1)

    # ---- on the training thread ----------------------------------------------------------------------------

    def _ready(self, step: int) -> bool:
        """The run, made when its first step is known."""
        if self.writer is None:
            try:
                self.writer = self._open_run(step)
            except Exception as error:  # an unusable disk must not stop the training
                self._failed(error)
                self._stopped = True
                self._tell()
                return False
            for text in self._early:
                self.writer.note(error=text)
            self._transport = Transport(
                self._work,
                self._idle,
                self._on_error,
                limit=self._memory,
                when_full=self._when_full,
                start=host.warm_up,
                end=self._end,
            )
        self._stopped = self.writer.full
        return not self._stopped

    @_kept
    def _deliver(self, turns: list[Turn], due: list[tuple[Due, Due]], harvests: list[Harvest]) -> None:
        began = time.thread_time()
        for turn, (now, later), harvest in zip(turns, due, harvests, strict=False):
            self._unseen.update(harvest.failed)
            if harvest.broken is not None:
                self._failed(harvest.broken)
            at = Moment(turn.step, turn.epoch, turn.batch, time.time())
            self.seen_step = turn.step
            self._miss(now | later, harvest)
            if now | later:
                self.batch = Batch(at, harvest.tensors, self.adapter)
            if now:
                self._hand_over(self._capture(at, now, harvest))
            self._pending = self._capture(at, later - now, harvest) if later - now else None
        self._thread_seconds += time.thread_time() - began

    def _miss(self, due: Due, harvest: Harvest) -> None:
        """Names what is wanted and was not passed by the step, once for each set of watches."""
        if due in self._looked:
            return
        self._looked.add(due)
        passed = {site.place for site in harvest.sites.values()}
        for kind, path in self.plan.wants(due).keys() - passed - {("metrics", ""), LOSS_SCALE}:
            self._unseen.setdefault(f"{kind}/{path}" if path else kind, "the step does not pass it")

    def _capture(self, at: Moment, due: Due, harvest: Harvest) -> Capture:
        wants = self.plan.wants(due)
        items = [
            (site, wants[site.place], value)
            for name, value in harvest.tensors.items()
            if (site := harvest.sites[name]).place in wants
        ]
        return Capture(at, items, sum(reducing.nbytes(value, self.adapter) for _, _, value in items))

    def _hand_over(self, capture: Capture) -> None:
        assert self._transport is not None
        if self._transport.put(capture, capture.nbytes):
            self._captured += 1
        else:
            self._dropped.update(site.name for site, _, _ in capture.items)

    def note(self, error: BaseException | str) -> None:
        """Keeps and tells what went wrong."""
        self._failed(error)

    def _raised(self, error: BaseException) -> None:
        self._raise = error

    def _failed(self, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        # A full disk says the same of one file after the other.
        kind = f"errno {error.errno}" if isinstance(error, OSError) and error.errno is not None else text
        self._errors.append((kind, text))
        if self.writer is not None:
            self.writer.note(error=text)
        else:
            self._early.append(text)

    def _tell(self, *, last: bool = False) -> None:
        """Warns of new errors, of each kind once, and of all of them again at the end."""
        new, self._errors = self._errors, []
        fresh = {kind: text for kind, text in reversed(new) if kind not in self._told}
        self._told.update(kind for kind, _ in new)
        self._texts.update(fresh)
        for text in fresh.values():
            warnings.warn(
                f"fitscope could not observe everything, training goes on. {text}",
                FitscopeWarning,
                stacklevel=2,
            )
        if last and self._told.total() > len(fresh):
            worst = "; ".join(
                f"{self._texts[kind]} ({n}×)" if n > 1 else self._texts[kind]
                for kind, n in self._told.most_common(3)
            )
            warnings.warn(
                f"fitscope met {self._told.total()} errors in this training: {worst}",
                FitscopeWarning,
                stacklevel=2,
            )
        if last and self._dropped:
            warnings.warn(
                f"fitscope dropped {self._dropped.total()} records because its queue was full; "
                "see run.dropped, or give Scope more `memory`",
                FitscopeWarning,
                stacklevel=2,
            )

    # ---- on the writer's thread ----------------------------------------------------------------------------

    def _work(self, capture: Capture) -> None:
        assert self.writer is not None
        records = []
        for site, want, value in capture.items:
            try:
                records.append(reducing.record(site, want, value, capture.at, self.adapter))
            except Exception as error:  # one odd tensor must not cost the others
                self._failed(f"{site.name}: {type(error).__name__}: {error}")
        self.writer.write(records)

    def _idle(self) -> float:
        assert self.writer is not None
        self._note()
        self.writer.flush()
        return interval(time.perf_counter() - self._began[0])

    def _on_error(self, error: Exception, _: Capture | None) -> None:
        self._failed(error)

    def _note(self) -> None:
        assert self.writer is not None  # the transport may be: its thread runs before we have it
        self.writer.note(overhead=self.overhead(), dropped=dict(self._dropped), unseen=dict(self._unseen))

    def overhead(self) -> dict[str, Any]:
        """What observing has cost so far. Shares are of the CPU time of the whole process since the training began."""
        wall, cpu = (
            now() - then
            for now, then in zip((time.perf_counter, time.process_time), self._began, strict=True)
        )
        transport = self._transport
        return {
            "steps": self._steps_begun,
            "captured": self._captured,
            "wall_seconds": wall,
            "cpu_seconds": cpu,
            "training_thread_seconds": self._thread_seconds,
            "writer_seconds": transport.cpu if transport else 0.0,
            "warm_up_seconds": transport.start_cpu if transport else 0.0,
            "waited_seconds": transport.waited if transport else 0.0,
            "first_call_seconds": self._steps.first_calls[self._first_calls :],
            "queue_peak_bytes": transport.peak if transport else 0,
            "cpu_share": (self._thread_seconds + (transport.cpu if transport else 0.0)) / cpu if cpu else 0.0,
        }


#: Recordings that nobody has finished yet.
_open: weakref.WeakSet[Recording] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    """The process ends with trainings unfinished: say so in their runs, and why where Python knows."""
    for recording in list(_open):
        recording.abandon(getattr(sys, "last_value", None))


def finish_with(owner: object, recording: Recording) -> None:
    """Finishes the recording when `owner` goes away: the training ended and nobody told us.

    The garbage collector may call this anywhere, so it only leaves word for the writer's thread.
    """
    weakref.finalize(owner, _owner_gone, weakref.ref(recording))


def _owner_gone(reference: weakref.ref[Recording]) -> None:
    recording = reference()
    if recording is not None and not recording.finished:
        recording.abandon(sys.exc_info()[1], wait=False)
