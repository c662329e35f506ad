"""The beginning of a recording under Keras: from a model and the watches of a scope to the objects that record it.

It reads the model's anatomy, resolves the watches against it, asks whether this training can be recorded, and makes the recorder
and the recording. Nothing here runs after the first step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fitscope.capture.backends import Adapter
from fitscope.capture.black_box import Keeping
from fitscope.capture.exceptions import Frame
from fitscope.capture.logged_loss import logged_loss
from fitscope.capture.missing import Missing
from fitscope.capture.peers import peers, rank_of
from fitscope.capture.recordings import Recordings
from fitscope.capture.refusals import why_not, without_effect
from fitscope.capture.shield import shield
from fitscope.capture.training import Recording
from fitscope.pipeline.batch_ends import BatchEnds
from fitscope.pipeline.batch_loss import Sizes
from fitscope.pipeline.recorder import Recorder
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.troubles import warn
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.budget import Budget
from fitscope.plan.configuration import configuration
from fitscope.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Beginning:
    """A training, a pass or a custom loop that begins, and the known facts about it."""

    recordings: Recordings
    adapter: Adapter
    model: Any
    doing: str  #: "train", "evaluate", "predict", or "" in a custom loop
    fit: dict[str, Any]  #: the known arguments of `fit`
    sizes: Sizes | None  #: the sizes of the batches of `fit`
    before: Recording | None  #: the previous recording, which this one may continue
    optimizers: tuple[Any, ...] = ()

    def recording(self, owner: Any, frame: Frame | None) -> Recording | None:
        """Creates the recording, unless nothing is watched. A watch that does not fit the model is an error before the first step.

        `owner` is the list of callbacks that lives as long as `fit` does, and `frame` the one that `fit` runs in.
        """
        recordings, adapter, settings = self.recordings, self.adapter, self.recordings.settings
        if not settings.watches:
            return None
        anatomy = Anatomy.of(self.model, self.optimizers)
        after = self.before if self.before is not None and self.before.model is anatomy.model else None
        lockstep = adapter.lockstep()
        several = lockstep or peers(adapter.name) is not None  # fitscope merges and compares their steps
        watched, budget = recordings.plan(anatomy, settings.watches, after, together=several)
        about = [anatomy.describe(), watched.describe(), self.doing, settings.identity]
        refused = why_not(adapter, self.model, about)
        if refused is not None:
            logs = self.doing == "train" and owner is not None  # logs of epochs need no step
            what = "only Keras's logs of each epoch" if logs else "nothing"
            warn(f"fitscope records {what} of this training: {refused}")
            if not logs:
                return None
        recorder = self._recorder(watched, None if refused else budget, after)
        for text in without_effect(adapter, self.model, settings.on_finding):
            recorder.failed(text)
        speaks = not lockstep or rank_of(adapter.name) == 0
        if refused is not None:
            Missing(watched, recorder).everything(refused)
        elif self.sizes is not None and speaks:
            derived = logged_loss(anatomy.model, self.sizes)
            if derived is not None:
                recorder.output.batch_ends = BatchEnds(derived, recorder.look_closer)
        in_step = settings.reduce == "step" or (settings.reduce == "auto" and adapter.on_accelerator())
        in_step = in_step and not lockstep  # statistics of all processes would need messages between them
        plan = watched if refused is None else recordings.nothing(anatomy)
        recording = recordings.newest = Recording(
            plan, adapter, recorder, in_step=in_step, identity=settings.identity, after=after,
            keeping=self._keeping(anatomy, recorder),
        )  # fmt: skip
        if self.doing == "train":
            recorder.begin_picture()
        recording.speaks = speaks
        recording.note_saves()
        if owner is not None:
            recording.notice_steps()
            recorder.finish_with(owner, frame)
        return recording

    def _recorder(self, plan: Plan, budget: Budget | None, after: Recording | None) -> Recorder:
        """The recorder that writes the run."""
        recordings, adapter, model = self.recordings, self.adapter, plan.anatomy.model
        last = after.last_step if after is not None else None
        per_sample = [watch for watch in recordings.settings.watches if watch.per_sample]
        ids = next((watch.ids for watch in per_sample if watch.ids is not None), None)
        return recordings.recorder(
            {
                "model": plan.anatomy.describe(),
                "configuration": configuration(self.model, optimizers=self.optimizers, fit=self.fit),
                "plan": plan.describe(),
                "backend": adapter.name,
                "doing": self.doing or "loop",
            },
            adapter,
            budget,
            lambda step: after is not None and (last is None or last < step),
            (lambda note: SampleLosses(model, ids, adapter, note)) if per_sample else None,
            (lambda: None) if adapter.lockstep() else _stopping(model),
        )

    def _keeping(self, anatomy: Anatomy, recorder: Recorder) -> Keeping | None:
        """The black box of a training, if the scope has one."""
        settings = self.recordings.settings.black_box
        if settings is None or self.doing in ("evaluate", "predict"):
            return None
        with shield(self.recordings.failed):
            return Keeping.of(settings, self.adapter, anatomy, recorder.failed)
        return None


def _stopping(model: Any) -> Callable[[], None]:
    """The function that ends the `fit` of this model after the current batch. Any thread may call it."""
    alive = weakref.ref(model)

    def stop() -> None:
        if (found := alive()) is not None:
            found.stop_training = True

    return stop
