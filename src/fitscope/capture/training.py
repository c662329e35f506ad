"""One recorded training, from its first step to its end.

A recording owns everything of one `fit`: the plan, the tapped steps, and the position in the training. `Life` creates it and
announces every step before it runs. The recording passes the tensors of the steps to its `Recorder`.
"""

from __future__ import annotations

import functools
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from fitscope.capture.backends import Adapter, Harvest
from fitscope.capture.backends._base import PHASES
from fitscope.capture.black_box import Keeping
from fitscope.capture.dispatch import Request, StandIn, TappedSteps, install, run
from fitscope.capture.exceptions import OUTSIDE, noticed_step
from fitscope.capture.missing import Missing
from fitscope.capture.patch import patched
from fitscope.capture.shield import shield, shielded
from fitscope.capture.step_count import StepCount
from fitscope.pipeline import handover
from fitscope.pipeline.batch_ends import OFTEN
from fitscope.pipeline.ending import Ending
from fitscope.pipeline.handover import Shown
from fitscope.pipeline.newest import Batch
from fitscope.pipeline.recorder import Recorder
from fitscope.pipeline.troubles import described
from fitscope.plan.plan import NOTHING, Due, Plan, Watches
from fitscope.record import Moment
from fitscope.schedule import Turn

_now = time.time
_kept = shielded(lambda recording: recording.recorder.failed)


class Recording:
    """One recorded training."""

    def __init__(
        self,
        plan: Plan,
        adapter: Adapter,
        recorder: Recorder,
        *,
        in_step: bool,
        identity: str = "proven",
        after: Recording | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.plan = plan
        self.adapter = adapter
        self.recorder = recorder
        self.model = plan.anatomy.model
        self.batches: dict[str, tuple[Moment, Shown]] = {}  #: the newest captured batch of each pass
        #: the last step that was captured, also by the recording before
        self.last_step: int | None = after.last_step if after is not None else None
        self._count: StepCount = StepCount.of(plan.anatomy, adapter, after._count if after else None)
        finish = handover.InStep if in_step else handover.OnHost
        self._steps = TappedSteps(adapter, plan.anatomy, lambda wants: finish(wants, adapter))
        if after is not None and after.plan.same(plan):  # the tapped programs stay compiled
            self._steps = after._steps
        known = len(self._steps.first_calls)  # the first calls that the previous recording counted
        recorder.costs.first_calls = lambda: self._steps.first_calls[known:]
        proven = len(self._steps.proofs)
        recorder.costs.proofs = lambda: self._steps.proofs[proven:]
        recorder.leaving, recorder.hurry = self._leave, self._hurry
        self._ends = recorder.output.batch_ends.waiting if recorder.output.batch_ends is not None else None
        self._identity = identity
        self._lockstep = adapter.lockstep()  # whether this process must not decide alone what to capture
        self.speaks = True  #: records for all processes the logs of epochs, which are the same in each
        self._undo, self._noticing = ExitStack(), ExitStack()
        self._stand_in: StandIn | None = None
        self._epoch, self._epoch_start = 0, 0
        self._quiet = range(0)  # batches of the epoch at which nothing is due
        self._batches: int | None = None
        self._ahead: int | None = None  # the steps left in the training when the epoch began
        self._pass, self._pass_step = "", 0
        self._pass_batches: int | None = None
        # Due only if it turns out to be the last of its epoch.
        self._pending: tuple[Moment, Shown] | None = None
        self._missing: Missing = Missing(plan, recorder, after._missing if after is not None else None)
        recorder.account = self._missing.at_end
        self._keeping = keeping
        recorder.output.kept = None if keeping is None else keeping.kept

    @property
    def batch(self) -> Batch | None:
        """The newest captured batch, with the newest batch of every other pass."""
        newest = list(reversed(self.batches.values()))
        if not newest:
            return None
        values = ChainMap(*(shown.values(self.adapter) for _, shown in newest))
        return Batch(newest[0][0], values, self.adapter)

    # ---- reported by the training ----------------------------------------------------------------------------

    @_kept
    def epoch(self, epoch: int, batches: int | None, epochs: int | None = None) -> None:
        """Begins an epoch; the last one has the number `epochs - 1`."""
        self._epoch, self._batches, self._quiet = epoch, batches, range(0)
        self._ahead = None if epochs is None or batches is None else (epochs - epoch) * batches
        if self.recorder.output.live is not None:
            self.recorder.output.live.epoch(epoch, epochs)

    @_kept
    def before_step(self, batch: int, together: int | None = None) -> None:
        """Announces a step (or several in one execution), which starts with this batch of the epoch."""
        together = self.model.steps_per_execution if together is None else together
        quiet = batch in self._quiet and self._keeping is None
        if quiet and batch + together <= self._quiet.stop and not self.recorder.disturbed:
            self._count.next = self._epoch_start + batch + together
            self.recorder.costs.steps += together
            return
        turns = self._turns(batch, together)
        if turns:
            self._ask("train", turns)

    def run_step(self, batch: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a custom step, with taps if a watch is due."""
        request = None
        with shield(self.recorder.failed):
            turns = self._turns(batch, 1)
            if self._keeping is not None:
                self._keeping.stop(
                    "a custom step is kept by nobody: the black box keeps those of fit() and train_on_batch()"
                )
            request = self._request(turns, function) if turns else None
        if request is not None:
            return run(self._steps, function, request, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            self.raised(error)
            raise

    def _turns(self, batch: int, together: int) -> list[Turn]:
        """The coming turns; none if nothing more is recorded."""
        recorder = self.recorder
        self._goes_on()
        recorder.tell()
        if batch == 0 or self._count.next is None:
            self._epoch_start = self._count.epoch_start(batch)
            if recorder.costs.budget is not None:
                recorder.costs.budget.expect(self._epoch_start, self._ahead)
            if recorder.output.live is not None:
                recorder.output.live.expect(self._epoch_start, self._ahead)
        step = self._epoch_start + batch
        self._count.next = step + together
        recorder.costs.steps += together
        if recorder.output.batch_ends is not None and recorder.writer is None:
            recorder.output.batch_ends.together = together
            recorder.ready(step)  # a run begins with its first step, captured or not
        if recorder.stopped and not recorder.full and not self._lockstep:
            return []
        return [Turn(step + k, self._epoch, batch + k, self._batches) for k in range(together)]

    def batch_end(self, batch: int, logs: Mapping[str, Any] | None) -> None:
        """Ends a batch, with the logs of Keras. Called on any thread, in any order within the epoch."""
        # This reads no value: it may not be computed yet. A plain tuple takes a third of the time of an `End`.
        if logs and self._ends is not None and (loss := logs.get("loss")) is not None:
            self._ends.append((self._epoch_start, self._epoch, batch, _now(), loss))
            if not batch & OFTEN:
                self.recorder.look()

    @_kept
    def epoch_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Ends an epoch, so a step that might have been its last one was. `logs` come from Keras."""
        self._goes_on()
        self._put_pending()
        recorder = self.recorder
        if logs and self.speaks and (recorder.ready(self._epoch_start) or recorder.full):
            step = max(
                self._count.done() - 1, self._epoch_start
            )  # the last one; Keras has waited for it already
            at = Moment(step, self._epoch, step - self._epoch_start, time.time())
            recorder.epoch_logs(at, logs)  # a full run counts them as lost

    @_kept
    def begin_pass(self, name: str, batches: int | None = None) -> None:
        """Begins a pass that does not train."""
        self._goes_on()
        self._put_pending()  # a validation begins when the last step of its epoch was run
        self._pass, self._pass_step, self._pass_batches = name, self._count.done(), batches
        self.notice_steps()

    @_kept
    def before_pass_step(self, batch: int, together: int | None = None) -> None:
        """Announces a step of the pass, which starts with this batch of it."""
        self._goes_on()
        self.recorder.tell()
        if self.recorder.stopped and not self.recorder.full and not self._lockstep:
            return
        together = self.model.steps_per_execution if together is None else together
        turns = [
            Turn(self._pass_step, self._epoch, batch + k, self._pass_batches, self._pass)
            for k in range(together)
        ]
        self._ask("predict" if self._pass == "predict" else "test", turns)

    @_kept
    def end_pass(self) -> None:
        """Ends the pass."""
        self._goes_on()
        self._put_pending()

    def _ask(self, function: str, turns: list[Turn]) -> None:
        """Makes the next call of the model's compiled function record the watches due at these turns."""
        request = self._request(turns)
        if request is not None:
            self._stand_in = install(self._steps, function, request)
        elif turns[-1].in_pass == "train":
            last = turns[-1]
            self._quiet = range(last.batch + 1, last.batch + 1 + max(self.plan.rest(last.step), 0))

    def _request(self, turns: list[Turn], function: object = None) -> Request | None:
        """The request for these turns, and whether to time them; None if neither is needed."""
        recorder = self.recorder
        due = [self.plan.due(turn) for turn in turns]
        if any(each.now for each in due) and recorder.full:
            recorder.ready(turns[0].step)
            for turn, each in zip(turns, due, strict=True):
                recorder.refuse(self.plan.wants(each.now, turn.in_pass), turn.in_pass)
        if recorder.stopped and not self._lockstep:
            return None
        timing = None
        if recorder.costs.budget is not None and turns[0].in_pass == "train":
            timing = recorder.costs.weigh(turns, *self.plan.paced(due))
        wanted: Watches = frozenset().union(*(each.all for each in due if each is not NOTHING))
        self._missing.due(turns[0].in_pass, wanted)
        if wanted and not recorder.ready(turns[0].step) and not self._lockstep:
            wanted = frozenset()
        keeping = None
        if self._keeping is not None and function is None and turns[0].in_pass == "train":
            keeping = self._keeping.at(turns[0]) if recorder.ready(turns[0].step) else None
        if not wanted and timing is None and keeping is None:
            return None
        return Request(
            who=id(self),
            key=(id(self._steps), wanted, id(function)),
            wants=self.plan.wants(wanted, turns[0].in_pass),
            step=turns[0].step,
            identity=self._identity,
            stands=lambda standing: recorder.identity.learn(turns[0].in_pass, wanted, standing),
            deliver=lambda harvests, failure: self._deliver(turns, due, harvests, failure),
            failed=self.recorder.failed,
            raised=self.raised,
            timing=timing,
            keeping=keeping,
        )

    def _hurry(self) -> None:
        """Checks again when the next watch is due. Called on any thread."""
        self._quiet = range(0)

    def _put_pending(self) -> None:
        if self._pending is not None and not self.recorder.stopped:
            self.recorder.put(*self._pending)
        self._pending = None

    def note_saves(self) -> None:
        """From now on records every checkpoint that is saved through the model."""
        self._undo.close()
        for name in ("save", "save_weights"):
            if hasattr(self.model, name):
                self._undo.enter_context(patched(self.model, name, self._noting))

    def notice_steps(self) -> None:
        """Watches the model's own steps for exceptions, if nothing else sees them."""
        self._noticing.close()
        if self.adapter.name in OUTSIDE:
            for name, _ in PHASES.values():
                self._noticing.enter_context(noticed_step(self.model, name, self, self.raised))

    def _noting(self, save: Any) -> Any:
        @functools.wraps(save)
        def saved(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            result = save(filepath, *args, **kwargs)
            self.saved(filepath)
            return result

        return saved

    @_kept
    def saved(self, path: Any) -> None:
        """Records a saved checkpoint of the model."""
        self.recorder.checkpoint(str(path), self._count.done(), self._epoch)

    def _leave(self) -> None:
        self._undo.close()
        if self._stand_in is not None:
            self._stand_in.withdraw(id(self))
        self._noticing.close()
        self._pending = None  # the epoch of the pending step never ended

    # ---- the results of the steps -----------------------------------------------------------------------------

    def raised(self, error: BaseException) -> None:
        """Records an exception in a step or elsewhere in the training, which may or may not end it."""
        self.recorder.raised = Ending.by(error)
        if not isinstance(error, StopIteration) and type(error).__name__ != "OutOfRangeError":
            self._undo.close()  # more than the end of the data: most likely the training ends, and nothing else reports that

    def _goes_on(self) -> None:
        """Discards a recorded exception: the training continued after it."""
        if self.recorder.raised is not None:
            self.recorder.raised = None
            self.note_saves()

    @_kept
    def _deliver(
        self, turns: list[Turn], due: list[Due], harvests: list[Harvest], failure: BaseException | None
    ) -> None:
        with self.recorder.costs.measured():
            if failure is not None:
                self.recorder.failed(failure)
                for turn, wanted in zip(turns, due, strict=True):
                    why = f"the step could not be run with taps: {described(failure)}"
                    self._missing.all(wanted.now | wanted.if_last, turn.in_pass, why)
            for turn, wanted, harvest in zip(turns, due, harvests, strict=False):
                at = Moment(turn.step, turn.epoch, turn.batch, time.time())
                if turn.in_pass == "train":
                    self._count.captured = self.last_step = turn.step
                shown = wanted.now | wanted.if_last
                self._missing.of(harvest, shown, turn.in_pass)
                if shown:
                    self.batches.pop(turn.in_pass, None)  # the newest pass comes last
                    self.batches[turn.in_pass] = at, self._shown(wanted, shown, turn.in_pass, harvest)
                now = self._shown(wanted, wanted.now, turn.in_pass, harvest)
                if now and not self.recorder.stopped:
                    self.recorder.put(at, now)
                later = wanted.if_last - wanted.now
                if self._pending is not None:
                    self.recorder.expect_no_more(self._pending[0].step)
                if later:
                    self.recorder.expect(at.step)
                self._pending = (at, self._shown(wanted, later, turn.in_pass, harvest)) if later else None

    def _shown(self, due: Due, watches: Watches, in_pass: str, harvest: Harvest) -> Shown:
        """Takes the tensors of a step for these watches, and for the comparison with the next step."""
        wants = self.plan.items(due, watches, in_pass)
        return Shown(harvest.tensors, harvest.sites, wants, in_pass, harvest.failed)
