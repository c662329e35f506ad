"""The interface of a Keras callback without Keras: every hook that Keras calls, and the shield around overridden hooks.

`__init_subclass__` wraps every hook that a subclass overrides, so no error of fitscope can enter a training through a hook.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from fitscope.capture.shield import told
from fitscope.errors import FitscopeWarning
from fitscope.pipeline.troubles import described, warn

if TYPE_CHECKING:
    from fitscope.capture.life import Life


class Hooks:
    """Every hook of a Keras callback; each does nothing. A subclass overrides those that it needs."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        shield_hooks(cls)

    def _hook_failed(self, error: Exception) -> None:
        """Reports an error that a hook raised."""
        warn(f"fitscope could not record everything; the training continues. {described(error)}")

    def _lets_pass(self, hook: str, error: Exception) -> bool:  # noqa: ARG002
        """Whether an error raised in a hook should reach the user."""
        return False

    def set_params(self, params: dict[str, Any]) -> None: ...
    def set_model(self, model: Any) -> None: ...

    def on_train_begin(self, logs: Any = None) -> None: ...
    def on_train_end(self, logs: Any = None) -> None: ...
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None: ...
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...
    def on_batch_begin(self, batch: int, logs: Any = None) -> None: ...
    def on_batch_end(self, batch: int, logs: Any = None) -> None: ...
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None: ...
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...
    def on_test_begin(self, logs: Any = None) -> None: ...
    def on_test_end(self, logs: Any = None) -> None: ...
    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None: ...
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...
    def on_predict_begin(self, logs: Any = None) -> None: ...
    def on_predict_end(self, logs: Any = None) -> None: ...
    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None: ...
    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None: ...


#: The hooks that begin a training or a pass, before its first step.
BEGIN = frozenset(("on_train_begin", "on_test_begin", "on_predict_begin"))
FIRST = BEGIN | {"set_params", "set_model"}
NAMES = frozenset(name for name in vars(Hooks) if name.startswith(("on_", "set_")))


def shield_hooks(cls: type) -> None:
    """Wraps the hooks that a class overrides. The class needs `_hook_failed` and `_lets_pass`."""
    for name in NAMES & vars(cls).keys():
        setattr(cls, name, _shielded(vars(cls)[name]))


def _shielded(hook: Callable[..., None]) -> Callable[..., None]:
    first = hook.__name__ in FIRST

    @functools.wraps(hook)
    def inside(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            # Only a scope has a life: it knows the hooks of a training that is not recorded.
            life: Life | None = getattr(self, "_life", None)
            if life is not None and (first or life.beside) and life.of_another(sys._getframe(1), first=first):
                return
            hook(self, *args, **kwargs)
        except FitscopeWarning:
            raise
        except Exception as error:
            if self._lets_pass(hook.__name__, error):
                raise
            told(self._hook_failed, error)

    return inside


def caller() -> FrameType | None:
    """Called in a hook: returns the frame that called the hook, outside the shield."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame
