"""Measures how active the units of layers were, in a window over the newest captured batches, for all layers of a pass at once.

The units of all layers lie one after the other in flat arrays, so that a step costs a few calls of compiled code, however many
layers there are. Memory is bounded by the number of units, whatever the length of the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fitscope.pipeline.classes import NotDerived
from fitscope.record import Head
from fitscope.reduce import units
from fitscope.reduce.units import STUCK, Layers
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

SAMPLES = 256  #: samples in a window, roughly,
BATCHES = 16  #: in at most this many batches
MOST_UNITS = 65_536  #: the most units of one layer,
MOST_IN_ALL = 262_144  #: and of all layers of a pass together


class Vector(NamedTuple):
    """Small arrays that lie one after the other, `flat[starts[i]:starts[i + 1]]`, and the site of each."""

    heads: list[Head]
    flat: Array
    starts: Array


class Vectors(NamedTuple):
    """A `Vector` of several steps: `flat` has a row for each."""

    heads: list[Head]
    flat: Array
    starts: Array


class Joined(NamedTuple):
    """Where the outputs of layers lie in a joined vector."""

    which: Array  #: layers, by number
    starts: Array
    ends: Array
    samples: Array
    places: Array  #: samples × positions


class Activity:
    """The layers of one pass."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}  # numbers of layers, by site and number of units
        self._heads: list[Head] = []
        self._bounds: list[tuple[float, float]] = []
        self._offsets = [0]
        self._state: _State | None = None

    def number(self, site: Site, shape: Sequence[int], family: str) -> int:
        """The number of a layer, by the site of its activity; new for a layer that changed its width."""
        if not len(shape):
            raise NotDerived("it is one number")
        width = int(shape[-1]) if len(shape) > 1 else 1
        found = self._known.get((site, width))
        if found is None:
            if not 0 < width <= MOST_UNITS or self._offsets[-1] + width > MOST_IN_ALL:
                raise NotDerived(f"it has {width:,} units, more than are looked at one by one")
            found = self._known[site, width] = len(self._heads)
            # This makes a new list, because earlier steps refer to the old one, and `Taken.key` compares lists by id.
            self._heads = [*self._heads, Head(site, (width,), "float32", batched=False)]
            self._bounds.append(STUCK[family])
            self._offsets.append(self._offsets[-1] + width)
            self._state = _State(self._offsets, self._bounds, self._state)
        return found

    def count(self, number: int, array: Array, shape: Sequence[int]) -> None:
        """Takes the output of a layer, or some of its rows; `shape` is the shape of the whole output."""
        now = self._now
        low, high = self._offsets[number], self._offsets[number + 1]
        places = units.count_active(array, self._bounds[number], now.counts[low:high])
        now.samples[number] = max(places // max(math.prod(shape[1:-1]), 1), 1)
        now.places[number] = places

    def count_joined(self, vector: Array, joined: Joined) -> None:
        """Takes the outputs of several layers from one vector."""
        now = self._now
        units.count_all(vector, joined.starts, joined.ends, joined.which, now.layers, now.counts)
        now.samples[joined.which] = joined.samples
        now.places[joined.which] = joined.places

    def slide_joined(self, some: Sequence[tuple[Sequence[Array], Joined]]) -> Vectors | None:
        """Takes the outputs of layers at several steps, for each step from its vectors, and slides over all of them.

        `some` has for each place in a step the vectors of all steps. These steps have no other layers.
        """
        if self._state is None or not some:
            return None
        now, steps = self._now, len(some[0][0])
        counts = np.zeros((steps, now.counts.size), np.int32)
        for vectors, joined in some:
            for vector, into in zip(vectors, counts, strict=True):
                units.count_all(vector, joined.starts, joined.ends, joined.which, now.layers, into)
            now.samples[joined.which] = joined.samples
            now.places[joined.which] = joined.places
        chosen = np.flatnonzero(now.samples > 0).tolist()
        if not chosen:
            return None
        shares = now.slide_steps(counts)
        offsets = now.layers.offsets
        if len(chosen) < len(self._heads):
            shares = np.concatenate([shares[:, offsets[i] : offsets[i + 1]] for i in chosen], axis=1)
        starts = np.cumsum([0] + [self._heads[i].shape[0] for i in chosen])
        return Vectors([self._heads[i] for i in chosen], shares, starts)

    def put(self, number: int, counts: Array, samples: int, places: int) -> None:
        """Takes the counts that the step itself computed."""
        now = self._now
        now.counts[self._offsets[number] : self._offsets[number + 1]] = counts
        now.samples[number], now.places[number] = samples, places

    def slide(self) -> Vector | None:
        """The share of each unit in the window that ends with this step, for the layers that the step returned."""
        if self._state is None:
            return None
        state, offsets = self._state, self._state.layers.offsets
        seen = state.samples > 0
        shares = state.slide()
        if seen.all():
            return Vector(self._heads, shares, offsets)
        chosen = np.flatnonzero(seen).tolist()
        if not chosen:
            return None
        starts = np.cumsum([0] + [self._heads[i].shape[0] for i in chosen])
        flat = np.concatenate([shares[offsets[i] : offsets[i + 1]] for i in chosen])
        return Vector([self._heads[i] for i in chosen], flat, starts)

    @property
    def _now(self) -> _State:
        assert self._state is not None  # a layer gets a number before its units are counted
        return self._state


class _State:
    """The arrays. When a new layer appears, larger arrays replace them and keep the counts."""

    def __init__(self, offsets: list[int], bounds: list[tuple[float, float]], before: _State | None) -> None:
        layers, width = len(bounds), offsets[-1]
        lows, highs = np.array(bounds).T
        self.layers = Layers.of(np.array(offsets), np.ascontiguousarray(lows), np.ascontiguousarray(highs))
        self.counts = np.zeros(width, np.int32)  # the counts of this step
        self.samples, self.places = np.zeros(layers, np.int64), np.zeros(layers, np.int64)
        self._ring = np.zeros((BATCHES, width), np.int32)
        self._ring_samples = np.zeros((BATCHES, layers), np.int64)
        self._ring_places = np.zeros((BATCHES, layers), np.int64)
        self._firsts, self._lengths = np.zeros(layers, np.int64), np.zeros(layers, np.int64)
        self._totals, self._held = np.zeros(width, np.int64), np.zeros((layers, 2), np.int64)
        for name in vars(before) if before is not None else ():
            old, new = getattr(before, name), getattr(self, name)
            if name == "_held":
                new[: len(old)] = old
            elif name != "layers":
                new[..., : old.shape[-1]] = old

    def slide(self) -> Array:
        return self._slid(units.slide, self.counts)

    def slide_steps(self, counts: Array) -> Array:
        """Slides over several steps, each with a row of counts."""
        return self._slid(units.slide_steps, counts)

    def _slid(self, slide: Callable[..., None], counts: Array) -> Array:
        shares = np.empty(counts.shape, np.float32)
        slide(
            counts, self.samples, self.places, self.layers.offsets, self._ring, self._ring_samples, self._ring_places,
            self._firsts, self._lengths, self._totals, self._held, SAMPLES, shares,
        )  # fmt: skip
        self.samples[:] = 0  # the next step has returned nothing yet
        return shares
