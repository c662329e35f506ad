"""Every error fitscope raises, and the one warning category it uses.

    FitscopeError
    ├── WatchError      an argument is not recognised, or does not fit the model
    ├── ModelError      fitscope cannot watch this model (not built, not compiled, not Keras), or a fitscope layer cannot take its input
    ├── StoreError      fitscope cannot write to this place
    └── RunError        the run cannot be read, or has no data under this name

Each message has three clauses: what was expected, what was received, and what to do. The constructor takes
them as three arguments, so that none can be forgotten.

Errors report mistakes in the caller's code. During training fitscope never raises them into the training: it
warns once with `FitscopeWarning`, counts the failure, and stores it in the run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

COMPARED = 10_000_000  #: pairs of characters, to guess which name was meant


class FitscopeError(Exception):
    """The base class of all fitscope errors."""

    def __init__(self, expected: str, received: str, fix: str) -> None:
        end = "" if received.endswith((".", "?", "!")) else "."  # it may quote another message
        super().__init__(f"Expected {expected}. Received: {received}{end} {fix}")
        self.expected = expected
        self.received = received
        self.fix = fix

    def __reduce__(self) -> tuple[type[FitscopeError], tuple[str, str, str]]:
        return type(self), (self.expected, self.received, self.fix)


class WatchError(FitscopeError, ValueError):
    """An argument is not recognised, or does not fit the model."""


class ModelError(FitscopeError, ValueError):
    """fitscope cannot watch this model."""


class StoreError(FitscopeError, OSError):
    """fitscope cannot write to this place."""


class RunError(FitscopeError, LookupError):
    """The run cannot be read, or has no data under this name."""


class FitscopeWarning(UserWarning):
    """fitscope could not record something. Training continues, and the run lists what is missing."""


def one_of(names: Iterable[str], wanted: str, limit: int = 20) -> str:
    """Lists the valid names for the last clause of an error message, with a guess at the intended one."""
    known = list(names)
    some = _comparable(known, wanted)
    near = difflib.get_close_matches(wanted, some, n=1) or _near_part(some, wanted)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(repr(name) for name in known[:limit])
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return f"{hint}There are: {listed}{more}" if known else "There are none"


def _comparable(known: list[str], wanted: str) -> list[str]:
    """The first of the names, as many as can be compared in a moment: a forged run may have any number, of any length."""
    room, some = COMPARED, []
    for name in known:
        room -= (len(name) + 1) * (len(wanted) + 1)
        if room < 0:
            break
        some.append(name)
    return some


def _near_part(known: list[str], wanted: str) -> list[str]:
    """The first name with a part like the wanted one: `conv11` for `activations/conv1`."""
    part = wanted.rpartition("/")[2]
    parts = {each: name for name in reversed(known) for each in reversed(name.split("/"))}
    return [parts[each] for each in difflib.get_close_matches(part, parts, n=1)]
