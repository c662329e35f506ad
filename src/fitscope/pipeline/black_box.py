"""Holds the steps that a black box keeps in memory: a copy of the state now and then, and every batch since.

A step is a function of its state, its batch and its random state. So a copy of the state every few steps and all batches since are
enough to run any of these steps again. A `Lap` is such a copy with the steps that follow it. The box keeps the newest laps with the
requested number of steps, within a limit in bytes, and drops the oldest first.

When a loss stops being finite, the box sets aside the laps around it (`aside`), because the rules find it some seconds, and maybe
thousands of steps, later. The training thread adds steps; the writer thread takes laps. Neither waits for the other: a lap only
grows, and both replace lists instead of changing them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fitscope import sizes
from fitscope.plan.black_box import BlackBox
from fitscope.store import RunWriter
from fitscope.store.black_box import KeptCall, Lap

Array = np.ndarray[Any, Any]


class Kept:
    """The steps kept so far, and the reason why others were not."""

    def __init__(self, settings: BlackBox, number: Callable[[Any], Array] = np.asarray) -> None:
        self.settings = settings
        self.limit = settings.bytes
        self.laps: list[Lap] = []
        self.aside: list[Lap] = []
        self.dropped = 0  #: steps that were dropped for lack of memory, or because the box stopped
        self.odd_step: int | None = None  #: the first step whose loss was not finite
        self.trouble: str | None = None  #: the reason why the box keeps nothing more
        self.told = False  #: whether fitscope reported that
        self.written: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {}  #: facts about the training, for a replay
        self.model: bytes | None = None  #: the configuration of the model, as JSON
        self._number = number  # reads the result of a step, which may still be running
        self._state_bytes = 0
        self._waits = False  # whether the laps set aside leave no room

    @property
    def keeping(self) -> bool:
        """Whether it takes another step."""
        return self.trouble is None and not self._waits

    @property
    def stride(self) -> int:
        """The number of steps between two copies of the state, so that the box holds at most three copies, or two."""
        steps = self.settings.steps
        return max(1, steps // 2) if 4 * self._state_bytes < self.limit else steps

    @property
    def nbytes(self) -> int:
        """The memory taken now."""
        return sum(lap.nbytes for lap in [*self.laps, *self.aside])

    @property
    def due(self) -> bool:
        """Whether a new lap should begin before the next step."""
        if not self.laps or not self.laps[-1].calls:
            return not self.laps
        lap = self.laps[-1]
        if lap.steps >= self.stride:
            return True
        call = lap.calls[-1].nbytes
        beside = 2 * (self._state_bytes + call) <= self.limit  # room for two copies
        return lap.nbytes + call > self.limit - (self._state_bytes if beside else 0)

    def begin(self, lap: Lap) -> None:
        """Begins a lap."""
        self.look_back()
        self._state_bytes = lap.nbytes
        laps = [*self.laps, lap]
        while len(laps) > 2 and sum(one.steps for one in laps[1:-1]) >= self.settings.steps:
            laps = laps[1:]
        self.laps = laps
        self._fit()

    def add(self, call: KeptCall) -> None:
        """Keeps a step, which runs next."""
        if self.laps:
            self.laps[-1].add(call)
            self._fit()

    def _fit(self) -> None:
        """Drops the oldest laps until the rest fits."""
        while self.nbytes > self.limit and len(self.laps) > 1:
            self._drop(self.laps[:1])
        if self.nbytes <= self.limit:
            return
        if self.aside:  # the first odd step is worth more than the newest
            self._waits = True
            self._drop(self.laps)
        else:
            with_batch = " with one batch" if self.laps[-1].calls else ""
            self.stop(
                f"the state of the model{with_batch} takes {sizes.show(self.nbytes)}, and its memory is {sizes.show(self.limit)}. "
                "Allow more: black_box=fs.BlackBox(memory='8 GB')"
            )

    def _drop(self, laps: list[Lap]) -> None:
        self.dropped += sum(lap.steps for lap in laps)
        self.laps = self.laps[len(laps) :]

    def stop(self, why: str) -> None:
        """Stops keeping steps, for this reason."""
        self.trouble = why
        self._drop(self.laps)

    def look_back(self) -> None:
        """Sets the laps aside if the newest one has the first loss that is not finite. Its steps are computed by now."""
        if self.odd_step is not None or not self.laps:
            return
        for call in self.laps[-1].calls:
            if call.logs is not None and self._odd(call.logs):
                self.odd_step = call.step
                self.aside, self.laps = self.laps, []
                return

    def _odd(self, logs: Any) -> bool:
        try:
            return "loss" in logs and not np.isfinite(self._number(logs["loss"])).all()
        except Exception:  # the step failed; the next use of its result raises that in the training
            return False

    # ---- on the writer thread --------------------------------------------------------------------------------

    def take(self, *, newest: bool) -> list[Lap]:
        """The laps to write: those set aside, and the newest ones on request or if none were set aside."""
        aside, self.aside, self._waits = self.aside, [], False
        laps = [lap for lap in [*aside, *(self.laps if newest or not aside else [])] if lap.fresh]
        for lap in laps:
            for call in list(lap.calls):
                if call.logs is not None:  # the training thread may be about to set it
                    call.logs = self._read(call.logs)
        return laps

    def _read(self, logs: Any) -> Any:
        """Logs as arrays. Those of a step that failed are unknown."""
        try:
            return {name: np.asarray(self._number(value)) for name, value in logs.items()}
        except Exception:
            return None

    def write(self, writer: RunWriter, why: list[str], *, newest: bool) -> None:
        """Writes laps to the run, if there are any that are not written yet. Raises the first error."""
        laps = self.take(newest=newest)
        if not laps:
            return
        facts = {**self.about, "why": why, "odd_step": self.odd_step, "time": time.time()}
        folder = writer.boxes.write(laps, facts, self.model)
        steps = [call.step for lap in laps for call in lap.calls]
        self.written.append({"folder": folder, "why": why, "first": min(steps), "last": max(steps)})

    def describe(self) -> dict[str, Any]:
        """The facts about the box in the run."""
        return {
            "steps": self.settings.steps,
            "memory": self.limit,
            "severity": self.settings.severity,
            "bytes": self.nbytes,
            "dropped": self.dropped,
            "trouble": self.trouble,
            "written": list(self.written),
        }
