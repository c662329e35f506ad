"""Puts the pulses of ranks side by side: for each number a table of ranks by steps, with NaN for missing ones.

Clocks of several hosts differ, so fitscope never compares times of two ranks directly. It uses the time since the first step
that all of them share: `step_seconds` within one rank, `skew` against the median of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NUMBERS = ("time", "cpu", "loss", "weights")


@dataclass(frozen=True, eq=False)
class Pulses:
    """The numbers of several ranks, each a table with a row for each rank and a column for each step."""

    ranks: Array
    steps: Array
    time: Array  #: seconds since 1970, by the clock of the rank
    cpu: Array  #: CPU seconds that the process of the rank has used
    loss: Array
    weights: Array  #: rms of all trainable weights together

    @classmethod
    def of(cls, said: Mapping[int, Mapping[str, Any]]) -> Pulses | None:
        """The pulses in the statuses of ranks, on the steps that at least half of them have. None for fewer than two ranks."""
        pulses = {rank: _numbers(pulse) for rank, pulse in sorted(said.items()) if pulse.get("step")}
        if len(pulses) < 2:
            return None
        flat = {
            name: np.concatenate([pulse[name] for pulse in pulses.values()]) for name in ("step", *NUMBERS)
        }
        steps, have = np.unique(flat["step"], return_counts=True)
        steps = steps[2 * have >= len(pulses)]
        row = np.repeat(np.arange(len(pulses)), [len(pulse["step"]) for pulse in pulses.values()])
        column = np.searchsorted(steps, flat["step"])
        there = np.isin(flat["step"], steps)
        tables = {name: np.full((len(pulses), len(steps)), np.nan) for name in NUMBERS}
        for name, table in tables.items():
            table[row[there], column[there]] = flat[name][there]
        return cls(np.array(list(pulses)), steps.astype(np.int64), **tables)

    @property
    def step_seconds(self) -> Array:
        """The average seconds of one step since the previous column."""
        return self._per_step(self.time)

    @property
    def step_cpu(self) -> Array:
        """Likewise, the CPU seconds of the process."""
        return self._per_step(self.cpu)

    @property
    def skew(self) -> Array:
        """The seconds by which a rank is behind the median of all, since the first step that all share."""
        if not self.time.size:
            return self.time
        shared = np.flatnonzero(np.isfinite(self.time).all(axis=0))
        first = int(shared[0]) if len(shared) else 0
        since = self.time - self.time[:, [first]]
        return since - medians(since, axis=0)

    def _per_step(self, table: Array) -> Array:
        found = np.full(table.shape, np.nan)
        found[:, 1:] = np.diff(table, axis=1) / np.diff(self.steps)
        return np.where(found >= 0, found, np.nan)  # the clock was set back


def medians(table: Array, axis: int) -> Array:
    """Medians without NaN, with the axis kept; NaN if there are no numbers."""
    there = np.isfinite(table)
    ordered = np.sort(np.where(there, table, np.inf), axis=axis)
    count = there.sum(axis=axis, keepdims=True)
    low, high = (
        np.take_along_axis(ordered, np.maximum(at, 0), axis) for at in ((count - 1) // 2, count // 2)
    )
    return np.where(count > 0, (low + np.where(np.isfinite(high), high, low)) / 2, np.nan)


def _numbers(pulse: Mapping[str, Any]) -> dict[str, Array]:
    """The columns as arrays of one length, by increasing steps."""
    length = min(len(pulse.get(name) or ()) for name in ("step", *NUMBERS))
    columns = {name: np.array(pulse[name][:length], np.float64) for name in ("step", *NUMBERS)}
    if (np.diff(columns["step"]) > 0).all():
        return columns
    _, first = np.unique(columns["step"], return_index=True)
    return {name: column[first] for name, column in columns.items()}
