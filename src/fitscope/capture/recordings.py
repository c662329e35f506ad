"""The recordings that one scope makes, one after the other, and the run that each of them writes to.

A training under Keras, a custom loop, a TF1 session and legacy Keras all begin in two calls: `plan` resolves the watches against the
model, and `recorder` creates the recorder that writes the run. The caller then puts the new recording into `newest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fitscope.capture.opening import open_writer
from fitscope.capture.settings import Settings
from fitscope.errors import WatchError, one_of
from fitscope.pipeline import notebook
from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.pipeline.handover import HostAdapter
from fitscope.pipeline.live import LivePicture
from fitscope.pipeline.newest import Batch
from fitscope.pipeline.pulse import Pulse
from fitscope.pipeline.recorder import Recorder
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.troubles import described, warn
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.budget import Budget
from fitscope.plan.plan import Plan, resolve
from fitscope.reduce.average import Average
from fitscope.schedule import Schedule
from fitscope.store import RunWriter, existing
from fitscope.watch import Watch


def _thins_out(step: int) -> bool:
    """The first ten steps, then every tenth, and from step 100 on every hundredth: about one percent of a long training."""
    return step % (1 if step < 10 else 10 if step < 100 else 100) == 0


THINNING = Schedule(
    lambda turn: _thins_out(turn.step if turn.in_pass == "train" else turn.batch),
    "steps 0–9, every 10 up to 100, then every 100",
)  #: for several processes, which must capture the same steps: no clock can decide


class AnyRecording(Protocol):
    """The common interface of the recordings of Keras, sessions and legacy Keras."""

    model: Any  #: the model, or the graph
    recorder: Recorder
    last_step: int | None  #: the last captured step, also of the recordings that this one continues

    @property
    def batch(self) -> Batch | None: ...

    def saved(self, path: Any) -> None: ...


class Recordings:
    """The recordings of one scope."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.newest: Any = None  #: an `AnyRecording`; None while nothing can be recorded
        self._run: tuple[Any, str] | None = None  # where the runs are, and the id of the newest
        # The cell of a notebook that shows the newest picture.
        self._cell: notebook.NotebookCell | None = None
        self._shards = False  # whether this process records parts of tensors
        self._diagnosis: tuple[Any, Diagnosis] | None = None  # a run, and its diagnosis

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the settings alone. A copy of a scope starts without recordings."""
        return Recordings, (self.settings,)

    # ---- what the user reads -------------------------------------------------------------------------------

    @property
    def batch(self) -> Batch:
        """The newest captured batch."""
        batch: Batch | None = self.newest.batch if self.newest is not None else None
        if batch is None:
            raise WatchError(
                "a batch that was captured",
                "none so far",
                "Pass the scope to fit() and read `scope.batch` at a step that `every` names, or later",
            )
        return batch

    def average(self, site: str) -> Average:
        """The running average of a site."""
        recorder: Recorder | None = self.newest.recorder if self.newest is not None else None
        average = recorder.average(site) if recorder is not None else None
        if average is None:
            there = recorder.averages if recorder is not None else []
            raise WatchError(
                "a site whose average is kept",
                repr(site),
                one_of(there, site) if there else 'Watch it with keep="average"',
            )
        return average

    @property
    def path(self) -> str | None:
        """The path of the newest run; None before its first captured step."""
        writer = self.newest.recorder.writer if self.newest is not None else None
        return writer.path if writer is not None else None

    def facts(self) -> dict[str, str]:
        """The settings and the progress of the scope, in words."""
        step = getattr(self.newest, "last_step", None)
        so_far = "" if step is None else f", captured up to step {step:,}"
        newest = "none yet" if self.path is None else f"{self.path}{so_far}"
        return {**self.settings.words(), "newest run": newest}

    # ---- how a recording begins ----------------------------------------------------------------------------

    def of(self, model: Any) -> AnyRecording | None:
        """The newest recording, if it belongs to this model or graph, so that a new one continues it."""
        newest: AnyRecording | None = self.newest
        return newest if newest is not None and newest.model is model else None

    def plan(
        self,
        anatomy: Anatomy,
        watches: tuple[Watch, ...],
        before: AnyRecording | None,
        *,
        together: bool = False,
    ) -> tuple[Plan, Budget | None]:
        """The plan, and the budget that decides how often to capture, if any. A watch that does not fit the model is an error.

        If several processes train `together`, no clock decides: all of them must capture the same steps.
        """
        fixed = together and self.settings.every is None
        every, budget = (THINNING, None) if fixed else self._pace(before)
        return resolve(watches, anatomy, every, self.settings.on), budget

    def nothing(self, anatomy: Anatomy) -> Plan:
        """The plan of a training whose steps cannot be watched."""
        return resolve((), anatomy, THINNING, self.settings.on)

    def _pace(self, before: AnyRecording | None) -> tuple[Schedule, Budget | None]:
        """The schedule. A budget keeps its measurements from the previous recording."""
        settings = self.settings
        if settings.every is not None:
            return settings.every, None
        assert settings.budget is not None
        known = before.recorder.costs.budget if before is not None else None
        budget = known or Budget(settings.budget, settings.allowance)
        budget.again()
        # A budget that decides nothing would report wrong facts.
        return budget.schedule, budget if any(watch.every is None for watch in settings.watches) else None

    def recorder(
        self,
        info: dict[str, Any],
        adapter: HostAdapter,
        budget: Budget | None,
        goes_on: Callable[[int], bool],
        samples: Callable[[Callable[[str, str], None]], SampleLosses] | None = None,
        stop: Callable[[], None] = lambda: None,
    ) -> Recorder:
        """The recorder that writes to a run: the newest run if it continues from this step, the named run, or a new one."""
        settings = self.settings

        def open_run(step: int) -> RunWriter:
            there = (self._run if goes_on(step) else None) or existing(settings.to)
            told = {**info, "notes": settings.notes}
            writer = open_writer(settings, there, told, step, getattr(adapter, "name", None))
            self._run = there[0] if there else settings.to, writer.id
            self._shards = writer.shards
            if writer.world > 1:
                recorder.output.pulse = Pulse.of(info.get("model"), shards=writer.shards)
            return writer

        def diagnosis() -> Diagnosis:
            """The diagnosis of the training that this one continues, or a new one."""
            if self._diagnosis is None or self._diagnosis[0] != self._run:
                told = {**info, "notes": settings.notes}
                new = Diagnosis(told, on_finding=settings.on_finding, thresholds=settings.thresholds)
                new.evidence.shards = self._shards
                self._diagnosis = self._run, new
            self._diagnosis[1].stop = stop
            return self._diagnosis[1]

        recorder = Recorder(
            open_run,
            adapter,
            memory=settings.memory,
            when_full=settings.when_full,
            samples=samples,
            sinks=settings.sinks,
            configuration=info.get("configuration"),
            diagnosis=diagnosis,
        )
        recorder.costs.budget = budget
        self._draw(recorder, (info.get("model") or {}).get("name"))
        return recorder

    def _draw(self, recorder: Recorder, model: str | None) -> None:
        """Gives the recorder a picture in the notebook, if one is wanted. Trainings in the same cell draw the same one."""
        shell = notebook.wanted(self.settings.live)
        if shell is None:
            return

        def cell() -> notebook.NotebookCell:
            if self._cell is None or not self._cell.same(shell):
                self._cell = notebook.NotebookCell(shell)
            return self._cell

        live = recorder.output.live = LivePicture(recorder.costs, cell, model)
        live.over, live.look = recorder.over, recorder.look

    def failed(self, error: Exception) -> None:
        """Stores an error of fitscope in the run, if there is one, and reports it."""
        if self.newest is None:
            warn(f"fitscope records nothing of this training. {described(error)}")
            return
        self.newest.recorder.failed(error)
        self.newest.recorder.tell()
