"""The life of a recording under Keras: when `fit`, `evaluate`, `predict` or a custom loop begins, goes on and ends.

The hooks of the callback report every event here. `Life` derives the meaning: a new training, a validation inside one, an
evaluation, a model that its first step builds, or a `fit` that an exception left, which Keras does not report. `recordings.newest`
is always the recording of the current or last training, or None if it cannot be recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from fitscope.capture.backends import Adapter
from fitscope.capture.backends import adapter as adapter_of
from fitscope.capture.beginning import Beginning
from fitscope.capture.dispatch import when_built
from fitscope.capture.exceptions import OUTSIDE, Frame, notice, outside
from fitscope.capture.fit_arguments import fit_facts
from fitscope.capture.logged_loss import sizes_in
from fitscope.capture.loop import Loop
from fitscope.capture.recordings import Recordings
from fitscope.capture.shield import shield
from fitscope.capture.training import Recording
from fitscope.errors import WatchError
from fitscope.pipeline.batch_loss import Sizes
from fitscope.pipeline.ending import COMPLETE
from fitscope.pipeline.troubles import warn

#: For each pass its phase: which compiled function of Keras runs.
FUNCTIONS = {"train": "train", "evaluate": "test", "predict": "predict"}


class Life:
    """The trainings and passes of one scope under Keras, from beginning to end."""

    def __init__(self, recordings: Recordings) -> None:
        self.model: Any = None
        self.params: Mapping[str, Any] = {}  #: the parameters of `fit`, as Keras passes them to callbacks
        self.loop: Loop | None = None  #: the loop that the scope is attached to
        self._recordings = recordings
        self._sizes: Sizes | None = None  # the sizes of the batches of `fit`
        self._fit: dict[str, Any] = {}  # the known arguments of `fit`
        self._doing = ""  # "train", "evaluate" or "predict" while Keras does that
        self._pass: tuple[str, int | None] = "", None
        self._epoch, self._batch = 0, 0
        self._owner: Callable[[], Any] = lambda: None  # the list of callbacks that calls the hooks
        self._frame: Frame | None = None  # the frame of `fit`
        self._wait_no_more: Callable[[], None] = lambda: None
        self.beside = False  #: whether hooks of a training come that is not recorded
        self._refused: list[weakref.ref[Any]] = []  # the callback lists that call them

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes a copy of a scope start without a recording."""
        return Life, (self._recordings,)

    @property
    def _recording(self) -> Recording | None:
        newest: Recording | None = self._recordings.newest
        return newest

    @property
    def _batches(self) -> int | None:
        """The number of batches in an epoch, if Keras knows it."""
        return self.params.get("steps")

    def of_another(self, hook: FrameType, *, first: bool) -> bool:
        """Whether a hook belongs to a training that is not recorded, because it began while another one goes on."""
        callbacks = _owner_in(hook)
        if callbacks is None:
            return False
        if any(refused() is callbacks for refused in self._refused):
            return True
        mine = self._owner()
        if (
            not first
            or not self._doing
            or mine is None
            or mine is callbacks
            or self._frame is None
            or self._frame.left()
        ):
            return False
        self._refused = [refused for refused in self._refused if refused() is not None]
        self._refused.append(weakref.ref(callbacks))
        self.beside = True
        warn(
            "fitscope records nothing of this training: its scope records another one, which has not ended. "
            "Use a second scope for it"
        )
        return True

    # ---- reported by the hooks -----------------------------------------------------------------------------

    def train_begin(self, hook: FrameType | None) -> None:
        """`fit` begins. The frame is the one that called the hook."""
        self._start("train", hook)

    def epoch_begin(self, epoch: int) -> None:
        self._epoch = epoch
        if self._recording is not None:
            self._recording.epoch(epoch, self._batches, self.params.get("epochs"))

    def before_step(self, batch: int) -> None:
        self._batch = batch
        if self._recording is not None:
            self._recording.before_step(batch)

    def batch_end(self, batch: int, logs: Mapping[str, Any] | None) -> None:
        """Called on any thread, and in any order within an epoch."""
        recording = self._recordings.newest
        if recording is not None:
            recording.batch_end(batch, logs)

    def epoch_end(self, logs: Mapping[str, Any] | None) -> None:
        if self._recording is not None:
            self._recording.epoch_end(logs)

    def test_begin(self, hook: FrameType | None) -> None:
        """Begins `evaluate`, or the validation of `fit`, which the callback list that began the training reports."""
        if self.loop is not None:
            self._begin_pass("validation", self._batches)
        elif self._doing == "train" and _owner_in(hook) is self._owner():
            self._notice(hook, None)
            self._begin_pass("validation")
        else:
            self._start("evaluate", hook)
            self._begin_pass("evaluate", self._batches)

    def predict_begin(self, hook: FrameType | None) -> None:
        """`predict` begins."""
        if self.loop is None:
            self._start("predict", hook)
        self._begin_pass("predict", self._batches)

    def before_pass_step(self, batch: int) -> None:
        self._batch = batch
        if self._recording is not None:
            self._recording.before_pass_step(batch)

    def end_pass(self) -> None:
        if self._recording is not None:
            self._recording.end_pass()

    def end(self, doing: str) -> None:
        """Ends `fit`, `evaluate` or `predict`, but not the validation of `fit`."""
        if self._doing == doing:
            self._doing = ""
            if self._recording is not None:
                self._recording.recorder.finish(COMPLETE)

    # ---- custom loops --------------------------------------------------------------------------------------

    def attach(self, model: Any, optimizer: Any) -> None:
        """Begins a custom loop that trains this model."""
        adapter = _adapter()
        self.leave(None)
        self.model, self.params, self._fit, self._sizes = model, {}, {}, None
        before, self._recordings.newest = self._recording, None
        optimizers = (optimizer,) if optimizer is not None else ()
        self.loop = Loop(
            model, adapter, lambda: self._begin(adapter, None, before, optimizers), self._recordings.failed
        )

    def loop_epoch_end(self) -> None:
        """Ends an epoch of a custom loop or of a session."""
        loop = self.loop or getattr(self._recordings.newest, "loop", None)
        if loop is None:
            raise WatchError(
                "a custom loop",
                "none",
                "fit() ends its epochs itself; start a loop with scope.attach(model)",
            )
        loop.epoch_end()

    def leave(self, error: BaseException | None) -> None:
        """Ends the recording. A loop that ended without an error is complete, because nothing else reports its end."""
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.close()
        if self._recording is not None:
            recorder = self._recording.recorder
            if loop is not None and error is None:
                self._recording.epoch_end()
                recorder.finish(COMPLETE)
            else:
                recorder.abandon(error)

    # ---- how it begins -------------------------------------------------------------------------------------

    def _start(self, doing: str, hook: FrameType | None) -> None:
        """Begins a training, an evaluation or a prediction."""
        if self.loop is not None:
            raise WatchError(
                "a scope that does one thing at a time",
                "fit() with a scope that is attached to a hand-written loop",
                "Leave `with scope.attach(...)` first, or use a second scope",
            )
        # Keras does not tell callbacks of an exception. Its callback list lives just as long as `fit` does.
        owner = _owner_in(hook)
        self._owner = weakref.ref(owner) if owner is not None else lambda: None
        if type(owner).__name__ == "CallbackList":  # another one may have named its model since
            self.model = getattr(owner, "_model", None) or self.model
        before, self._recordings.newest = self._recording, None
        self._doing, self._epoch = doing, self._epoch if doing != "train" else 0
        # If ending the previous recording fails, fitscope still records this one.
        with shield(self._recordings.failed):
            self._wait_no_more()
            if before is not None:
                before.recorder.abandon()
        self._frame = None
        self._fit = fit_facts(outside(hook), self.params) if doing == "train" else {}
        self._sizes = sizes_in(outside(hook)) if doing == "train" else None
        self._notice(hook, owner)
        adapter = _adapter()
        if adapter.unbuilt(self.model):
            self._wait(adapter, doing, owner, before)
        else:
            self._begin(adapter, owner, before)

    def _notice(self, hook: FrameType | None, callbacks: Any) -> None:
        """Watches for exceptions where Keras called this hook: in `fit`, `evaluate` or `predict`."""
        frame = outside(hook)
        if frame is None:
            return
        self._frame = self._frame or Frame(frame)
        # Without this fitscope does not learn how the training ends. That is no reason to end it.
        with shield(self._recordings.failed):
            import keras  # at this point the user has

            notice(frame, callbacks, self, self._raised, batches=keras.backend.backend() in OUTSIDE)

    def _raised(self, error: BaseException) -> None:
        if self._doing and self._recording is not None:
            self._recording.raised(error)

    def _begin_pass(self, name: str, batches: int | None = None) -> None:
        self._pass = name, batches
        if self._recording is not None:
            self._recording.begin_pass(name, batches)

    def _wait(self, adapter: Adapter, doing: str, owner: Any, before: Recording | None) -> None:
        """Begins in the first step, which builds this model."""
        owner_alive = self._owner

        def begin(failure: BaseException | None) -> None:
            # After the first step fitscope raises nothing, not even if the user made a mistake.
            with shield(self._recordings.failed, let=(WatchError,) if failure is None else ()):
                begin_now(failure)

        def begin_now(failure: BaseException | None) -> None:
            recording = self._begin(adapter, owner_alive(), before)
            if recording is None:
                return
            if failure is not None:
                recording.recorder.failed(
                    f"the first step was not captured, as the model could not be built before it: {failure}"
                )
            recording.epoch(self._epoch, self._batches, self.params.get("epochs"))
            if doing != "train":
                recording.begin_pass(*self._pass)
            if failure is None:
                (recording.before_step if doing == "train" else recording.before_pass_step)(self._batch)

        self._wait_no_more = when_built(adapter, self.model, FUNCTIONS[doing], begin)
        if owner is not None:
            weakref.finalize(owner, self._wait_no_more)

    def _begin(
        self, adapter: Adapter, owner: Any, before: Recording | None, optimizers: tuple[Any, ...] = ()
    ) -> Recording | None:
        """Creates the recording, unless nothing is watched."""
        beginning = Beginning(
            self._recordings,
            adapter,
            self.model,
            doing=self._doing,
            fit=self._fit,
            sizes=self._sizes,
            before=before,
            optimizers=optimizers,
        )
        return beginning.recording(owner, self._frame)


def _owner_in(hook: FrameType | None) -> Any:
    """The callback list whose method this frame runs."""
    return None if hook is None else hook.f_locals.get("self")


def _adapter() -> Adapter:
    import keras  # at this point the user has

    return adapter_of(keras.backend.backend())
