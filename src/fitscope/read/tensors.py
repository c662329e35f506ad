"""Joins the tensors of one site over a whole run: all arrays, attempts and ranks.

A step counts in the attempt that owns it. The samples of several ranks at one step are concatenated along `sample`, in rank order. Tensors
without samples (weights, updates) are the same on every rank, so the first is used. If ranks hold shards of one tensor, each is put in
its place, and elements that no rank recorded are padding. Nothing is read before it is needed.

A pass (such as a validation) has many batches at one step. They are one entry, concatenated along `sample`, or along `batch` if they have
no samples.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fitscope.errors import RunError
from fitscope.read.joint import Joint, padding
from fitscope.read.stored import MOST_PADDING, PLENTY, Array, Index, StoredArray
from fitscope.sites import pass_of


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one array: its `row[i]` is part of the capture `place[i]` of the run, from `offset[i]` on."""

    array: StoredArray
    row: Index
    place: Index
    offset: Index  #: along the samples, or the batches of a pass without samples
    inner: Index  #: along the other axes, (n, axes): not 0 only for shards


class Segment(NamedTuple):
    """A row of an array."""

    array: StoredArray
    row: int
    batch: int
    size: int  #: its length along the first axis of its capture
    batch_size: int


@dataclass(slots=True)
class Entry:
    """A capture of the run: the same batch on each rank, or all batches of a pass."""

    rank: int  #: the first rank that recorded it; without samples it stands for the others
    epoch: int
    batch: int  #: the number of the first batch
    segments: list[Segment] = field(default_factory=list)


class Captures:
    """All captures of one site, ordered by step and then by time."""

    def __init__(self, site: str, ranks: Sequence[Sequence[tuple[StoredArray, int | None]]]) -> None:
        """`ranks` has, for each rank, the arrays of the site with the step at which their attempt stops counting."""
        self.site = site
        self.of_pass = pass_of(site) is not None
        found: dict[tuple[int, ...], Entry] = {}
        for rank, arrays in enumerate(ranks):
            self._add(found, rank, arrays)
        order = sorted(found, key=lambda moment: moment[0])
        self.entries = [found[moment] for moment in order]
        self.step = np.array([moment[0] for moment in order], np.int64)
        self.epoch = np.array([entry.epoch for entry in self.entries], np.int64)
        self.batched = any(s.array.batched for entry in self.entries for s in entry.segments[:1])
        pieces: dict[int, tuple[StoredArray, list[tuple[int, int, int]]]] = {}
        sizes = []
        for place, entry in enumerate(self.entries):
            if self.of_pass:
                # The sort is stable: ranks stay in order.
                entry.segments.sort(key=lambda segment: segment.batch)
            end = 0
            for segment, offset in _placed(entry.segments):
                array = segment.array
                pieces.setdefault(id(array), (array, []))[1].append((segment.row, place, offset))
                end = max(end, offset + segment.size)
            sizes.append(end)
        # The sizes along the second axis of the whole, if that is one of samples.
        self.size = np.array(sizes, np.int64)
        self.pieces = [_share(array, rows) for array, rows in pieces.values()]

    def _add(
        self, found: dict[tuple[int, ...], Entry], rank: int, arrays: Sequence[tuple[StoredArray, int | None]]
    ) -> None:
        """Adds the captures of one rank."""
        seen: dict[tuple[int, ...], int] = {}
        before: tuple[int, ...] = ()
        for array, end in arrays:
            moments = zip(array.step.tolist(), array.epoch.tolist(), array.batch.tolist(), strict=True)
            sizes = array.shapes[:, 0].tolist() if array.batched else [1] * len(array.step)
            batch_sizes = array.batch_size.tolist()
            for row, moment in enumerate(moments):
                if end is not None and (moment[0] > end if self.of_pass else moment[0] >= end):
                    continue
                key = moment[:2] if self.of_pass else moment
                if not self.of_pass or before[:2] != key or moment[2] <= before[2]:
                    seen[key] = seen.get(key, -1) + 1
                before = moment
                place = (*key, seen[key])
                entry = found.get(place)
                if entry is None:
                    entry = found[place] = Entry(rank, moment[1], moment[2])
                if array.batched or rank == entry.rank or array.offset is not None:
                    entry.segments.append(Segment(array, row, moment[2], sizes[row], batch_sizes[row]))

    @functools.cached_property
    def values(self) -> int:
        """The number of values in all captures, without padding."""
        return sum(int(np.prod(piece.array.shapes[piece.row], axis=1).sum()) for piece in self.pieces)

    @property
    def beside(self) -> dict[str, Array]:
        """The coordinates of each capture, besides its step."""
        entries = self.entries
        known = {"epoch": self.epoch}
        if self.of_pass:
            known["batches"] = np.array([len({s.batch for s in e.segments}) for e in entries], np.int64)
        else:
            known["batch"] = np.array([entry.batch for entry in entries], np.int64)
        if self.batched:
            known["size"] = self.size
            known["batch_size"] = np.array([_batch_size(entry.segments) for entry in entries], np.int64)
        return known

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of the capture at `place`, as `capture` returns it."""
        segments = self.entries[place].segments
        return self._joint(place).shape if segments[0].array.offset is None else self._extent(segments)

    def blocks(self, place: int) -> Iterator[Array]:
        """One capture batch by batch, along its first axis; padded if batches differ in other axes."""
        if self.entries[place].segments[0].array.offset is not None:
            yield self._assembled(self.entries[place].segments)
            return
        joint = self._joint(place)
        for array, row, *_ in self.entries[place].segments:
            yield joint.block(array.capture(row), array.batched)

    def _joint(self, place: int) -> Joint:
        segments = self.entries[place].segments
        parts = [(s.array.batched, tuple(int(extent) for extent in s.array.shapes[s.row])) for s in segments]
        return Joint.of(self.site, parts)

    def _extent(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """The shape of the tensor that shards make up."""
        ends = np.array([_corner(segment, offset, self.of_pass)[1] for segment, offset in _placed(segments)])
        return tuple(int(n) for n in ends.max(axis=0))

    def _assembled(self, segments: Sequence[Segment]) -> Array:
        """The tensor that shards make up."""
        extent, dtype = self._extent(segments), segments[0].array.dtype
        stored = sum(math.prod(s.array.shapes[s.row].tolist()) for s in segments)
        if math.prod(extent) * dtype.itemsize > PLENTY and math.prod(extent) > MOST_PADDING * stored:
            raise RunError(
                f"shards of {self.site!r} that make up a tensor",
                f"{stored:,} values of {math.prod(extent):,}",
                "Take them rank by rank: run.rank(0).array(site, step)",
            )
        whole = np.full(extent, padding(dtype), dtype)
        for segment, offset in _placed(segments):
            start, end = _corner(segment, offset, self.of_pass)
            region = tuple(slice(*ends) for ends in zip(start, end, strict=True))
            whole[region] = segment.array.capture(segment.row).reshape(whole[region].shape)
        return whole

    def capture(self, place: int) -> Array:
        """The capture at `place`, with no padding except that of `blocks`."""
        blocks = list(self.blocks(place))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def at(self, step: int) -> Array:
        """The newest capture of a step, without padding."""
        places = np.flatnonzero(self.step == step)
        if not len(places):
            raise RunError(
                f"a step at which {self.site!r} was captured",
                f"step {step}",
                f"There are: {_listed(self.step)}",
            )
        return self.capture(int(places[-1]))


def _placed(segments: Sequence[Segment]) -> Iterator[tuple[Segment, int]]:
    """Each row with its offset on the first axis of its capture. A shard has its own offset; other rows follow one another."""
    end = 0
    for _, batch in itertools.groupby(segments, key=lambda segment: segment.batch):
        start = end
        for segment in batch:
            array, at = segment.array, end
            if array.offset is not None:
                at = start + (int(array.offset[segment.row, 0]) if array.batched else 0)
            yield segment, at
            end = max(end, at + segment.size)


def _corner(segment: Segment, offset: int, of_pass: bool) -> tuple[list[int], list[int]]:
    """Where a shard begins and ends in the tensor that it is a part of."""
    array = segment.array
    assert array.offset is not None
    start, shape = array.offset[segment.row].tolist(), array.shapes[segment.row].tolist()
    if array.batched:
        start[0] = offset
    elif of_pass:
        start, shape = [offset, *start], [1, *shape]
    return start, [n + extent for n, extent in zip(start, shape, strict=True)]


def _share(array: StoredArray, rows: Sequence[tuple[int, int, int]]) -> Share:
    """The share of an array, from the row, place and offset of each of its captures."""
    row, place, offset = (np.array(column) for column in zip(*rows, strict=True))
    whole = np.zeros((len(rows), len(array.shape) - 1), np.intp)
    return Share(array, row, place, offset, whole if array.offset is None else array.offset[row])


def _batch_size(segments: Sequence[Segment]) -> int:
    """The number of rows of a batch: the sum over ranks, or the number that each shard has for the whole batch."""
    shards = {s.batch: s.batch_size for s in segments if s.array.offset is not None}
    return sum(shards.values()) + sum(s.batch_size for s in segments if s.array.offset is None)


def _listed(steps: Array) -> str:
    shown = [str(step) for step in np.unique(steps)]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-6:]])
