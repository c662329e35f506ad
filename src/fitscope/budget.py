"""How often to capture: as often as a share of the training's time allows.

What one captured step costs is measured in plain steps. It is the time by which a captured step takes longer than the plain step
just before it, both of them waited for: the tapped program, the handing over and any wait for the queue are in it. By the clock or in
CPU time of the process, whichever is more. Added to that is the CPU time of the writer's thread, which works beside later steps.
A difference that noise hides counts as large as the noise allows.

Then every n-th step is captured, with n from a short list of round numbers, the smallest with which the cost stays within the share;
never less often than every `LEAST`-th step, so that a run always shows something. Compiling the tapped step, once, is not counted:
it would take all of a short training's budget. The run has it, as it has every decision taken here.

Which step is captured changes nothing about the programs that run: nothing is compiled again.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fitscope.errors import WatchError
from fitscope.watch import Schedule, Turn

LADDER = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
START = 10  #: every so many steps, until something is known
LEAST = LADDER[-1]
ENOUGH = 3  #: captures measured before it is done more often
NEWEST = 15  #: measurements that count
OFTEN = 8  #: the first so many captures are all measured, later each so many-th
MOST_TOLD = 200  #: decisions that the run keeps
LOOK = 64  #: captures after which the writer is looked at where every step is captured


class Time(NamedTuple):
    """Seconds: by the clock, and of CPU of the whole process but for the writer."""

    wall: float
    cpu: float

    def minus(self, other: Time, times: int = 1) -> Time:
        return Time(self.wall - times * other.wall, self.cpu - times * other.cpu)

    def over(self, number: float) -> Time:
        return Time(self.wall / number, self.cpu / number)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The begin of an execution of one or more steps."""

    at: Time
    captured: int  #: of its steps
    steps: int
    compiled: int  #: programs, so far


class Budget:
    """Decides how often to capture, for one training after the other of one model."""

    def __init__(self, share: float, clocks: Callable[[], tuple[float, float]] | None = None) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise WatchError(
                "`budget` to be a share of the training's time, between 0 and 1",
                repr(share),
                "Write budget=0.02 for two percent, or say with `every` when to capture",
            )
        self.share = float(share)
        self.every = START
        self.decisions: list[dict[str, int]] = []  #: {"step", "every"}, for the run
        self.cost: float | None = None  #: of one captured step, in plain steps
        self.trouble: str | None = None  #: why it cannot be kept, once that is so
        self._clocks = clocks or (lambda: (time.perf_counter(), time.process_time()))
        self._plain: deque[Time] = deque(maxlen=NEWEST)  # one plain step
        self._extra: deque[Time] = deque(maxlen=NEWEST)  # by how much a captured step was longer
        self._captures = 0
        self._writer = _Growing()
        self._worked: deque[tuple[float, int]] = deque(
            [(0.0, 0)], maxlen=NEWEST
        )  # and after how many captures
        self._mark: _Mark | None = None
        self.schedule = Schedule(self._due, f"within {100 * self.share:g} % of the time")

    def _due(self, turn: Turn) -> bool:
        return (turn.step if turn.phase == "train" else turn.batch) % self.every == 0

    def describe(self) -> dict[str, Any]:
        """For the run: what was allowed, and what was decided."""
        return {
            "share": self.share,
            "every": self.every,
            "least": LEAST,
            "cost": self.cost,
            "decisions": list(self.decisions),
            **({"trouble": self.trouble} if self.trouble else {}),
        }

    def pause(self) -> None:
        """Something else than training comes next."""
        self._mark = None

    def before(self, turns: Sequence[Turn], writer: float, compiled: int, wait: Callable[[], None]) -> None:
        """These steps are about to run, as one execution.

        `writer` is the CPU time of its thread so far, `compiled` how many programs were; `wait` returns when all steps begun
        before are done.
        """
        first, many = turns[0].step, len(turns)
        if not self.decisions:
            self.decisions.append({"step": first, "every": self.every})
        due = self._count(first, many)
        self._captures += due > 0
        if turns[0].batch == 0:
            self._mark = None
        if self.every == 1:  # nothing to compare with; what the writer takes is still known
            if self._captures % LOOK == 0:
                self._writer.is_now(writer)
                self._decide(first)
            return
        measured = self._captures <= OFTEN or self._captures % OFTEN == 0
        marks = measured and (due > 0 or self._count(first + many, many) > 0)
        if not marks and self._mark is None:
            return
        wait()
        self._writer.is_now(writer)
        wall, cpu = self._clocks()
        now = Time(wall, cpu - self._writer.total)
        if self._mark is not None and compiled == self._mark.compiled:
            self._took(self._mark, now.minus(self._mark.at), first)
        self._mark = _Mark(now, due, many, compiled) if marks else None

    def _count(self, first: int, many: int) -> int:
        """How many of these steps are due."""
        return (first + many - 1) // self.every - (first - 1) // self.every

    def _took(self, mark: _Mark, took: Time, step: int) -> None:
        if not mark.captured:
            self._plain.append(took.over(mark.steps))
        elif self._plain:
            self._extra.append(took.minus(self._usual(), mark.steps).over(mark.captured))
            self._decide(step)

    def _usual(self) -> Time:
        """A plain step."""
        wall, cpu = zip(*self._plain, strict=True)
        return Time(max(statistics.median(wall), 1e-9), max(statistics.median(cpu), 1e-9))

    def _decide(self, step: int) -> None:
        if not self._extra:
            return
        plain, sure = self._usual(), len(self._extra) >= ENOUGH
        wall, cpu = (_at_most(values) if sure else min(values) for values in zip(*self._extra, strict=True))
        self.cost = max(wall / plain.wall, cpu / plain.cpu, 0.0) + self._written() / plain.cpu
        wished = self.cost / self.share
        if wished > self.every:  # not too far at once: it may have been an accident
            self._set(min(_rung(wished), _rung(10 * self.every)), step)
        elif sure and _rung(1.25 * wished) < self.every:
            self._set(_rung(1.25 * wished), step)
        if sure and self.every == LEAST and wished > LEAST and self.trouble is None:
            self.trouble = (
                f"a captured step costs as much as {self.cost:.0f} others, so that even one in {LEAST} is more than "
                f"{100 * self.share:g} % of the time. Watch less, or give it a larger budget"
            )

    def _written(self) -> float:
        """The CPU time that the writer took for each of the newest captures."""
        self._worked.append((self._writer.total, self._captures))
        (before, first), (now, last) = self._worked[0], self._worked[-1]
        return (now - before) / (last - first) if last > first else 0.0

    def _set(self, every: int, step: int) -> None:
        if every != self.every:
            self.every = every
            self.decisions.append({"step": step, "every": every})
            if len(self.decisions) > MOST_TOLD:
                del self.decisions[1]  # the first says where it began


class _Growing:
    """The sum of something that begins at zero again with every training."""

    def __init__(self) -> None:
        self.total = 0.0
        self._seen = 0.0

    def is_now(self, value: float) -> None:
        self.total += value - self._seen if value >= self._seen else value
        self._seen = value


def _rung(wished: float) -> int:
    return LADDER[min(bisect.bisect_left(LADDER, wished), len(LADDER) - 1)]


def _at_most(values: Sequence[float]) -> float:
    """The median, plus what it may well be off by."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return middle + 1.2533 * spread / math.sqrt(len(values))
