"""Schedules: at which steps something is due. `every=` takes one, or what `schedule` turns into one."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from fitscope.errors import WatchError


@dataclass(frozen=True, slots=True)
class Turn:
    """The step about to run, as a schedule sees it."""

    step: int
    epoch: int
    batch: int
    batches: int | None  #: in this epoch or pass, where that is known
    in_pass: str = "train"

    def following(self) -> Turn | None:
        """The next turn as far as can be told; None after the last of a pass."""
        if self.batches is None or self.batch + 1 < self.batches:
            return replace(self, step=self.step + (self.in_pass == "train"), batch=self.batch + 1)
        return (
            replace(self, step=self.step + 1, epoch=self.epoch + 1, batch=0)
            if self.in_pass == "train"
            else None
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Says at which steps something is due.

    `due` answers yes, no, or "last": this step counts only if it turns out to be the last of its epoch (a
    generator does not tell how long it is).
    """

    due: Callable[[Turn], bool | Literal["last"]]
    text: str  #: how it reads in the plan
    #: Of a step of the training: for how many steps after it nothing is due, at least. They need not be asked about.
    rest: Callable[[int], int] = lambda step: 0  # noqa: ARG005

    def __repr__(self) -> str:
        return self.text


#: When: each n-th step, `fs.steps(...)`, `fs.epochs(...)`, or a function of the step.
Every = int | Schedule | Callable[[int], bool]


def schedule(every: Every) -> Schedule:
    """Reads `every=`: a number, `steps(...)`, `epochs(...)` or a callable `step -> bool`."""
    if isinstance(every, Schedule):
        return every
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        # The batches of a validation all come at one step.
        return Schedule(
            lambda turn: (turn.step if turn.in_pass == "train" else turn.batch) % every == 0,
            f"every {every}" if every > 1 else "every step",
            lambda step: every - 1 - step % every,
        )
    if callable(every):
        return Schedule(lambda turn: bool(every(turn.step)), getattr(every, "__name__", repr(every)))
    raise WatchError(
        "`every` to be a positive whole number, fs.steps(...), fs.epochs(...) or a function step -> bool",
        repr(every),
        "Use every=1 to capture each step",
    )


def steps(*at: int | Iterable[int]) -> Schedule:
    """Due at just these steps: `steps(0, 100, 200)` or `steps(range(0, 1000, 50))`."""
    wanted = frozenset(int(s) for item in at for s in ([item] if isinstance(item, int) else item))
    if not wanted or min(wanted) < 0:
        raise WatchError("steps to name one or more steps from 0 up", repr(at), "Write fs.steps(0, 100, 200)")
    ordered = sorted(wanted)
    shown = ", ".join(str(s) for s in ordered[:6]) + (", …" if len(ordered) > 6 else "")

    def rest(step: int) -> int:
        after = bisect.bisect_right(ordered, step)
        return ordered[after] - step - 1 if after < len(ordered) else sys.maxsize

    return Schedule(lambda turn: turn.step in wanted, f"steps {shown}", rest)


def epochs(*at: int | Iterable[int], batch: int | Literal["first", "last", "all"] = "last") -> Schedule:
    """Due in these epochs (none named: in every epoch), at the last, the first, all or the n-th of its batches."""
    wanted = frozenset(int(e) for item in at for e in ([item] if isinstance(item, int) else item))
    if batch not in ("first", "last", "all") and not (isinstance(batch, int) and batch >= 0):
        raise WatchError("batch to be 'first', 'last', 'all' or an index", repr(batch), "Write batch='last'")
    index = 0 if batch == "first" else batch

    def due(turn: Turn) -> bool | Literal["last"]:
        if wanted and turn.epoch not in wanted:
            return False
        if batch == "all":
            return True
        if batch == "last":
            return "last" if turn.batches is None else turn.batch == turn.batches - 1
        return turn.batch == index

    shown = "epochs " + ", ".join(map(str, sorted(wanted))) if wanted else "every epoch"
    return Schedule(due, f"{shown}, batch {batch}")
