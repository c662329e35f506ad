"""Reads small tensors that left a step joined to one vector: their positions, and the stats of several steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fitscope.pipeline.activity import Joined, Vectors
from fitscope.pipeline.handover import Shown, Slot, slots
from fitscope.plan.wants import Want
from fitscope.record import Block, Head, Moment
from fitscope.reduce import host
from fitscope.sites import Site

Array = np.ndarray[Any, Any]


class Layout:
    """The contents of a joined vector. Computed once, because it is the same at every step."""

    def __init__(self, layout: Array, dtype: str, shown: Shown) -> None:
        self.wants = shown.wants
        self.heads: list[Head] = []  #: the heads of tensors whose stats are wanted
        self.more: list[tuple[Site, Want, Slot]] = []  #: tensors with further wants
        self.layers: list[
            tuple[Site, str, Slot]
        ] = []  #: tensors whose activity is wanted, with the family of their nonlinearity
        self.active: Joined | None = None
        chosen: list[tuple[int, int]] = []
        all_slots = slots(layout)
        for slot in all_slots:
            found = shown.wanted(slot.name)
            if found is None:
                continue
            site, want = found
            if want.stats:
                self.heads.append(Head(site, slot.shape, dtype, site.batched and len(slot.shape) > 0))
                chosen.append((slot.start, slot.end))
            if want.activity:
                self.layers.append((site, want.activity, slot))
            more = replace(want, stats=False, activity="")
            if more.tensor or more.mean or more.whole or more.derived:
                self.more.append((site, more, slot))
        self.head_row = tuple(self.heads)  #: the same object in every block
        #: Whether no tensor itself is wanted.
        self.only_data = all(_only_data(want) for _, want, _ in self.more)
        self.chosen = None if len(chosen) == len(all_slots) else chosen  #: None: the whole vector
        self.starts = np.array([start for start, _ in chosen] + [chosen[-1][1] if chosen else 0])
        self.scalars = np.array([i for i, head in enumerate(self.heads) if head.shape == ()], np.int64)

    def array(self, vectors: Sequence[Array], step: int, head: int) -> Array:
        """The tensor of one of the heads, at one of the steps that these vectors are of."""
        start, end = self.chosen[head] if self.chosen is not None else self.starts[head : head + 2]
        return vectors[step][start:end]

    def tally(self, into: host.Tally, vector: Array) -> None:
        if self.chosen is None:
            into.add_all(vector, self.starts)
        else:
            for start, end in self.chosen:
                into.add(vector[start:end])


class Seen(NamedTuple):
    """One step, with its joined vectors on the host."""

    at: Moment
    shown: Shown
    joined: list[tuple[Layout, Array]]

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Equal for steps that can be taken together; None for a step that must be taken alone."""
        if len(self.shown.tensors) > bool(self.joined) or not all(
            layout.only_data for layout, _ in self.joined
        ):
            return None
        return self.shown.in_pass, *(id(layout) for layout, _ in self.joined)


def _only_data(want: Want) -> bool:
    """Whether a tensor serves only to derive values and is not recorded itself."""
    return not (want.tensor or want.mean or want.whole)


def of_layout(ats: tuple[Moment, ...], layout: Layout, vectors: list[Array]) -> Block:
    """The stats of the small tensors of one vector at several steps."""
    tally = host.Tally(len(ats) * len(layout.heads))
    values = np.full((len(ats), len(layout.heads)), np.nan)
    places = layout.starts[layout.scalars]
    for vector, row in zip(vectors, values, strict=True):
        layout.tally(tally, vector)
        row[layout.scalars] = vector[places]
    return Block(ats, layout.head_row, tally.columns(), values.reshape(-1))


def of_vectors(ats: tuple[Moment, ...], heads: tuple[Head, ...], some: Vectors) -> Block:
    """The stats of derived values at several steps."""
    steps, width = some.flat.shape
    starts = (some.starts[:-1] + width * np.arange(steps)[:, None]).reshape(-1)
    tally = host.Tally(steps * len(heads))
    tally.add_all(some.flat.reshape(-1), np.append(starts, steps * width))
    scalars = np.array([i for i, head in enumerate(heads) if head.shape == ()], np.int64)
    values = np.full((steps, len(heads)), np.nan)
    values[:, scalars] = some.flat[:, some.starts[scalars]]
    return Block(ats, heads, tally.columns(), values.reshape(-1))
