"""`fs.tap(name, x)`: a value inside a step, shown to whoever watches that step.

It returns `x` itself, so that it can stand anywhere in a model, a loss or a loop. Outside of a captured step it does nothing: in a
compiled step that is not captured there is no trace of it at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fitscope.errors import WatchError

Value = TypeVar("Value")

_here = threading.local()  # .see: of the captured step that runs, or is traced, in this thread


def tap(name: str, value: Value) -> Value:
    """Shows a value of this step under the site `taps/<name>`, and returns it.

    The value may be a tensor or a structure of tensors. Watch it with `fs.taps()`, which a scope does unless it is told what to watch.
    """
    if not isinstance(name, str) or not name:
        raise WatchError("a name for the tap", repr(name), 'Write fs.tap("attention", x)')
    see: Callable[[str, Any], None] | None = getattr(_here, "see", None)
    if see is not None:
        see(name, value)
    return value


@contextmanager
def listening(see: Callable[[str, Any], None]) -> Iterator[None]:
    """Taps of this thread report to `see`, for the length of the block."""
    before = getattr(_here, "see", None)
    _here.see = see
    try:
        yield
    finally:
        _here.see = before
