"""One training being recorded, from its first step until it ends.

A recording owns what belongs to one `fit`: the plan, the tapped steps, and where in the training it is. It is made by `Scope`, told of
every step before it runs, and hands what the steps show to its `Recorder`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from fitscope import reducing
from fitscope.attach import Site
from fitscope.backends import Adapter, Harvest
from fitscope.batch import Batch
from fitscope.dispatch import Request, StandIn, TappedSteps, install
from fitscope.errors import FitscopeWarning
from fitscope.plan import LOSS_SCALE, Due, Plan, Want
from fitscope.record import Moment
from fitscope.recorder import Recorder
from fitscope.watch import Turn


def _kept(method: Callable[..., None]) -> Callable[..., None]:
    """An error of ours inside this method stays ours: it is kept and told, and the training goes on."""

    @functools.wraps(method)
    def kept(self: Recording, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except FitscopeWarning:  # the user wants warnings to be errors
            raise
        except Exception as error:
            self.recorder.failed(error)

    return kept


class Recording:
    """One training being recorded."""

    def __init__(
        self,
        plan: Plan,
        adapter: Adapter,
        recorder: Recorder,
        *,
        in_step: bool,
        after: Recording | None = None,
    ) -> None:
        self.plan = plan
        self.adapter = adapter
        self.recorder = recorder
        self.model = plan.anatomy.model
        self.batch: Batch | None = None
        self.next_step: int | None = None  #: the step after the last one announced
        self.seen_step: int | None = None  #: the last one that was captured
        self._optimizer = getattr(self.model, "optimizer", None)
        finish = reducing.finish_in_step if in_step else reducing.finish_on_host
        self._steps = TappedSteps(adapter, plan.anatomy, finish)
        self._counted: int | None = None  # by the optimizer, when the newest epoch began
        if after is not None and after.plan.same(plan):  # nothing to compile again
            self._steps = after._steps
        if after is not None and after._optimizer is self._optimizer:
            self.next_step, self._counted = after.next_step, after._counted
        known = len(self._steps.first_calls)  # of those before us
        recorder.first_calls = lambda: self._steps.first_calls[known:]
        recorder.leaving = self._leave
        self._stand_in: StandIn | None = None
        self._epoch, self._epoch_start = 0, 0
        self._batches: int | None = None
        self._pending: tuple[Moment, list[Any]] | None = (
            None  # due only if it turns out to be the last of its epoch
        )
        self._looked: set[Due] = set()

    # ---- told by the training ----------------------------------------------------------------------------

    @_kept
    def epoch(self, epoch: int, batches: int | None) -> None:
        """An epoch begins."""
        self._epoch, self._batches = epoch, batches

    @_kept
    def before_step(self, batch: int) -> None:
        """A step (or several in one execution) is about to run, beginning with this batch of the epoch."""
        recorder = self.recorder
        recorder.raised = None
        recorder.tell()
        together = self.model.steps_per_execution
        if batch == 0 or self.next_step is None:
            self._epoch_start = self._count(batch)
        step = self._epoch_start + batch
        self.next_step = step + together
        recorder.steps += together
        if recorder.stopped:
            return
        turns = [Turn(step + k, self._epoch, batch + k, self._batches) for k in range(together)]
        due = [self.plan.due(turn) for turn in turns]
        wanted: Due = frozenset().union(*(now | later for now, later in due))
        if wanted and recorder.ready(step):
            self._stand_in = install(
                self._steps,
                "train",
                Request(
                    who=id(self),
                    key=(id(self._steps), wanted),
                    wants=self.plan.wants(wanted),
                    deliver=lambda harvests: self._deliver(turns, due, harvests),
                    failed=recorder.failed,
                    raised=self._raised,
                ),
            )

    @_kept
    def epoch_end(self) -> None:
        """An epoch is over, so the step that might have been its last one was."""
        self.recorder.raised = None  # it only said that there are no more batches
        if self._pending is not None:
            self.recorder.put(*self._pending)
            self._pending = None

    def _leave(self) -> None:
        if self._stand_in is not None:
            self._stand_in.withdraw(id(self))
        self._pending = None  # its epoch never ended

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

    # ---- what the steps showed -----------------------------------------------------------------------------

    def _raised(self, error: BaseException) -> None:
        self.recorder.raised = error

    @_kept
    def _deliver(self, turns: list[Turn], due: list[tuple[Due, Due]], harvests: list[Harvest]) -> None:
        with self.recorder.measured():
            for turn, (now, later), harvest in zip(turns, due, harvests, strict=False):
                for site, why in harvest.failed.items():
                    self.recorder.unseen(site, why)
                if harvest.broken is not None:
                    self.recorder.failed(harvest.broken)
                at = Moment(turn.step, turn.epoch, turn.batch, time.time())
                self.seen_step = turn.step
                self._miss(now | later, harvest)
                if now | later:
                    self.batch = Batch(at, harvest.tensors, self.adapter)
                if now:
                    self.recorder.put(at, self._items(now, harvest))
                self._pending = (at, self._items(later - now, harvest)) if later - now else None

    def _miss(self, due: Due, harvest: Harvest) -> None:
        """Names what is wanted and was not passed by the step, once for each set of watches."""
        if due in self._looked:
            return
        self._looked.add(due)
        passed = {site.place for site in harvest.sites.values()}
        for kind, path in self.plan.wants(due).keys() - passed - {("metrics", ""), LOSS_SCALE}:
            self.recorder.unseen(f"{kind}/{path}" if path else kind, "the step does not pass it")

    def _items(self, due: Due, harvest: Harvest) -> list[tuple[Site, Want, Any]]:
        wants = self.plan.wants(due)
        return [
            (site, wants[site.place], value)
            for name, value in harvest.tensors.items()
            if (site := harvest.sites[name]).place in wants
        ]
