"""Schedules: the steps at which a watch records. `every=` takes a schedule, or a value that `schedule` converts.

A schedule is made of functions of this module and their arguments, so that a scope can be copied and sent to another process.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fitscope.errors import WatchError


@dataclass(frozen=True, slots=True)
class Turn:
    """The step about to run, as the input of a schedule."""

    step: int
    epoch: int
    batch: int
    batches: int | None  #: in this epoch or pass; None if unknown
    in_pass: str = "train"

    def following(self) -> Turn | None:
        """The next step as far as it is known; None after the last batch of a pass."""
        if self.batches is None or self.batch + 1 < self.batches:
            return replace(self, step=self.step + (self.in_pass == "train"), batch=self.batch + 1)
        return (
            replace(self, step=self.step + 1, epoch=self.epoch + 1, batch=0)
            if self.in_pass == "train"
            else None
        )


def _no_rest(step: int) -> int:  # noqa: ARG001
    return 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Decides at which steps a watch is due.

    `due` returns True, False or "last". "last" means: keep this step only if it is the last of its epoch, which is
    unknown while a generator of unknown length runs.
    """

    due: Callable[[Turn], bool | Literal["last"]]
    text: str  #: the description in the plan
    #: The number of training steps after this one for which `due` is certainly False. The scope skips the question for them.
    rest: Callable[[int], int] = _no_rest

    def __repr__(self) -> str:
        return self.text


#: Every n-th step, `fs.steps(...)`, `fs.epochs(...)`, or a function `step -> bool`.
Every = int | Schedule | Callable[[int], bool]


def schedule(every: Every) -> Schedule:
    """Parses `every=`: a number, `steps(...)`, `epochs(...)` or a function `step -> bool`."""
    if isinstance(every, Schedule):
        return every
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        text = f"every {every}" if every > 1 else "every step"
        return Schedule(partial(_nth, every), text, partial(_until_nth, every))
    if callable(every):
        return Schedule(partial(_asked, every), getattr(every, "__name__", repr(every)))
    raise WatchError(
        "`every` to be a positive whole number, fs.steps(...), fs.epochs(...) or a function step -> bool",
        repr(every),
        "Use every=1 to capture every step",
    )


def steps(*at: int | Iterable[int]) -> Schedule:
    """A schedule of exactly these steps: `fs.steps(0, 100, 200)` or `fs.steps(range(0, 1000, 50))`."""
    wanted = frozenset(int(s) for item in at for s in ([item] if isinstance(item, int) else item))
    if not wanted or min(wanted) < 0:
        raise WatchError("steps to name one or more steps from 0 up", repr(at), "Write fs.steps(0, 100, 200)")
    ordered = sorted(wanted)
    shown = ", ".join(str(s) for s in ordered[:6]) + (", …" if len(ordered) > 6 else "")
    return Schedule(partial(_among, wanted), f"steps {shown}", partial(_until_next, ordered))


def epochs(*at: int | Iterable[int], batch: int | Literal["first", "last", "all"] = "last") -> Schedule:
    """A schedule by epoch.

    Args:
        at: The epochs, counted from 0. Every epoch by default.
        batch: The batch of the epoch: "first", "last", "all", or its index.
    """
    wanted = frozenset(int(e) for item in at for e in ([item] if isinstance(item, int) else item))
    if batch not in ("first", "last", "all") and not (isinstance(batch, int) and batch >= 0):
        raise WatchError("batch to be 'first', 'last', 'all' or an index", repr(batch), "Write batch='last'")
    shown = "epochs " + ", ".join(map(str, sorted(wanted))) if wanted else "every epoch"
    return Schedule(partial(_in_epochs, wanted, batch), f"{shown}, batch {batch}")


# ---- the functions that schedules are made of -----------------------------------------------------------------


def _nth(every: int, turn: Turn) -> bool:
    # All batches of a validation have the same step, so their schedule counts batches.
    return (turn.step if turn.in_pass == "train" else turn.batch) % every == 0


def _until_nth(every: int, step: int) -> int:
    return every - 1 - step % every


def _asked(every: Callable[[int], bool], turn: Turn) -> bool:
    return bool(every(turn.step))


def _among(steps: frozenset[int], turn: Turn) -> bool:
    return turn.step in steps


def _until_next(ordered: list[int], step: int) -> int:
    after = bisect.bisect_right(ordered, step)
    return ordered[after] - step - 1 if after < len(ordered) else sys.maxsize


def _in_epochs(epochs: frozenset[int], batch: int | str, turn: Turn) -> bool | Literal["last"]:
    if epochs and turn.epoch not in epochs:
        return False
    if batch == "all":
        return True
    if batch == "last":
        return "last" if turn.batches is None else turn.batch == turn.batches - 1
    return turn.batch == (0 if batch == "first" else batch)
