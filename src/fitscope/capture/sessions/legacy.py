"""Models of legacy Keras (`tf_keras`): the callback, and the choice between the two ways in which Keras runs a step.

With eager execution Keras traces its step into a function (`legacy_step`). Without it, Keras builds a graph and runs it in a
session (`legacy_graph`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from fitscope.capture.callback import caller, shield_hooks
from fitscope.errors import ModelError, WatchError

try:
    import tf_keras
except ImportError as missing:
    raise ModelError(
        "the package tf_keras",
        f"none ({missing})",
        "Install it with: pip install fitscope[legacy]",
    ) from None

from fitscope.capture.exceptions import Frame, notice, outside
from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions.progress import Progress
from fitscope.capture.shield import shield
from fitscope.pipeline.ending import Ending
from fitscope.pipeline.troubles import described, warn


class Way(Protocol):
    """One way in which legacy Keras runs its steps."""

    first_epoch: int  #: in case the model is built later
    begun: Callable[[Progress], None]  #: called when the recording begins

    @property
    def progress(self) -> Progress | None: ...

    def train_begin(self) -> None: ...

    def test_begin(self) -> None: ...

    def leave(self) -> None: ...


class LegacyCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Records the `fit` of a `tf_keras` model."""

    def __init__(self, recordings: Recordings) -> None:
        super().__init__()
        self._supports_tf_logs = True  # fitscope takes no logs, so Keras need not convert them
        self._recordings = recordings
        self._way: Way | None = None
        self._batches: int | None = None
        self._fitting = False

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._batches = (params or {}).get("steps")

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._make_way(model)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._fitting = True
        if self._way is None:  # fitscope reported the reason before
            return
        # Keras does not tell callbacks of an exception. Its callback list lives just as long as `fit` does.
        hook = caller()
        assert hook is not None
        callbacks, frame = hook.f_locals.get("self", self), outside(hook)
        fit, running = weakref.ref(callbacks), Frame(frame) if frame is not None else None
        with shield(lambda error: warn(f"fitscope does not see how this training ends. {described(error)}")):
            if frame is not None:
                notice(frame, callbacks, self, self._raised, batches=True)
        self._way.begun = lambda progress: progress.recorder.finish_with(fit(), running)
        self._way.train_begin()

    def _raised(self, error: BaseException) -> None:
        progress = self._way.progress if self._way is not None else None
        if self._fitting and progress is not None:
            progress.recorder.raised = Ending.by(error)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._way is None:
            return
        if self._way.progress is not None:
            self._way.progress.epoch(epoch, self._batches)
        else:
            self._way.first_epoch = epoch

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._fitting and self._way is not None:
            self._way.test_begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._way is not None and self._way.progress is not None:
            self._way.progress.epoch_end()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._fitting = False
        if self._way is not None:
            self._way.leave()
            if self._way.progress is not None:
                self._way.progress.complete()

    def _lets_pass(self, hook: str, error: Exception) -> bool:
        """Lets an error about a watch that does not fit the model pass, before the first step."""
        return isinstance(error, WatchError) and hook in ("set_model", "on_train_begin")

    def _hook_failed(self, error: Exception) -> None:
        """Stores an error of fitscope in the run, if there is one, and reports it."""
        progress = self._way.progress if self._way is not None else None
        if progress is None:
            warn(f"fitscope records nothing of this training. {described(error)}")
        else:
            progress.recorder.failed(error)
            progress.recorder.tell()

    def _make_way(self, model: Any) -> None:
        if self._way is not None:
            self._way.leave()
        if hasattr(model, "_make_train_function"):
            from fitscope.capture.sessions.legacy_graph import GraphWay

            self._way = GraphWay(self._recordings, model)
        else:
            from fitscope.capture.sessions.legacy_step import StepWay

            self._way = StepWay(self._recordings, model)


shield_hooks(LegacyCallback)
