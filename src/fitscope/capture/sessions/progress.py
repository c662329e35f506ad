"""The position in a training that other code drives, the due watches, and the path of captures to the recorder.

Sessions and legacy Keras share this: each announces a step or a batch of a pass, and then reports its values. Nothing here raises
into the user's code.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fitscope.capture.sessions.arrays import Arrays
from fitscope.errors import FitscopeWarning
from fitscope.pipeline.ending import COMPLETE, Ending
from fitscope.pipeline.handover import Shown
from fitscope.pipeline.newest import Batch
from fitscope.pipeline.recorder import Recorder
from fitscope.plan.budget import Timing
from fitscope.plan.plan import Due, Plan
from fitscope.plan.wants import Wants, derived
from fitscope.record import Moment
from fitscope.schedule import Turn
from fitscope.sites import Site

_NOTHING = Due(frozenset(), frozenset(), frozenset())


@dataclass(slots=True)
class Upcoming:
    """A coming step, or a coming batch of a pass."""

    in_pass: str
    turn: Turn
    due: Due = field(default_factory=lambda: _NOTHING)
    scheduled: int | None = None  #: the number that schedules count, if there are steps of several kinds
    held: bool = False  #: not classified yet: it does not end an epoch, and its values wait


def kept(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method so that its errors are stored and reported, and the user's code continues."""

    @functools.wraps(method)
    def safe(self: Progress, *args: Any, **kwargs: Any) -> Any:
        try:
            with self.lock, self.recorder.costs.measured():
                return method(self, *args, **kwargs)
        except FitscopeWarning:  # the user turned warnings into errors
            raise
        except Exception as error:
            self.recorder.failed(error)
            return None

    return safe


class Progress:
    """One training that other code drives."""

    def __init__(self, model: Any, plan: Plan, recorder: Recorder) -> None:
        self.model = model  #: the model, or the graph
        self.plan = plan
        self.recorder = recorder
        self._shown: dict[str, tuple[Moment, dict[str, Any]]] = {}  # the newest captured batch of each pass
        self.next_step: int | None = None  #: the number of finished steps, once known
        self.last_step: int | None = None  #: the last captured step
        self.lock = threading.RLock()  # runs may come from several threads
        self._running: Upcoming | None = None  # the step that is running
        self._timing: Timing | None = None  # the timing of that step
        self._epoch, self._batch = 0, 0
        self._batches: int | None = None
        self._epoch_over = False  # whether the next step begins another epoch
        self._told = False  # whether the user reports the ends of epochs
        self._pass: tuple[str, int] = "", 0  # the current pass, and its next batch
        self._pending: tuple[Moment, Shown] | None = None
        self.leaving: Callable[[], None] = lambda: None  #: called once, when the training ends
        recorder.leaving = self._leave

    @property
    def batch(self) -> Batch | None:
        """The newest captured batch, with the newest batch of every other pass."""
        newest = list(reversed(self._shown.values()))
        return Batch(newest[0][0], ChainMap(*(values for _, values in newest)), Arrays()) if newest else None

    @property
    def loop(self) -> Progress:
        """The object that gets `epoch_end`."""
        return self

    @kept
    def saved(self, path: Any) -> None:
        """Records a saved checkpoint."""
        self.recorder.checkpoint(str(Path(path).absolute()), self.next_step or 0, self._epoch)

    def hold(self, at: Moment, shown: Shown) -> None:
        """Holds the values of a run until its kind is known."""
        self.recorder.put(at, shown)

    def release(self) -> None:
        """Delivers the held values, because nothing more will decide their kind."""

    # ---- epochs --------------------------------------------------------------------------------------------

    @kept
    def epoch(self, epoch: int, batches: int | None) -> None:
        """Begins an epoch. From now on fitscope infers no epochs."""
        self.release()
        self._told, self._epoch_over = True, False
        self._epoch, self._batch, self._batches = epoch, 0, batches

    @kept
    def epoch_end(self) -> None:
        """Ends the epoch. From now on fitscope infers no epochs."""
        self.release()
        self._told = True
        self._end_epoch()

    def complete(self) -> None:
        """Ends the training and its last epoch."""
        self._finish_epoch()
        self.recorder.finish(COMPLETE)

    @kept
    def _finish_epoch(self) -> None:
        self.release()
        self._end_epoch()

    def _end_epoch(self) -> None:
        if not self._epoch_over:
            self._epoch_over = True
            if self._pending is not None:
                self.recorder.put(*self._pending)
                self._pending = None

    def _leave(self) -> None:
        self.release()
        self._pending = None  # the epoch of the pending step never ended
        self.leaving()

    # ---- before ----------------------------------------------------------------------------------------------

    def step(self, upcoming: Upcoming) -> bool:
        """Announces a step. Returns whether to capture it."""
        self.recorder.raised = None
        self.recorder.tell()
        if self._epoch_over:
            self._epoch, self._batch, self._epoch_over = self._epoch + 1, 0, False
        self.recorder.costs.steps += 1
        upcoming.turn = self.turn("train")
        if self._running is not None:  # another thread runs a step: fitscope cannot separate their weights
            self.recorder.unseen("steps", "several steps ran at the same time; only one of them was captured")
            return False
        if self._asked(upcoming):
            self._running = upcoming
        self._timing = self.recorder.costs.weigh(
            [self._scheduled(upcoming)], *self.plan.paced([upcoming.due])
        )
        if self._timing is not None:
            self._timing.start()
        return bool(upcoming.due.all)

    def pass_batch(self, upcoming: Upcoming) -> bool:
        """Announces a batch of a pass. Returns whether to capture it."""
        if upcoming.in_pass == "validation" and not upcoming.held:
            self.validated()
        name, batch = self._pass
        self._pass = (upcoming.in_pass, batch + 1 if name == upcoming.in_pass else 1)
        upcoming.turn = self.turn(upcoming.in_pass)
        return self._asked(upcoming)

    def validated(self) -> None:
        """Takes a validation: it ends an epoch, unless the user ends epochs."""
        if not self._told and self._batch:
            self._end_epoch()

    def _asked(self, upcoming: Upcoming) -> bool:
        due = self.plan.due(self._scheduled(upcoming))
        if due.all and self.recorder.ready(upcoming.turn.step):
            upcoming.due = due
        elif due.now:
            self.recorder.refuse(self.plan.wants(due.now, upcoming.in_pass), upcoming.in_pass)
        return bool(upcoming.due.all)

    def turn(self, in_pass: str) -> Turn:
        assert self.next_step is not None
        batch, batches = (self._batch, self._batches) if in_pass == "train" else (self._pass[1] - 1, None)
        return Turn(self.next_step, self._epoch, batch, batches, in_pass)

    @staticmethod
    def _scheduled(upcoming: Upcoming) -> Turn:
        step = upcoming.scheduled
        return upcoming.turn if step is None else replace(upcoming.turn, step=step)

    def wants(self, upcoming: Upcoming) -> Wants:
        """The wants at each place of the coming step or batch."""
        return self.plan.wants(upcoming.due.all, upcoming.in_pass)

    def unseen(self, site: Site, why: str, wants: Wants) -> None:
        """Lists a site, and everything derived from it, as missing."""
        want = wants.at(site.place)
        for each in (site, *(derived(site, want) if want is not None else ())):
            self.recorder.unseen(each, why)

    # ---- after ---------------------------------------------------------------------------------------------

    def done(self, upcoming: Upcoming) -> None:
        """Ends a step or batch."""
        if upcoming.in_pass == "train":
            if self._timing is not None:
                self._timing.stop()
                self._timing = None
            self._running = None
            self._batch += 1
            self.next_step = (self.next_step or 0) + 1
            self._pass = "", 0

    @kept
    def raised(self, upcoming: Upcoming, error: BaseException) -> None:
        """Takes an exception: the call was not a step."""
        self.recorder.raised = Ending.by(error)
        self._timing = None
        if self._running is upcoming:
            self._running = None

    def deliver(self, upcoming: Upcoming, sites: Mapping[str, Site], values: Mapping[str, Any]) -> None:
        """Delivers the captured values."""
        turn, training = upcoming.turn, upcoming.in_pass == "train"
        at = Moment(turn.step, turn.epoch, turn.batch, time.time())
        self.recorder.seen(sites[name].within(upcoming.in_pass) for name in values)
        self._shown.pop(upcoming.in_pass, None)  # so that the newest comes last
        self._shown[upcoming.in_pass] = (
            at,
            {sites[name].within(upcoming.in_pass): value for name, value in values.items()},
        )
        if training:
            self.last_step = turn.step
        due = upcoming.due
        now = Shown(values, sites, self.plan.items(due, due.now, upcoming.in_pass), upcoming.in_pass)
        if now:
            (self.hold if upcoming.held else self.recorder.put)(at, now)
        if training:
            rest = due.if_last - due.now
            later = Shown(values, sites, self.plan.items(due, rest, upcoming.in_pass), upcoming.in_pass)
            self._pending = (at, later) if rest else None
