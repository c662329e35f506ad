"""The stats table of one rank: what is known about the tensor at each site and step (see `parts`).

The rows of a part are sorted by site, in which order they compress best (about 56 bytes a row, histogram
included) and one site is one stretch of rows.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.record import Record
from fitscope.reduce.stats import BUCKETS, NAMES, ZERO_BUCKET, Stats
from fitscope.store.parts import Rows, parquet
from fitscope.store.schema import STATS, STATS_SCHEMA

PACK_ROWS = 512  #: histograms kept in their wide form, 4 kB each, before they are packed
ROW_MEMORY = 250  #: bytes of a row in memory, about
ROW_BYTES = 150  #: a row on disk, guessed high

_numbers = attrgetter(*NAMES)

# Chosen by measurement (80 sites × 100 steps): floats split into byte planes, small integers as deltas, the
# histograms' counts in byte planes again: 56 bytes a row instead of 66 with pyarrow's defaults, and faster.
_FLOATS = ("time", "value", "mean", "std", "min", "max", "rms", "cosine", "counts.list.element")
_INTEGERS = ("step", "epoch", "batch", "count", "zeros", "negatives", "nans", "infs", "buckets.list.element")
_DICTIONARIES = ["site", "dtype"]
_ENCODINGS = dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT") | dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED")
_STATISTICS = ["step", "site"]  # what one can skip parts by; the rest would only fill the footer

Row = tuple[Any, ...]


class StatsRows(Rows):
    """Rows of the stats table."""

    name = STATS

    def __init__(self, attempt: int, rank: int) -> None:
        self._origin = (attempt, rank)
        self._rows: list[Row] = []
        self._wide: list[np.ndarray[Any, Any]] = []  # histograms of the newest rows
        self._packed: list[
            tuple[np.ndarray[Any, Any], ...]
        ] = []  # those of the rows before: lengths, ids, counts

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def memory(self) -> int:
        return len(self._rows) * ROW_MEMORY

    @property
    def disk_bytes(self) -> int:
        return len(self._rows) * ROW_BYTES

    def add(self, record: Record, stats: Stats) -> None:
        """Takes a row."""
        value = scalar(record, stats)
        at = record.at
        where = (record.site, at.step, at.epoch, at.batch, at.time)
        about = (record.dtype, record.shape, record.batched, value, record.cosine)
        self._rows.append((*where, *about, *_numbers(stats)))
        self._wide.append(stats.hist)
        if len(self._wide) >= PACK_ROWS:
            self._pack()

    def sites(self) -> Counter[str]:
        return Counter(map(itemgetter(0), self._rows))

    def clear(self) -> None:
        self._rows, self._wide, self._packed = [], [], []

    def _pack(self) -> None:
        """Turns wide histograms into their non-empty buckets, many at once."""
        if not self._wide:
            return
        wide = np.concatenate(self._wide).reshape(len(self._wide), BUCKETS)
        self._wide = []
        used = np.flatnonzero(wide.any(axis=0))  # few of the 513: look closer only at these
        wide = wide[:, used]
        row, place = np.nonzero(wide)
        lengths = np.bincount(row, minlength=len(wide))
        self._packed.append((lengths, (used[place] - ZERO_BUCKET).astype(np.int16), wide[row, place]))

    def encode(self) -> bytes:
        return parquet(self.table(), _DICTIONARIES, _ENCODINGS, _STATISTICS)

    def table(self) -> pa.Table:
        """All rows, sorted by site and within a site as they came. There must be some."""
        self._pack()
        columns: list[Any] = list(zip(*self._rows, strict=True))
        sites, steps, epochs, batches, times, dtypes, shapes, batched, values, cosines, *numbers = columns
        names = sorted(set(sites))
        code = {name: index for index, name in enumerate(names)}
        codes = np.fromiter(map(code.__getitem__, sites), np.int32, len(sites))
        order = np.argsort(codes, kind="stable")
        ids, counts = self._histograms(order)

        def column(items: Any, field: str) -> pa.Array:
            kind = STATS_SCHEMA.field(field).type
            return pa.array(np.array(items, kind.to_pandas_dtype())[order], kind)

        def column_of(items: Any, kind: pa.DataType) -> pa.Array:
            return pa.array([items[index] for index in order], kind)

        arrays = {
            "step": column(steps, "step"),
            "epoch": column(epochs, "epoch"),
            "batch": column(batches, "batch"),
            "time": column(times, "time"),
            "attempt": pa.repeat(pa.scalar(self._origin[0], pa.int16()), len(sites)),
            "rank": pa.repeat(pa.scalar(self._origin[1], pa.int32()), len(sites)),
            "site": pa.DictionaryArray.from_arrays(codes[order], pa.array(names, pa.string())),
            "dtype": column_of(dtypes, pa.string()).dictionary_encode(),
            "shape": column_of(shapes, pa.list_(pa.int64())),
            "batched": column(batched, "batched"),
            "value": column_of(values, pa.float64()),
            "cosine": column_of(cosines, pa.float64()),
            **{name: column(items, name) for name, items in zip(NAMES, numbers, strict=True)},
            "buckets": ids,
            "counts": counts,
        }
        return pa.table([arrays[name] for name in STATS_SCHEMA.names], STATS_SCHEMA.names)

    def _histograms(self, order: np.ndarray[Any, Any]) -> tuple[pa.Array, pa.Array]:
        """The two list columns of all packed histograms, rows in `order`."""
        lengths, ids, counts = (np.concatenate(pieces) for pieces in zip(*self._packed, strict=True))
        starts = np.cumsum(lengths) - lengths
        lengths = lengths[order]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        take = np.repeat(starts[order] - offsets[:-1], lengths) + np.arange(offsets[-1])
        edges = pa.array(offsets, pa.int32())
        return (
            pa.ListArray.from_arrays(edges, pa.array(ids[take], pa.int16())),
            pa.ListArray.from_arrays(edges, pa.array(counts[take], pa.int64())),
        )


def scalar(record: Record, stats: Stats) -> float | None:
    """The tensor itself where it is a scalar. Without it the stats have it, except for the sign of an infinity."""
    if record.shape != ():
        return None
    if record.tensor is not None:
        return float(np.real(record.tensor))
    if stats.finite:
        return stats.min
    return np.inf if stats.infs else np.nan
