"""Decides how often to capture: as often as a share of the training time allows.

The cost of a captured step is measured in plain steps. fitscope times a captured step now and then, and a plain step shortly
before it, and waits for both to finish. So the difference includes the tapped program and the handover. It counts wall time or
CPU time of the process, whichever is larger. Added to that is the work during later steps: the CPU time of the writer thread for
captured steps, or the time that training waited for a full queue.

Other programs only ever make a step slower. So fitscope subtracts from the wall time the time for which the training thread waited
for a processor, if the system reports it. It compares the lower quartiles of both kinds of steps, because a busy machine changes
these least. Against the share, the difference counts as large as its noise allows; against the allowance, as it is.

Then every n-th step is captured. n is the smallest of a short list of round numbers that keeps the cost within the share, and at
most `LEAST`, so that every run records something. If no step would be plain, two are left out now and then for comparison.
Compiling the tapped step and proving identity do not count against the share: both happen a few times at the start, and would use up
the budget of a short training. They come out of the allowance. The run records them, and every decision.

Which steps are captured does not change the programs, so nothing is compiled again.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fitscope.errors import WatchError
from fitscope.plan.allowance import Allowance
from fitscope.schedule import Schedule, Turn

LADDER = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
START = 10  #: capture every 10th step until the cost is known,
FEW = 100  #: but 100 steps in all in a short training
LEAST = LADDER[-1]
ENOUGH = 3  #: timed captured and plain steps, before fitscope may capture more often
NEWEST = 15  #: the number of newest measurements that count
OFTEN = 8  #: the first 8 executions with a captured step are timed, later every 8th
LOOK = 64  #: executions in a row with a captured step, after which two stay plain
MOST_TOLD = 200  #: the number of decisions that the run keeps
CLOSER = 20  #: consecutive steps captured after an event,
MOST_CLOSER = 50  #: at most this often in a training


class Time(NamedTuple):
    """Seconds of wall time, and of CPU time of the process without the writer."""

    wall: float
    cpu: float

    def minus(self, other: Time, times: int = 1) -> Time:
        return Time(self.wall - times * other.wall, self.cpu - times * other.cpu)

    def over(self, number: float) -> Time:
        return Time(self.wall / number, self.cpu / number)


class Spent(NamedTuple):
    """The totals spent so far."""

    time: Time  #: the current readings of the clocks
    writer: float  #: CPU seconds of the writer thread
    waited: float  #: seconds that the training waited for a full queue
    compiled: int  #: programs compiled and proven: steps that take longer than others
    work: float  #: CPU seconds of the writer thread for captured steps; its other work is due every few seconds anyway
    compiling: float = 0.0  #: seconds of those steps, and of the kernels of the writer's thread


class Timing(NamedTuple):
    """The calls right before a timed execution, and after it is done and handed over."""

    start: Callable[[], None]
    stop: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Execution:
    """One or more steps that run as one program."""

    step: int  #: the number of the first
    steps: int
    tapped: int  #: the number of them that the budget captures


class Budget:
    """Decides how often to capture, for consecutive trainings of one model."""

    def __init__(self, share: float, allowance: float = 0.0) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise WatchError(
                "`budget` to be a share of the training's time, between 0 and 1",
                repr(share),
                "Write budget=0.02 for two percent, or say with `every` when to capture",
            )
        self.share = float(share)
        self.allowance = Allowance(allowance)  #: seconds that may be spent before the share counts
        self.every = START
        self.decisions: list[dict[str, int]] = []  #: {"step", "every"}, for the run
        self.cost: float | None = None  #: the cost of one captured step, in plain steps
        self.trouble: str | None = None  #: why the share cannot be kept, if so
        freely = f", or {allowance:g} s" if allowance else ""
        self.schedule = Schedule(self._due, f"within {100 * self.share:g} % of the time{freely}", self._rest)
        self._plain: deque[Time] = deque(maxlen=NEWEST)  # one plain step
        self._extra: deque[Time] = deque(maxlen=NEWEST)  # how much longer a tapped step took
        self._captured = self._tapped = 0  # steps
        self._before = 0  # steps captured in earlier trainings
        self._seconds = 0.0  # the duration of a captured step
        self._executions = 0  # with such steps,
        self._in_a_row = 0  # since there was one without
        self._seen_plain = False  # whether this training had a plain execution: the first one compiles the user's own program
        self._owed = True  # a plain step to compare with
        self._left_out = range(0)  # steps
        self._odd: int | None = (
            None  # the step at which something happened, until the next one is about to run
        )
        self._closer = range(0)  # steps that are all captured because of it
        self.closer: list[dict[str, int]] = []  #: {"step", "from", "to"}, for the run
        self._together = 1  # steps in an execution
        self._work, self._waited = _Growing(), _Growing()
        # What both took, and after how many captured steps.
        self._beside: deque[tuple[float, float, int]] = deque([(0.0, 0.0, 0)], maxlen=NEWEST)
        self._timed: _Execution | None = None
        self._begun: Spent | None = None

    def _due(self, turn: Turn) -> bool:
        if self._odd is not None:
            self._begin_closer(self._odd, turn.step)
        if turn.step in self._closer:
            return True
        return turn.step % self.every == 0 and turn.step not in self._left_out

    def look_closer(self, step: int) -> None:
        """Something happened at this step: captures the next ones, if the allowance has room. Called on any thread."""
        self._odd = step

    def _begin_closer(self, odd: int, step: int) -> None:
        self._odd = None
        plain = self._usual().wall if self._plain else 0.0
        begun = self.decisions[0]["step"] if self.decisions else step
        by_share = self.share * (step - begun) * plain
        free = self.allowance.for_captures(self._seconds)
        room = free if by_share < free else by_share + free
        spent = self.allowance.spent + CLOSER * self._seconds
        if step in self._closer or len(self.closer) >= MOST_CLOSER or spent > room or self.cost is None:
            return
        self._closer = range(step, step + CLOSER)
        self.closer.append({"step": odd, "from": step, "to": step + CLOSER})

    def _rest(self, step: int) -> int:
        if step + 1 in self._closer or self._odd is not None:
            return 0
        # The scope must announce the last steps before a captured one: one of them may have to be timed.
        return self.every - 1 - step % self.every - 2 * self._together

    def describe(self) -> dict[str, Any]:
        """The allowed share and the decisions, for the run."""
        return {
            "share": self.share,
            "allowance": self.allowance.seconds,
            "spent": self.allowance.spent,
            "fixed": self.allowance.fixed,
            "every": self.every,
            "least": LEAST,
            "cost": self.cost,
            "decisions": list(self.decisions),
            **({"closer": list(self.closer)} if self.closer else {}),
            **({"trouble": self.trouble} if self.trouble else {}),
        }

    def again(self) -> None:
        """Starts another training: its program may have to be compiled, and clocks restart at zero."""
        self._seen_plain = False
        self._timed = self._begun = None
        self._before = self._captured
        self._odd, self._closer, self.closer = None, range(0), []
        self.allowance.again()

    def expect(self, step: int, steps: int | None) -> None:
        """Announces the number of coming steps; None if unknown. A short training is captured closely from the start."""
        self.allowance.end = None if steps is None else step + steps
        if steps is not None and self.allowance.seconds and self.cost is None:
            self._set(_rung(max(1, min(START, steps // FEW))), step)

    def next(self, step: int, steps: int, captured: int, tapped: int) -> bool:
        """Announces an execution: its number of steps, its first step, how many steps the budget captures, and at how many a
        watch is due.

        Returns whether to time the execution with `start` and `stop`.
        """
        if not self.decisions:
            self.decisions.append({"step": step, "every": self.every})
        self._together = steps
        self._captured += captured
        self._tapped += tapped
        if tapped:
            self._executions += 1
            self._in_a_row += 1
            timed = self._executions <= OFTEN or self._executions % OFTEN == 0
            if self._in_a_row >= (LOOK if self._plain else 2):
                first = step + steps
                self._left_out = range(first, first + 2 * steps)
        else:
            self._in_a_row = 0
            # Shortly before a captured step, when the writer is idle; the step right before it may not be plain.
            soon = self._owed and self._count(step + steps, 2 * steps) > 0
            timed = self._seen_plain and (soon or step in self._left_out)
            self._seen_plain = True
        self._timed = _Execution(step, steps, tapped) if timed else None
        return timed

    def start(self, now: Spent) -> None:
        """Starts a timed execution."""
        self._begun = now

    def stop(self, now: Spent) -> None:
        """Ends a timed execution, after its tensors were handed over."""
        timed, begun, self._timed, self._begun = self._timed, self._begun, None, None
        self._work.is_now(now.work)
        self._waited.is_now(now.waited)
        self.allowance.fixed = now.compiling
        if timed is None or begun is None or begun.compiled != now.compiled:
            return
        own = Time(now.waited - begun.waited, now.writer - begun.writer)  # counted by itself
        took = now.time.minus(begun.time).minus(own)
        if not timed.tapped:
            self._plain.append(took.over(timed.steps))
            self._owed = False
        elif self._plain:
            self._extra.append(took.minus(self._usual(), timed.steps).over(timed.tapped))
            self._owed = True
            self._decide(timed.step + timed.steps)

    def _count(self, first: int, many: int) -> int:
        """The number of these steps that are due."""
        return (first + many - 1) // self.every - (first - 1) // self.every

    def _usual(self) -> Time:
        """The cost of a plain step."""
        wall, cpu = zip(*self._plain, strict=True)
        return Time(max(_usually(wall), 1e-9), max(_usually(cpu), 1e-9))

    def _decide(self, step: int) -> None:
        plain, sure = self._usual(), min(len(self._extra), len(self._plain)) >= ENOUGH
        meanwhile = self._meanwhile()
        later = max(meanwhile.cpu / plain.cpu, meanwhile.wall / plain.wall)
        itself = self._itself(_usually if sure else min)
        self.cost = max(itself.wall / plain.wall, itself.cpu / plain.cpu, 0.0) + later
        at_most = self._itself(_at_most) if sure else itself
        by_share = (max(at_most.wall / plain.wall, at_most.cpu / plain.cpu, 0.0) + later) / self.share
        # In seconds, because CPU time of the writer stays what it is on a machine where a step takes ten times as long. All of it
        # with the newest figures: one measurement that was wrong must not use up the allowance for good.
        self._seconds = max(*itself, 0.0) + max(meanwhile)
        self.allowance.spent = (self._captured - self._before) * self._seconds
        wished = min(by_share, self.allowance.every(step, plain.wall, self._seconds))
        if wished > self.every:  # a small change at a time: one measurement may be an outlier
            self._set(min(_rung(wished), _rung((10 if sure else 3) * self.every)), step)
        elif sure and _rung(1.25 * wished) < self.every:
            self._set(_rung(1.25 * wished), step)
        if sure and self.every == LEAST and wished > LEAST and self.trouble is None:
            self.trouble = (
                f"a captured step costs as much as {self.cost:.0f} others, so that even one in {LEAST} is more than "
                f"{100 * self.share:g} % of the time. Watch less, or give it a larger budget"
            )

    def _itself(self, typical: Callable[[Sequence[float]], float]) -> Time:
        """How much longer a captured step itself takes."""
        wall, cpu = (typical(values) for values in zip(*self._extra, strict=True))
        each = self._tapped / max(self._captured, 1)  # changes tap the previous batch too
        return Time(each * wall, each * cpu)

    def _meanwhile(self) -> Time:
        """The work of each of the newest captured steps during later steps: waiting, and CPU time."""
        self._beside.append((self._work.total, self._waited.total, self._captured))
        work, waited, captured = (
            now - before for now, before in zip(self._beside[-1], self._beside[0], strict=True)
        )
        return Time(waited / captured, work / captured) if captured else Time(0.0, 0.0)

    def _set(self, every: int, step: int) -> None:
        if every != self.every:
            self.every = every
            self.decisions.append({"step": step, "every": every})
            if len(self.decisions) > MOST_TOLD:
                del self.decisions[1]  # the first decision says where it began


class _Growing:
    """A sum of a quantity that restarts at zero with every training."""

    def __init__(self) -> None:
        self.total = 0.0
        self._seen = 0.0

    def is_now(self, value: float) -> None:
        self.total += value - self._seen if value >= self._seen else value
        self._seen = value


def _rung(wished: float) -> int:
    return LADDER[min(bisect.bisect_left(LADDER, wished), len(LADDER) - 1)]


def _usually(values: Sequence[float]) -> float:
    """The lower quartile: other programs only make a step slower."""
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def _at_most(values: Sequence[float]) -> float:
    """`_usually`, plus its likely error."""
    low = _usually(values)
    spread = 1.4826 * statistics.median(abs(value - low) for value in values)
    return low + 1.2533 * spread / math.sqrt(len(values))
