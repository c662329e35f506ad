"""The pulse of a rank: a few of its steps, by which the ranks of a training are compared.

For each of these steps it has the time, the CPU seconds of the process so far, the loss, and one number for all trainable weights
together, which is the same on ranks that hold the same weights. It is a part of the rank's status, so it costs no request. However
long the training, it has at most `MOST` steps: the multiples of 2ᵏ. So ranks that capture the same steps keep the same ones.

A *light* rank records nothing else. In a training of a thousand processes a few of them record everything
(`store.sampled_ranks`); the other ranks would only repeat that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fitscope.pipeline.handover import JOINED, Shown
from fitscope.plan.wants import LOSS, Want, Wants
from fitscope.record import Block, Moment, Record
from fitscope.reduce.stats import COUNTS, MOMENTS
from fitscope.sites import Site

MOST = 64  #: the most steps
COLUMNS = ("step", "time", "cpu", "loss", "weights")

_COUNT, _RMS = COUNTS.index("count"), MOMENTS.index("rms")


class Pulse:
    """The pulse of one rank. `weights` are the paths of the weights that must agree on all ranks."""

    def __init__(self, weights: Iterable[str], cpu: Callable[[], float] = time.process_time) -> None:
        self._weights = frozenset(weights)
        self._cpu = cpu
        self._stride = 1
        self._points: list[tuple[int, float, float, float | None, float | None]] = []
        self._lightened: tuple[Wants, Wants] = (
            Wants(),
            Wants(),
        )  # those of a step, and those that a light rank needs

    @classmethod
    def of(cls, model: Mapping[str, Any] | None, *, shards: bool) -> Pulse:
        """The pulse for a model as the run describes it. With `shards` it leaves out the weights: each rank holds different ones."""
        layers = (model or {}).get("layers") or ()
        weights = (item for layer in layers for item in (layer.get("weights") or {}).items())
        return cls([] if shards else [path for path, facts in weights if facts.get("trainable", True)])

    def take(self, at: Moment, blocks: Iterable[Block], records: Iterable[Record] = ()) -> None:
        """Takes a captured step: its statistics, from the host or from inside the step."""
        if at.step % self._stride:
            return
        loss: float | None = None
        sizes: list[tuple[float, float]] = []
        for block in blocks:
            for row, head in enumerate(block.heads):
                if head.site.place == LOSS and not head.site.label:
                    loss = float(block.values[row])
                elif self._counts(head.site):
                    sizes.append((block.stats.counts[row, _COUNT], block.stats.moments[row, _RMS]))
        sizes += [
            (record.stats.count, record.stats.rms)
            for record in records
            if record.stats is not None and self._counts(record.site)
        ]
        self._points.append((at.step, at.time, self._cpu(), _finite(loss), _together(sizes)))
        while len(self._points) > MOST:
            self._stride *= 2
            self._points = [point for point in self._points if point[0] % self._stride == 0]

    def describe(self) -> dict[str, list[Any]]:
        """The columns, for the status."""
        columns = zip(*self._points, strict=True) if self._points else ((),) * len(COLUMNS)
        return {name: list(values) for name, values in zip(COLUMNS, columns, strict=True)}

    def lightened(self, shown: Shown) -> Shown:
        """The tensors of a step that a light rank needs."""
        if self._lightened[0] is not shown.wants:
            places = {
                place: Want(stats=True) for place in shown.wants if place == LOSS or self._is_mine(place)
            }
            self._lightened = shown.wants, Wants(places)
        wants = self._lightened[1]
        tensors = {
            name: value
            for name, value in shown.tensors.items()
            if name == JOINED or shown.sites[name].place in wants
        }
        return replace(shown, tensors=tensors, wants=wants)

    def _is_mine(self, place: tuple[str, str]) -> bool:
        return place[0] == "weights" and place[1] in self._weights

    def _counts(self, site: Site) -> bool:
        return not site.moved and self._is_mine(site.place)


def _together(sizes: list[tuple[float, float]]) -> float | None:
    """The rms over several tensors, from the number of elements and the rms of each. None without any, or if one is not finite."""
    if not sizes:
        return None
    counts, sizes_ = np.array(sizes, np.float64).T
    total = float(counts @ (sizes_ * sizes_))
    return math.sqrt(total / counts.sum()) if math.isfinite(total) and counts.sum() else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
