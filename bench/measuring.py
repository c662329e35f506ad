"""How the benchmarks measure: trainings that take turns in one process, each compared with a plain one right beside it.

In a round every row trains once, and a plain training stands before and after each two of them: a row is compared with
the one it touches, so that a machine that becomes slower meanwhile slows both. The median of the ratios over the rounds is
reported, with the lowest and the highest. CPU time is that of the whole process, all its threads included. A row that
raises is reported with its reason and left out of the rounds that follow; the others go on.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIRST = 2  #: steps of the turn in which plain training is compiled


@dataclass(frozen=True, slots=True)
class Seconds:
    """What one step took."""

    cpu: float
    wall: float


@dataclass(slots=True)
class Row:
    """A way to train, and what it took in each round."""

    name: str
    train: Callable[[int], None]  #: trains that many steps
    prepare: Callable[[], None] = lambda: None  #: what each turn needs before its time counts
    longer: int = 1  #: how many times as many steps as the others it trains, each round
    steps: int = 0  #: trained so far
    own: list[Seconds] = field(default_factory=list)  #: of all turns
    #: Of those that count: its own, and that of plain.
    beside: list[tuple[Seconds, Seconds]] = field(default_factory=list)
    failed: str | None = None
    told: dict[str, Any] = field(default_factory=dict)  #: what else is reported of it

    def timed(self, steps: int) -> Seconds | None:
        """Trains, and says what a step took; None if it failed, now or before."""
        if self.failed is not None:
            return None
        steps *= self.longer
        gc.collect()
        try:
            self.prepare()
            cpu, wall = time.process_time(), time.perf_counter()
            self.train(steps)
        except Exception as error:
            traceback.print_exc()
            self.failed = reason(error)
            return None
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.steps += steps
        self.own.append(Seconds(cpu / steps, wall / steps))
        return self.own[-1]

    def figures(self) -> dict[str, Any]:
        """What is reported of it, as JSON."""
        if self.failed is not None:
            return {"failed": self.failed}
        found = dict(self.told)
        for kind in ("cpu", "wall"):
            ratios = [getattr(own, kind) / getattr(plain, kind) for own, plain in self.beside]
            found[kind] = statistics.median(ratios)
            found[f"{kind}_spread"] = [min(ratios), max(ratios)]
            found[f"{kind}_ms"] = 1e3 * statistics.median(getattr(own, kind) for own, _ in self.beside)
        return found


def take_turns(
    plain: Row, rows: Sequence[Row], steps: int, rounds: int, warmed_up: Callable[[], None] = lambda: None
) -> None:
    """Trains all rows once to compile and adapt, calls `warmed_up`, and trains them in `rounds` that count."""
    for turn in range(rounds + 1):
        if turn == 1:
            warmed_up()
        before = plain.timed(steps)
        for k in range(0, len(rows), 2):
            pair = rows[k : k + 2]
            spent = [row.timed(steps) for row in pair]
            after = plain.timed(steps)
            if before is None or after is None:
                raise RuntimeError(f"plain training failed: {plain.failed}")
            if turn:
                for row, own, beside in zip(pair, spent, (before, after), strict=False):
                    if own is not None:
                        row.beside.append((own, beside))
            before = after
            say(f"  round {turn} of {rounds}: {', '.join(row.name for row in pair)}")


def plain_figures(plain: Row) -> dict[str, Any]:
    """What a plain step takes, and how long its very first turn did, in which all is compiled."""
    first, *others = plain.own
    return {
        "cpu_ms": 1e3 * statistics.median(spent.cpu for spent in others),
        "wall_ms": 1e3 * statistics.median(spent.wall for spent in others),
        "first_seconds": FIRST * first.wall,
    }


def enough_steps(plain: Row, seconds: float, least: int, most: int = 4_000) -> int:
    """How many steps of plain training last that long, in tens, but never fewer than `least`."""
    steps = FIRST
    while True:
        spent = plain.timed(steps)
        if spent is None:
            raise RuntimeError(f"plain training failed: {plain.failed}")
        if steps * spent.wall > seconds / 4 or steps >= most:  # else `fit` itself is most of it
            return max(least, min(most, round(seconds / spent.wall / 10) * 10))
        steps *= 8


def reason(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'…' if len(text) > 200 else ''}"


def say(text: str) -> None:
    """To whoever waits; what is reported goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def size(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def answer(measure: Callable[[], dict[str, Any]]) -> None:
    """Prints what was measured as the last line of stdout, for `in_process`; or, if it raises, the reason."""
    try:
        found = measure()
    except Exception as error:
        traceback.print_exc()
        found = {"failed": reason(error)}
    print(json.dumps(found))


def in_process(script: str, arguments: Iterable[Any], backend: str, *, minutes: float = 60) -> dict[str, Any]:
    """Runs a script of this directory in a process of its own, and gives its `answer`.

    If it fails, `{"failed": reason}`: one table less, not all of them.
    """
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=60 * minutes)
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {minutes:g} minutes"}
    except (ValueError, IndexError):  # killed, or crashed
        return {"failed": f"its process ended with {done.returncode}"}
    return found
