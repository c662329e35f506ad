"""Custom training loops: the same recording, with steps reported by the loop itself.

Inside `with scope.attach(model):`, the model's `train_on_batch`, `test_on_batch` and `predict_on_batch` are steps of the
recording, and so is every call of a function under `@scope.step`. Only the loop knows where an epoch ends: it calls
`scope.epoch_end()`. An `evaluate` with the scope is the loop's validation.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from fitscope.capture.backends import Adapter
from fitscope.capture.dispatch import when_built
from fitscope.capture.patch import patched
from fitscope.capture.shield import Tell, shield
from fitscope.capture.training import Recording
from fitscope.errors import WatchError
from fitscope.plan.anatomy import unbuilt

#: The methods that run one step; for each its compiled function, the method that makes it, and its pass.
ON_BATCH = {
    "train_on_batch": ("train", "make_train_function", ""),
    "test_on_batch": ("test", "make_test_function", "validation"),
    "predict_on_batch": ("predict", "make_predict_function", "predict"),
}


class Loop:
    """A custom training loop and its position."""

    def __init__(
        self, model: Any, adapter: Adapter, begin: Callable[[], Recording | None], tell: Tell
    ) -> None:
        self.model = model
        self.recording: Recording | None = None
        self.epoch = 0
        self._adapter = adapter
        self._begin = begin
        self._tell = tell
        self._begun = False
        self._batch = 0
        self._pass, self._pass_batch = "", 0
        self._undo = ExitStack()
        for name, how in ON_BATCH.items():
            self._undo.enter_context(patched(model, name, self._on_batch(*how)))

    def close(self) -> None:
        """Removes the patches from the model."""
        self._undo.close()

    def epoch_end(self) -> None:
        """Ends an epoch of the loop."""
        self._leave_pass()
        self.epoch += 1
        self._batch = 0
        if self.recording is not None:
            self.recording.epoch_end()
            self.recording.epoch(self.epoch, None)

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs one custom step."""
        with shield(self._tell):
            self._leave_pass()
        batch, self._batch = self._batch, self._batch + 1
        if not self._begun:
            failure = self._build(function, *args, **kwargs)
            if failure is not None:
                result = function(*args, **kwargs)
                with shield(self._tell):  # the loop has begun: from here on fitscope raises nothing
                    self._start(failure)
                return result
            with shield(self._tell, let=(WatchError,)):
                self._start()
        if self.recording is None:
            return function(*args, **kwargs)
        return self.recording.run_step(batch, function, *args, **kwargs)

    @property
    def _built(self) -> bool:
        """Whether the model has all its weights; on JAX a layer that is never called may have none."""
        return (self.model.built or not unbuilt(self.model)) and not self._adapter.unbuilt(self.model)

    def _build(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
        """The reason why the model cannot be built before the first step, if any."""
        try:
            if self._built:
                return None
            if self._adapter.build_step(function, *args, **kwargs):
                return None
        except Exception as error:
            return str(error)
        return "only running the step builds it; call model.build(...) or the model on a batch beforehand"

    def _start(self, failure: object = None) -> None:
        self._begun = True
        self.recording = self._begin()
        if self.recording is not None:
            if failure is not None:
                self.recording.recorder.failed(
                    f"the first step was not captured, as the model could not be built before it: {failure}"
                )
            self.recording.epoch(self.epoch, None)

    def _on_batch(self, phase: str, make: str, name: str) -> Callable[[Any], Any]:
        loop = weakref.ref(self)  # the model must not keep the loop alive

        def patch(original: Any) -> Any:
            def on_batch(*args: Any, **kwargs: Any) -> Any:
                self = loop()
                if self is not None:
                    getattr(self.model, make)()  # Keras would make its own function in a moment
                    with shield(self._tell, let=() if self._begun else (WatchError,)):
                        self._before(phase, name)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    if self is not None and self.recording is not None:
                        self.recording.raised(error)
                    raise

            return on_batch

        return patch

    def _before(self, phase: str, name: str) -> None:
        """Prepares a step of one of the model's own methods."""
        if name != self._pass:
            self._leave_pass()
        if name:
            batch, self._pass_batch = self._pass_batch, self._pass_batch + 1
        else:
            batch, self._batch = self._batch, self._batch + 1

        def announce() -> None:
            if self.recording is None:
                return
            if not name:
                self.recording.before_step(batch, 1)
                return
            if batch == 0:
                self._pass = name
                self.recording.begin_pass(name)
            self.recording.before_pass_step(batch, 1)

        if self._begun:
            announce()
        elif self._built:
            self._start()
            announce()
        else:

            def begin(failure: BaseException | None) -> None:
                with shield(self._tell, let=(WatchError,) if failure is None else ()):
                    self._start(failure)
                    if failure is None:
                        announce()

            when_built(self._adapter, self.model, phase, begin)

    def _leave_pass(self) -> None:
        if self._pass and self.recording is not None:
            self.recording.end_pass()
        self._pass, self._pass_batch = "", 0


class Attached(Protocol):
    """The object that knows the current loop: a `Life`."""

    loop: Loop | None

    def attach(self, model: Any, optimizer: Any) -> None: ...


def recorded_step(life: Attached, function: Any, model: Any, optimizer: Any) -> Callable[..., Any]:
    """The user's function as a step of the current loop, or of a loop on this model."""
    if not callable(function):
        raise WatchError(
            "a function", repr(function), "Put @scope.step above the function that does one step"
        )
    if getattr(function, "_fitscope_step", False):
        raise WatchError(
            "a function that no scope records yet",
            f"{function!r}, which is already a step of a scope",
            "Apply @scope.step once, with all watches in that scope",
        )

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        if model is not None and (life.loop is None or life.loop.model is not model):
            life.attach(model, optimizer)
        if life.loop is None:
            raise WatchError(
                "a model that the step trains",
                "none",
                "Write `with scope.attach(model):` around the loop, or @scope.step(model=model)",
            )
        return life.loop.step(function, *args, **kwargs)

    step._fitscope_step = True  # type: ignore[attr-defined]
    return step
