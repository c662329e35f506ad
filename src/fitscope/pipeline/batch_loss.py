"""Derives the loss of every batch from the logs that Keras reports at the end of each.

Keras logs the running mean of the loss over the epoch, M. With N samples so far, the loss of one batch of n samples is

    L = (M N − M' N') / n        M', N': after the previous batch

This needs no capture, so fitscope knows it for every step, at no cost to the training. It is not exact: Keras keeps the sum of losses
in float32, and the difference of two sums has the rounding of the sums. So each value has a bound on its error, which holds:
with u the rounding unit of that sum S = M N, each M is off by `DIVISION` u, each addition to the sum by u, so L is off by at most
u (DIVISION (|S| + |S'|) + k max(|S|, |S'|)) / n, for k steps in one execution. Errors do not add up over batches.

A custom `train_step` may log something else: means in which every batch counts the same, or the loss of the batch itself. Each is a
`_Reading`, and captured steps, whose loss is known, tell which one is right. Until one family is left, values wait.

Used by the writer's thread alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fitscope.record import Head, Stretch
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

#: Rounding units by which a quotient may be off: half of one under IEEE rules, more with fast arithmetic.
DIVISION = 2.0
LATE = 1_024  #: ends of batches that may overtake a late one, before it counts as lost
MOST_WAITING = 65_536  #: ends of batches that wait until the interpretation is settled

HEAD = Head(Site("loss"), (), "float32", batched=False)


class End(NamedTuple):
    """The logs of Keras at the end of a batch, or of several batches that ran as one program."""

    first: int  #: the step of the epoch's batch 0
    epoch: int
    batch: int  #: the number of the last batch
    time: float
    value: Any  #: `logs["loss"]`, which may be an array of the backend


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of samples of each batch, as far as `fit` reports it."""

    batch: int | None = None  #: None: unknown
    last: int | None = None  #: the size of the last batch, if smaller
    batches: int | None = None  #: batches in one walk over the data
    runs_on: bool = False  #: whether an epoch begins in the data where the previous one ended

    def of(self, batches: Array, before: int) -> Array:
        """The sizes of these batches of an epoch, given the number of earlier batches. Only their ratios matter."""
        sizes = np.full(len(batches), float(self.batch or 1))
        if self.last is not None and self.batches:
            place = (batches + before) % self.batches if self.runs_on else batches
            sizes[place == self.batches - 1] = self.last
        return sizes


class _Batches(NamedTuple):
    """Consecutive ends of batches of one epoch."""

    ends: list[End]
    first: int  #: the number of the first batch
    values: Array  #: the values that Keras logged
    over: Array  #: the number of steps between an end and the previous one
    weights: Array  #: samples in those steps


class _Reading:
    """One interpretation of the logs."""

    def __init__(self, unit: float, *, running: bool, weighted: bool) -> None:
        self.running, self.weighted = running, weighted
        self._unit = unit
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._sum, self._count, self._broken = 0.0, 0.0, False

    def read(self, some: _Batches) -> tuple[Array, Array]:
        """The loss of each batch, and its error bound: infinite if unknown."""
        values, unit = some.values, self._unit
        if not self.running:
            return values, 2 * unit * np.abs(np.where(np.isfinite(values), values, 0.0))
        weights = some.weights if self.weighted else some.over.astype(np.float64)
        # Keras counts in float32, which is not exact above 2**24.
        counts = np.cumsum(np.concatenate([[self._count], weights]), dtype=np.float32).astype(np.float64)
        with np.errstate(all="ignore"):
            sums = np.concatenate([[self._sum], values * counts[1:]])
            loss = np.diff(sums) / weights
            largest = np.maximum(np.abs(sums[1:]), np.abs(sums[:-1]))
            apart = DIVISION * (np.abs(sums[1:]) + np.abs(sums[:-1])) + some.over * largest
            error = unit * (apart / weights + 4 * np.abs(loss))
        # The first sum that is not finite belongs to a batch whose loss is not; later losses cannot be known.
        bad = ~np.isfinite(values)
        after = np.concatenate([[self._broken], np.logical_or.accumulate(bad)[:-1] | self._broken])
        loss[bad], error[bad] = values[bad], 0.0
        loss[after], error[after] = np.nan, np.inf
        self._sum, self._count = float(sums[-1]), float(counts[-1])
        self._broken = self._broken or bool(bad.any())
        return loss, error


@dataclass
class BatchLoss:
    """Derives the loss of every batch, for one training."""

    custom: bool = False  #: whether the model has a custom `train_step`, which may log anything
    unit: float = 2.0**-24  #: the rounding unit of the sum that Keras keeps
    sizes: Sizes = field(default_factory=Sizes)
    refused: str | None = None  #: the reason why nothing is derived

    def __post_init__(self) -> None:
        self._readings = [_Reading(self.unit, running=True, weighted=True)]
        if self.custom:
            self._readings.append(_Reading(self.unit, running=True, weighted=False))
            self._readings.append(_Reading(self.unit, running=False, weighted=False))
        self._ends: list[End] = []  # ends that are out of order, or have a gap before them
        self._exact: dict[int, float] = {}  # the loss of each captured step
        # Values whose interpretation is not settled.
        self._held: list[tuple[list[Array], list[Array], _Batches]] = []
        self._epoch: int | None = None
        self._last = -1  # the batch of the newest end
        self._walked = 0  # the batches of all earlier epochs

    @property
    def understood(self) -> bool:
        """Whether the interpretation is settled: a running mean, or the loss of the batch itself."""
        return len({reading.running for reading in self._readings}) == 1

    def saw(self, step: int, loss: float) -> None:
        """Reports the loss of a captured step."""
        self._exact[step] = loss

    def take(
        self, ends: Iterable[End], awaited: Callable[[int], bool], *, together: int = 1, last: bool = False
    ) -> Stretch | None:
        """The loss of the batches that ended, except captured ones.

        `awaited` says whether the capture of a step is on its way. `last` means that no more will come.
        """
        self._ends += ends
        if self.refused is not None:
            self._ends, self._held, self._exact = [], [], {}
            return None
        self._ends.sort(key=lambda end: (end.epoch, end.batch))
        found: list[Stretch] = []
        while self.refused is None and (ready := self._ready(awaited, together, last=last)):
            found += self._derive(ready)
        if last or len(self._ends) + sum(len(held[2].ends) for held in self._held) > MOST_WAITING:
            found += self._settle()
        return _joined(found)

    def _ready(self, awaited: Callable[[int], bool], together: int, *, last: bool) -> list[End]:
        """The ends that follow the last one without a gap, within one epoch."""
        ready: list[End] = []
        for place, end in enumerate(self._ends):
            if end.epoch != self._epoch and not ready:
                self._begin_epoch(end.epoch)
            elif end.epoch != self._epoch:
                break
            before = ready[-1].batch if ready else self._last
            late = last or len(self._ends) - place > LATE or self._ends[-1].epoch != end.epoch
            if end.batch <= before:  # the end came twice
                continue
            if end.batch - before != together and not late:
                break
            if any(awaited(end.first + batch) for batch in range(before + 1, end.batch + 1)):
                break
            ready.append(end)
        taken = (self._epoch or 0, ready[-1].batch if ready else self._last)
        self._ends = [end for end in self._ends if (end.epoch, end.batch) > taken]
        return ready

    def _begin_epoch(self, epoch: int) -> None:
        self._walked += self._last + 1
        self._epoch, self._last = epoch, -1
        for reading in self._readings:
            reading.begin_epoch()

    def _derive(self, ends: list[End]) -> list[Stretch]:
        batches = np.array([self._last, *(end.batch for end in ends)])
        if (
            self.sizes.batches and not self.sizes.runs_on
        ):  # the last execution of an epoch may have fewer steps
            batches = np.minimum(batches, self.sizes.batches - 1)
        over = np.diff(batches)
        each = self.sizes.of(np.arange(batches[0] + 1, batches[-1] + 1), self._walked)
        weights = np.diff(np.concatenate([[0.0], np.cumsum(each)])[np.concatenate([[0], np.cumsum(over)])])
        values = np.array([_number(end.value) for end in ends])
        some = _Batches(ends, int(batches[0]) + 1, values, over, weights)
        self._last = ends[-1].batch
        read = [reading.read(some) for reading in self._readings]
        losses, errors = [loss for loss, _ in read], [error for _, error in read]
        self._compare(some, losses, errors)
        if self.refused is not None:
            return []
        if not self.understood:
            self._held.append((losses, errors, some))
            return []
        return self._settle() + self._made(losses, errors, some)

    def _compare(self, some: _Batches, losses: list[Array], errors: list[Array]) -> None:
        """Drops the interpretations that a captured step contradicts."""
        for i, end in enumerate(some.ends):
            exact = self._exact.get(end.first + end.batch)
            if exact is None or some.over[i] != 1 or not math.isfinite(exact):
                continue
            slack = 4 * self.unit * abs(exact)
            wrong = [
                math.isfinite(error[i]) and not abs(loss[i] - exact) <= error[i] + slack
                for loss, error in zip(losses, errors, strict=True)
            ]
            if all(wrong) and self.sizes.batch is None:
                continue  # a batch of another size may explain the difference
            if any(wrong):
                self._drop(wrong, losses, errors)
                if not self._readings:
                    self.refused = (
                        f"logs['loss'] at step {end.first + end.batch} does not tell the loss of the batch"
                    )
                    return

    def _drop(self, wrong: list[bool], losses: list[Array], errors: list[Array]) -> None:
        for i in reversed(range(len(wrong))):
            if wrong[i]:
                del self._readings[i], losses[i], errors[i]
                for held in self._held:
                    del held[0][i], held[1][i]

    def _settle(self) -> list[Stretch]:
        """The rows of the waiting batches, also if several interpretations remain: see `_made`."""
        held, self._held = self._held, []
        return [row for waiting in held for row in self._made(*waiting)]

    def _made(self, losses: list[Array], errors: list[Array], some: _Batches) -> list[Stretch]:
        """The rows of these batches. If the remaining interpretations differ, the difference is the error."""
        loss, error = losses[0], errors[0]
        with np.errstate(all="ignore"):
            for other, bound in zip(losses[1:], errors[1:], strict=True):
                error = np.maximum(error, np.where(other == loss, bound, np.abs(other - loss) + bound))
        if self.sizes.batch is None and self._readings[0].running and self._readings[0].weighted:
            error = np.where(np.isfinite(loss), np.inf, error)  # batches may differ in size
        loss = loss.astype(np.float32).astype(np.float64)  # the run stores four bytes
        rows = np.repeat(np.arange(len(some.ends)), some.over)
        batches = np.arange(some.first, some.first + len(rows))
        step = np.array([end.first for end in some.ends])[rows] + batches
        keep = ~np.isin(step, [*self._exact])
        for known in [known for known in self._exact if known < step[-1]]:
            del self._exact[known]
        rows, step, batches = rows[keep], step[keep], batches[keep]
        if not len(rows):
            return []
        return [
            Stretch(
                HEAD,
                step,
                np.array([end.epoch for end in some.ends])[rows],
                batches,
                np.array([end.time for end in some.ends])[rows],
                loss[rows],
                np.where(np.isnan(error), np.inf, error)[rows],
                some.over[rows],
            )
        ]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _joined(some: list[Stretch]) -> Stretch | None:
    if len(some) < 2:
        return some[0] if some else None
    names = ("steps", "epochs", "batches", "times", "values", "errors", "over")
    return Stretch(HEAD, *(np.concatenate([getattr(one, name) for one in some]) for name in names))
