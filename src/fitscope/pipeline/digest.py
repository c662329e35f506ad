"""Turns captures into records and samples on the writer thread, and keeps the tensors that the next batch is compared with.

It computes the statistics of several steps at once if they have the same sites, so a step of many small tensors costs little
more than reading them. Most tensors are reduced and freed. Two things stay: the running average of a site, and the previous batch if
a change is watched. Both are bounded by the size of their tensors, for any length of training.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from fitscope.pipeline import replicas, to_record
from fitscope.pipeline.activity import Vector
from fitscope.pipeline.bad_samples import BadSamples
from fitscope.pipeline.derived import Derived
from fitscope.pipeline.handover import SMALL, HostAdapter, ReplicaRows, Shard, Shown
from fitscope.pipeline.joined import Layout, Seen, of_layout, of_vectors
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.to_record import HostTensor
from fitscope.pipeline.troubles import described
from fitscope.plan.wants import LOSS, SAMPLE_LOSS, Want
from fitscope.record import Block, Head, Moment, Record, Samples
from fitscope.reduce import host
from fitscope.reduce.average import Average
from fitscope.sites import TRAIN, Site

Array = np.ndarray[Any, Any]


class Taken(NamedTuple):
    """One step whose stats are computed next."""

    at: Moment
    rows: list[HostTensor]  #: tensors that left the step separately, those of one dtype one after the other
    joined: list[tuple[Layout, Array]]
    activity: Vector | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for steps with the same heads."""
        # The id of a layout, or of the heads of activity, identifies it: `Digest._heads` keeps a step with each. Hashing all
        # their heads could take longer than computing statistics.
        layouts = tuple(id(layout) for layout, _ in self.joined)
        return (*(row.head for row in self.rows), layouts, id(self.activity and self.activity.heads))

    def heads(self) -> tuple[Head, ...]:
        joined = (head for layout, _ in self.joined for head in layout.heads)
        return (*(row.head for row in self.rows), *joined, *(self.activity.heads if self.activity else ()))

    def array(self, index: int) -> Array | None:
        """The tensor of one of the heads, as far as it left the step; None for activity, which is derived."""
        if index < len(self.rows):
            return self.rows[index].array
        index -= len(self.rows)
        for layout, vector in self.joined:
            if index < len(layout.heads):
                return layout.array([vector], 0, index)
            index -= len(layout.heads)
        return None

    def tally(self, into: host.Tally, values: Array) -> None:
        """Counts all values. `values`, one for each head, gets those of scalars."""
        for dtype, some in groupby(self.rows, key=_small):
            arrays = [row.array for row in some]
            if dtype is None or len(arrays) == 1:
                for array in arrays:
                    into.add(array)
            else:  # a copy is cheaper than a call for each
                starts = np.cumsum([0, *(array.size for array in arrays)])
                into.add_all(np.concatenate([array.reshape(-1) for array in arrays]), starts)
        for i, row in enumerate(self.rows):
            if row.head.shape == ():
                values[i] = row.array
        first = len(self.rows)
        for layout, vector in self.joined:
            layout.tally(into, vector)
            values[first + layout.scalars] = vector[layout.starts[layout.scalars]]
            first += len(layout.heads)
        if self.activity is not None:
            into.add_all(self.activity.flat, self.activity.starts)


def _small(row: HostTensor) -> np.dtype[Any] | None:
    return row.array.dtype if row.array.size <= SMALL else None


class Digest:
    """Makes records from the tensors of steps."""

    def __init__(
        self,
        adapter: HostAdapter,
        failed: Callable[[str], None],
        samples: Callable[[], SampleLosses] | None = None,
        unseen: Callable[[str, str | None], None] = lambda site, why: None,  # noqa: ARG005
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        self.averages: dict[str, Average] = {}  #: the averages by site
        self.bad_samples = BadSamples()
        self.lock = threading.Lock()  #: guards the averages, which other threads may read
        self._adapter = adapter
        self._failed = failed
        self._unseen = unseen  # takes the reason why a site is missing; None withdraws it
        self._derived = Derived(adapter, configuration or {}, failed, unseen)
        self._make_samples = samples
        self._samples: SampleLosses | None = None
        self._before: dict[str, deque[tuple[Moment, Array]]] = {}
        self._unaveraged: set[str] = set()
        self._layouts: dict[tuple[bytes, np.dtype[Any], str], Layout] = {}
        self._rows: dict[tuple[Head, ...], tuple[Head, ...]] = {}
        # The heads of each key of steps, so that equal heads are the same object.
        self._heads: dict[tuple[Any, ...], tuple[tuple[Head, ...], Taken]] = {}

    def take(
        self, captures: Iterable[tuple[Moment, Shown]]
    ) -> tuple[list[Block], list[Record], list[Samples]]:
        """The stats, other records and samples of some steps. Steps with the same sites share one block."""
        records: list[Record] = []
        samples: list[Samples] = []
        blocks: list[Block] = []
        seen = (
            Seen(at, shown, [self._layout(vector, layout, shown) for vector, layout in shown.joined])
            for at, shown in captures
        )
        for kind, group in groupby(seen, key=attrgetter("kind")):
            steps = list(group)
            together = self._together(steps) if kind is not None and len(steps) > 1 else None
            if together is not None:
                blocks += together
                continue
            taken: list[Taken] = []
            for step in steps:
                one, more, some = self._take(step)
                taken.append(one)
                records += more
                samples += some
            for key, alike in groupby(taken, key=attrgetter("key")):
                block = self._block(key, list(alike))
                blocks += [] if block is None else [block]
        return blocks, records, samples

    def _together(self, steps: list[Seen]) -> list[Block] | None:
        """The stats of several steps with the same small tensors; None if they must be taken one by one."""
        ats = tuple(step.at for step in steps)
        layouts = [layout for layout, _ in steps[0].joined]
        vectors = [[step.joined[i][1] for step in steps] for i in range(len(layouts))]
        derived = self._derived.of_steps(
            steps[0].shown.in_pass,
            [
                (site, want, np.stack([slot.of(vector) for vector in some]))
                for layout, some in zip(layouts, vectors, strict=True)
                for site, want, slot in layout.more
            ],
            [(some, layout.active) for layout, some in zip(layouts, vectors, strict=True) if layout.active],
        )
        if derived is None:
            return None
        blocks = []
        for layout, some in zip(layouts, vectors, strict=True):
            if layout.heads:
                blocks.append(of_layout(ats, layout, some))
                self.bad_samples.look(blocks[-1], partial(layout.array, some))
        return blocks + [of_vectors(ats, self._one(tuple(table.heads)), table) for table in derived]

    def _one(self, heads: tuple[Head, ...]) -> tuple[Head, ...]:
        """The same heads, as the same object in every block."""
        if heads not in self._rows:
            _bounded(self._rows)
        return self._rows.setdefault(heads, heads)

    def _take(self, step: Seen) -> tuple[Taken, list[Record], list[Samples]]:
        at, shown, joined = step
        records: list[Record] = []
        rows: list[HostTensor] = []
        of_samples: dict[tuple[str, str], Any] = {}
        more = (
            (site, want, slot.of(vector)) for layout, vector in joined for site, want, slot in layout.more
        )
        for site, want, value in chain(shown.single(), more):
            try:
                if isinstance(value, ReplicaRows):
                    value = replicas.together(value, self._adapter, want.samples)
                if site.place == SAMPLE_LOSS:
                    of_samples[site.label, site.suffix] = value
                    continue
                if site.place == LOSS:
                    array = self._adapter.to_numpy(value)
                    if array.ndim:
                        of_samples["loss", ""] = array
                    value = to_record.one_loss(array)
                self._take_one(site, want, value, at, records, rows)
            except Exception as error:  # one bad tensor must not cost the others
                self._failed(f"{site}: {described(error)}")
                self._unseen(site, described(error))
        for layout, vector in joined:
            if layout.active is not None:
                self._derived.take_joined(shown.in_pass, vector, layout.active)
        more_rows, activity = self._derived.rest(shown.in_pass)
        rows = sorted(rows + more_rows, key=lambda row: row.head.dtype)
        samples = (
            self._taken_apart(at, shown.in_pass, of_samples)
            if SAMPLE_LOSS in shown.wants and of_samples
            else []
        )
        records.extend(
            _record(Site("sample_loss").within(shown.in_pass), at, some.loss)
            for some in samples
            if some.loss is not None
        )
        return Taken(at, rows, joined, activity), records, samples

    def _take_one(
        self, site: Site, want: Want, value: Any, at: Moment, records: list[Record], rows: list[HostTensor]
    ) -> None:
        """Adds one tensor as wanted: as a record, or as a row whose stats are computed later."""
        row: HostTensor | None = None
        if isinstance(value, dict):
            if want.stats or want.tensor:
                records.append(to_record.reduced(site, want, value, at, self._adapter))
        elif want.stats:
            row = to_record.seen(site, want, value, self._adapter)
            host.check(row.array.dtype)
            rows.append(row)
        if want.tensor and not isinstance(value, dict):
            tensor = to_record.kept(site, want, value, at, self._adapter)
            records.extend([] if tensor is None else [tensor])
        if want.mean and site not in self._unaveraged:
            self._average(site, value, at)
        if want.change or want.reference:
            changed = self._compare(site, want, self._adapter.to_numpy(value), at)
            # parts of two tensors do not give the angle between them
            records.extend(replace(one, cosine=None) if isinstance(value, Shard) else one for one in changed)
        if want.derived and isinstance(value, Shard):
            if not any(value.offset):  # one process derives them, from its own samples and units
                self._derived.take(site, want, self._adapter.to_numpy(value), None)
        elif want.derived:
            self._derived.take(site, want, value, row)

    def _block(self, key: tuple[Any, ...], steps: list[Taken]) -> Block | None:
        """The stats of steps with the same heads."""
        known = self._heads.get(key)
        if known is None:
            _bounded(self._heads)
            known = self._heads[key] = (
                steps[0].heads(),
                steps[0],
            )  # while this dict holds the layout, no other has its id
        heads = known[0]
        if not heads:
            return None
        tally = host.Tally(len(steps) * len(heads))
        values = np.full((len(steps), len(heads)), np.nan)
        for step, into in zip(steps, values, strict=True):
            step.tally(tally, into)
        block = Block(tuple(step.at for step in steps), heads, tally.columns(), values.reshape(-1))
        self.bad_samples.look(block, lambda step, head: steps[step].array(head))
        return block

    def _layout(self, vector: Any, layout: Any, shown: Shown) -> tuple[Layout, Array]:
        array, numbers = self._adapter.to_numpy(vector), self._adapter.to_numpy(layout)
        key = numbers.tobytes(), array.dtype, shown.in_pass
        known = self._layouts.get(key)
        if known is None or known.wants is not shown.wants:
            _bounded(self._layouts)
            known = self._layouts[key] = Layout(numbers, array.dtype.name, shown)
            known.active = self._derived.joined(known.layers)
        return known, array

    def _taken_apart(self, at: Moment, in_pass: str, shown: dict[tuple[str, str], Any]) -> list[Samples]:
        try:
            if self._samples is None and self._make_samples is not None:
                self._samples = self._make_samples()
            return self._samples.of(at, in_pass, shown) if self._samples else []
        except Exception as error:
            site = Site("sample_loss").within(in_pass)
            self._failed(f"{site}: {described(error)}")
            self._unseen(site, described(error))
            return []

    def _average(self, site: Site, value: Any, at: Moment) -> None:
        try:
            with self.lock:
                average = self.averages.setdefault(site, Average.empty())
                to_record.add_to_average(average, site, value, at, self._adapter)
        except ValueError as error:  # the next step would fail alike
            self._unaveraged.add(site)
            self._failed(f"{site} has no average: {error}")

    def _compare(self, site: Site, want: Want, array: Array, at: Moment) -> list[Record]:
        kept = self._before.setdefault(
            site, deque(maxlen=2)
        )  # only later a step may turn out to be the last one
        found = [then for moment, then in kept if _follows(site, moment, at)] if want.change else []
        if want.reference:
            kept.append((at, array))
        if want.change:
            self._unseen(
                site.change(), None if found else "there was no batch just before it to compare with"
            )
        return [_change(site, found[-1], array, at)] if found else []


MOST_KNOWN = 100  #: layouts; a training on sequences of many lengths has more


def _bounded(known: dict[Any, Any]) -> None:
    if len(known) >= MOST_KNOWN:
        known.clear()


def _follows(site: Site, before: Moment, after: Moment) -> bool:
    if site.in_pass == TRAIN:
        return after.step == before.step + 1
    return after.step == before.step and after.batch == before.batch + 1


def _change(site: Site, before: Array, after: Array, at: Moment) -> Record:
    """The change between two batches, over the samples that both have."""
    if site.batched and after.ndim and before.ndim:
        n = min(len(before), len(after))
        before, after = before[:n], after[:n]
    if before.shape != after.shape:
        raise ValueError(f"a change is between tensors of one shape, not of {before.shape} and {after.shape}")
    wide = np.float64 if after.dtype.kind in "iub" else np.result_type(after.dtype, np.float32)
    x, y = before.astype(wide), after.astype(wide)
    moved = np.abs(y - x)
    record = _record(site.change(), at, moved, batched=site.batched and moved.ndim > 0)
    length = float(np.linalg.norm(x.ravel()) * np.linalg.norm(y.ravel()))
    cosine = float(np.vdot(x.ravel(), y.ravel()) / length) if length else None
    return Record(record.site, at, record.shape, record.dtype, record.stats, None, record.batched, cosine)


def _record(site: Site, at: Moment, array: Array, *, batched: bool = True) -> Record:
    return Record(site, at, array.shape, array.dtype.name, host.reduce(array), batched=batched)
