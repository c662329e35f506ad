"""The record of one site at one step: the data that passes from capture to store to reader.

The capturing side creates records, the store keeps them, the reading side returns them. Kinds of sites are data (the site's name), not
methods: a store has one `write`. A `Block` holds the stats of all sites of some steps as columns, because creating an object for each of
hundreds of small layers is expensive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from fitscope.reduce.stats import Columns, Stats, buckets
from fitscope.sites import Site


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of a record: step, epoch, batch and time.

    All batches of one pass (`sites.PASSES`) share one step: that of the weights they were computed with.
    """

    step: int  #: the optimizer's iteration count before the step
    epoch: int
    batch: int  #: index of the batch within its epoch, or within its pass
    time: float  #: seconds since 1970, when the step was handed over


@dataclass(frozen=True, slots=True)
class Record:
    """The values of one site at one step.

    `shape` and `dtype` describe the whole tensor in the step. `tensor` holds the kept values in that dtype; if only the first
    samples are kept, its first axis is shorter than `shape[0]`. `tensor` does not change after the record is created.
    """

    site: Site
    at: Moment
    shape: tuple[int, ...]
    dtype: str
    stats: Stats | None = None
    tensor: np.ndarray[Any, Any] | None = None
    batched: bool = True  #: the first axis of the tensor counts samples
    cosine: float | None = None  #: cosine similarity with the previous batch, if it was watched
    error: float | None = None  #: the error bound of a derived value; None: the value was captured
    over: int | None = None  #: the number of steps that a derived value is the mean of
    offset: tuple[int, ...] | None = (
        None  #: where `tensor` begins in the whole, if this process holds a part of it
    )


class Head(NamedTuple):
    """The facts of a record about a tensor, without its values."""

    site: Site
    shape: tuple[int, ...]
    dtype: str
    batched: bool


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The stats of many sites at one step or at several, one row each: all sites of the first step, then of the next.

    Its arrays do not change.
    """

    ats: tuple[Moment, ...]
    heads: tuple[Head, ...]  #: the heads of each step; ideally the same object in every block
    stats: Columns
    values: np.ndarray[tuple[int], np.dtype[np.float64]]  #: the tensor itself if it is a scalar
    cosines: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None  #: NaN if missing

    def __len__(self) -> int:
        return len(self.ats) * len(self.heads)

    def each(self) -> Iterator[Block]:
        """A block for each step."""
        if len(self.ats) == 1:
            yield self
            return
        for k, at in enumerate(self.ats):
            rows = slice(k * len(self.heads), (k + 1) * len(self.heads))
            cosines = None if self.cosines is None else self.cosines[rows]
            yield Block((at,), self.heads, self.stats.part(rows), self.values[rows], cosines)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Iterator[Block]:
        """The stats of these records, a block for each step."""
        some = (record for record in records if record.stats is not None)
        for at, group in groupby(some, key=attrgetter("at")):
            rows = list(group)
            yield cls(
                (at,),
                tuple(Head(row.site, row.shape, row.dtype, row.batched) for row in rows),
                Columns.of([row.stats for row in rows if row.stats is not None]),
                np.array([scalar(row) for row in rows], np.float64),  # None becomes NaN
                np.array([math.nan if row.cosine is None else row.cosine for row in rows], np.float64),
            )

    def records(self) -> list[Record]:
        """A record for each row."""
        cosines = (
            [None if math.isnan(c) else c for c in self.cosines.tolist()] if self.cosines is not None else []
        )
        rows = zip(
            product(self.ats, self.heads), self.stats.rows(), cosines or repeat(None, len(self)), strict=True
        )
        return [
            Record(head.site, at, head.shape, head.dtype, stats, None, head.batched, cosine)
            for (at, head), stats, cosine in rows
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """One scalar site over many steps, one row each. Its arrays do not change."""

    head: Head
    steps: np.ndarray[tuple[int], np.dtype[np.int64]]
    epochs: np.ndarray[tuple[int], np.dtype[np.int64]]
    batches: np.ndarray[tuple[int], np.dtype[np.int64]]
    times: np.ndarray[tuple[int], np.dtype[np.float64]]
    values: np.ndarray[tuple[int], np.dtype[np.float64]]  #: NaN if unknown: `errors` is infinite there
    errors: np.ndarray[tuple[int], np.dtype[np.float64]]  #: the error bound of each value
    over: np.ndarray[tuple[int], np.dtype[np.int64]]  #: the number of steps that the value is the mean of

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def columns(self) -> Columns:
        """The stats of each value. An unknown value counts as no element."""
        values, known = self.values, ~(np.isnan(self.values) & np.isinf(self.errors))
        finite = np.isfinite(values)
        nans, infs = np.isnan(values) & known, np.isinf(values)
        counts = np.stack([known, values == 0, finite & (values < 0), nans, infs], axis=1).astype(np.int64)
        some = np.where(finite, values, np.nan)
        moments = np.stack([some, np.abs(some * 0), some + 0.0, some + 0.0, np.abs(some)], axis=1)
        return Columns(
            counts, moments, finite.astype(np.int64), buckets(values[finite]), np.ones(finite.sum(), np.int64)
        )

    def records(self) -> list[Record]:
        """A record for each row."""
        at = zip(
            self.steps.tolist(), self.epochs.tolist(), self.batches.tolist(), self.times.tolist(), strict=True
        )
        return [
            Record(self.head.site, Moment(*moment), (), self.head.dtype, stats, None, False, None, error, over)
            for moment, stats, error, over in zip(
                at, self.columns.rows(), self.errors.tolist(), self.over.tolist(), strict=True
            )
        ]  # fmt: skip


def scalar(record: Record) -> float | None:
    """The value of a scalar tensor. If only stats are kept, they determine it, except the sign of an infinity."""
    if record.shape != () or record.stats is None:
        return None
    if record.tensor is not None:
        return float(np.real(record.tensor))
    if record.stats.finite:
        return record.stats.min
    return math.inf if record.stats.infs else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples of one batch, for one output. A field that was not requested is None.

    The arrays do not change after the object is created.
    """

    at: Moment
    in_pass: str  #: `TRAIN`, or one of `PASSES`
    output: str = ""  #: the name of the output, if the model has several
    ids: Sequence[str] | None = None  #: one for each sample
    loss: np.ndarray[Any, Any] | None = None  #: (n,) float64
    weight: np.ndarray[Any, Any] | None = None  #: (n,) float64
    target: np.ndarray[Any, Any] | None = None  #: (n, k)
    prediction: np.ndarray[Any, Any] | None = None  #: (n, m)

    def __len__(self) -> int:
        columns = (self.ids, self.loss, self.weight, self.target, self.prediction)
        return next((len(column) for column in columns if column is not None), 0)

    @property
    def site(self) -> Site:
        """The name under which `run.lost` counts lost samples."""
        return Site("samples").within(self.in_pass)
