"""`fs.tap(name, x)`: records a value inside a step.

It returns `x` itself, so you can use it anywhere in a model, a loss or a loop. Outside a captured step it does nothing: the compiled
program of a step that is not captured contains no trace of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fitscope.errors import WatchError

Value = TypeVar("Value")

_here = threading.local()  # `.see` receives taps while this thread runs or traces a captured step


def tap(name: str, value: Value) -> Value:
    """Records a value of this step under the site `taps/<name>`, and returns it.

    The value is a tensor or a structure of tensors. `fs.taps()` selects taps; a scope without `watch=` records all of them.
    """
    if not isinstance(name, str) or not name:
        raise WatchError("a name for the tap", repr(name), 'Write fs.tap("attention", x)')
    see: Callable[[str, Any], None] | None = getattr(_here, "see", None)
    if see is not None:
        see(name, value)
    return value


@contextmanager
def listening(see: Callable[[str, Any], None] | None) -> Iterator[None]:
    """Sends the taps of this thread to `see` inside the `with` block; None: nowhere."""
    before = getattr(_here, "see", None)
    _here.see = see
    try:
        yield
    finally:
        _here.see = before
