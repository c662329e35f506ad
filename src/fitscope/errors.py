"""Every error fitscope raises, and the one warning category it uses.

    FitscopeError
    ├── WatchError      what was asked for does not fit the model, or is not a thing we know
    ├── ModelError      the model cannot be watched as it is (not built, not compiled, not Keras), or does not fit a layer of ours
    ├── StoreError      the place to write to cannot be used
    └── RunError        the run cannot be read, or has nothing under that name

Each message has three clauses: what was expected, what came instead, what to do about it. The
constructor takes them apart so that none can be forgotten.

Errors are for the person who typed something. While a model trains nothing here is ever raised into the
training: what goes wrong then is warned about once with `FitscopeWarning`, counted, and kept in the run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FitscopeError(Exception):
    """Base of all errors of fitscope."""

    def __init__(self, expected: str, received: str, fix: str) -> None:
        super().__init__(f"Expected {expected}. Received: {received}. {fix}")
        self.expected = expected
        self.received = received
        self.fix = fix

    def __reduce__(self) -> tuple[type[FitscopeError], tuple[str, str, str]]:
        return type(self), (self.expected, self.received, self.fix)


class WatchError(FitscopeError, ValueError):
    """What was asked for does not fit the model, or is not a thing we know."""


class ModelError(FitscopeError, ValueError):
    """The model cannot be watched as it is."""


class StoreError(FitscopeError, OSError):
    """The place to write to cannot be used."""


class RunError(FitscopeError, LookupError):
    """The run cannot be read, or has nothing under that name."""


class FitscopeWarning(UserWarning):
    """Something could not be observed. Training goes on; the run says what is missing."""


def one_of(names: Iterable[str], wanted: str, limit: int = 20) -> str:
    """Names what there is for the last clause of a message, the nearest spelling first."""
    known = list(names)
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(repr(name) for name in known[:limit])
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return f"{hint}There are: {listed}{more}" if known else "There are none"
