"""The door between the training and fitscope: no error of fitscope passes it.

Keras and custom loops call fitscope in a few places: the hooks of the callback, the stand-in for a compiled step, the
taps inside the step, the patched methods of a model, finalizers. Each of them goes through `shield` or `shielded`, so an `Exception`
raised in fitscope goes to `tell`, and the training continues. Three things do pass:

- an exception that is no `Exception`: KeyboardInterrupt, SystemExit;
- `FitscopeWarning`: it is raised only where the user turned warnings into errors;
- errors that the caller lets through by name: a `WatchError` before the first step, see ARCHITECTURE.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fitscope.errors import FitscopeWarning
from fitscope.pipeline.troubles import described, warn

Tell = Callable[[Exception], None]


class shield:  # noqa: N801 - used as a function
    """Reports an error inside the block instead of raising it."""

    # A class, because an eager step enters hundreds of these, and a generator takes three times as long.
    __slots__ = ("_let", "_tell")

    def __init__(self, tell: Tell, *, let: tuple[type[Exception], ...] = ()) -> None:
        self._tell, self._let = tell, let

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, (FitscopeWarning, *self._let)):
            return False
        told(self._tell, error)
        return True


def shielded(tell: Callable[[Any], Tell]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a method so that its errors are reported instead of raised. `tell` finds the reporter of the instance."""

    def decorate(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def inside(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                method(self, *args, **kwargs)
            except FitscopeWarning:
                raise
            except Exception as error:
                told(tell(self), error)

        return inside

    return decorate


def told(tell: Tell, error: Exception) -> None:
    """Reports an error; if reporting fails as well, the user still gets the first error."""
    try:
        tell(error)
    except FitscopeWarning:
        raise
    except Exception:
        warn(f"fitscope could not record everything; the training continues. {described(error)}")
