"""The door between the training and fitscope: no error of fitscope passes it.

Keras, and a loop that somebody wrote, call fitscope in a few places: the hooks of the callback, the stand-in for a compiled step, the
taps inside the step, the patched methods of a model, finalizers. Each of them goes through `shield` or `shielded`, so an `Exception`
raised on our side is handed to `tell` and the training goes on. Three things do pass:

- what is no `Exception`: KeyboardInterrupt, SystemExit;
- `FitscopeWarning`: it is raised only where the user turned warnings into errors;
- what the caller lets through by name: a `WatchError` before the first step, see ARCHITECTURE.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fitscope.errors import FitscopeWarning
from fitscope.pipeline.troubles import described, warn

Tell = Callable[[Exception], None]


@contextmanager
def shield(tell: Tell, *, let: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """An error inside the block is told, not raised."""
    try:
        yield
    except FitscopeWarning:
        raise
    except Exception as error:
        if isinstance(error, let):
            raise
        told(tell, error)


def shielded(tell: Callable[[Any], Tell]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a method of which errors are told, not raised. `tell` finds, for the instance, whom to tell."""

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
    """Tells of an error; if telling fails as well, the user still hears of the first one."""
    try:
        tell(error)
    except FitscopeWarning:
        raise
    except Exception:
        warn(f"fitscope could not observe everything, training goes on. {described(error)}")
