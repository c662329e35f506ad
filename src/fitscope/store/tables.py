"""The stats table of one rank: rows gather in memory and leave as one immutable Parquet part per flush.

A part is visible whole or not at all, never changes afterwards, and is read by every Parquet tool. Its rows
are sorted by site, in which order they compress best (about 56 bytes a row, histogram included) and one
site is one stretch of rows. Each page carries a checksum.

A part that could not be put is kept as it is and put again later, under the same name and with the same
bytes; meanwhile rows gather up to a bound and are refused beyond it (`add` says so), so a full disk costs
neither memory nor the order of things. Not thread-safe: one writer, one thread.
"""

from __future__ import annotations

import io
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fitscope.record import Record
from fitscope.reduce.stats import BUCKETS, NAMES, ZERO_BUCKET, Stats
from fitscope.store._base import Objects
from fitscope.store.schema import STATS_SCHEMA, part_name

MOST_ROWS = 200_000  #: rows that may wait in memory, about 50 MB
PACK_ROWS = 512  #: histograms kept in their wide form, 4 kB each, before they are packed
ROW_BYTES = 150  #: a row on disk, guessed high
PART_BYTES = 4_000  #: what a part costs beside its rows

_numbers = attrgetter(*NAMES)

# Chosen by measurement (80 sites × 100 steps): floats split into byte planes, small integers as deltas, the
# histograms' counts in byte planes again: 56 bytes a row instead of 66 with pyarrow's defaults, and faster.
_FLOATS = ("time", "value", "mean", "std", "min", "max", "rms", "counts.list.element")
_INTEGERS = ("step", "epoch", "batch", "count", "zeros", "negatives", "nans", "infs", "buckets.list.element")
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["site", "dtype"],
    "column_encoding": dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT")
    | dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED"),
    "write_statistics": ["step", "site"],  # what one can skip parts by; the rest would only fill the footer
    "store_schema": False,  # 2.7 kB a part to tell Arrow what Parquet's own schema says
    "write_page_checksum": True,
}

Row = tuple[Any, ...]


class StatsTable:
    """The rows of one rank on their way into parts."""

    def __init__(self, objects: Objects, attempt: int, rank: int) -> None:
        self._objects = objects
        self._origin = (attempt, rank)
        self._rows: list[Row] = []
        self._wide: list[np.ndarray[Any, Any]] = []  # histograms of the newest rows
        self._packed: list[
            tuple[np.ndarray[Any, Any], ...]
        ] = []  # those of the rows before: lengths, ids, counts
        self._part: bytes | None = None  # encoded, not yet put
        self._part_rows = 0
        self.parts = 0
        self.rows = 0

    @property
    def waiting(self) -> int:
        """The rows that are not in the store yet."""
        return len(self._rows) + self._part_rows

    def add(self, record: Record, stats: Stats) -> bool:
        """Takes a row; False if too many are waiting already."""
        if len(self._rows) + self._part_rows >= MOST_ROWS:
            return False
        value = _value(record, stats) if record.shape == () else None
        at = record.at
        where = (record.site, at.step, at.epoch, at.batch, at.time)
        self._rows.append((*where, record.dtype, record.shape, record.batched, value, *_numbers(stats)))
        self._wide.append(stats.hist)
        if len(self._wide) >= PACK_ROWS:
            self._pack()
        return True

    def next_part(self) -> bytes | None:
        """The bytes of the next part to put: the one that failed before, else all rows so far, else None."""
        if self._part is None and self._rows:
            self._pack()
            self._part, self._part_rows = self._encode(), len(self._rows)
            self._rows, self._packed = [], []
        return self._part

    def put(self) -> None:
        """Puts the part given by `next_part`. If that raises, the part is still the next one."""
        assert self._part is not None
        self._objects.put(part_name(self.parts), self._part)
        self.parts += 1
        self.rows += self._part_rows
        self._part, self._part_rows = None, 0

    def discard(self) -> dict[str, int]:
        """Gives up all that waits. Returns how many rows of each site those were."""
        lost: dict[str, int] = {}
        if self._part is not None:
            sites = pq.read_table(io.BytesIO(self._part), columns=["site"])["site"]
            for item in sites.value_counts().to_pylist():
                lost[item["values"]] = item["counts"]
        for row in self._rows:
            lost[row[0]] = lost.get(row[0], 0) + 1
        self._part, self._part_rows = None, 0
        self._rows, self._wide, self._packed = [], [], []
        return lost

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

    def _encode(self) -> bytes:
        columns: list[Any] = list(zip(*self._rows, strict=True))
        sites, steps, epochs, batches, times, dtypes, shapes, batched, values, *numbers = columns
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
            **{name: column(items, name) for name, items in zip(NAMES, numbers, strict=True)},
            "buckets": ids,
            "counts": counts,
        }
        sink = io.BytesIO()
        pq.write_table(
            pa.table([arrays[name] for name in STATS_SCHEMA.names], STATS_SCHEMA.names), sink, **_PARQUET
        )
        return sink.getvalue()

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


def _value(record: Record, stats: Stats) -> float:
    """The scalar itself. Without the tensor the stats have it, except for the sign of an infinity."""
    if record.tensor is not None:
        return float(np.real(record.tensor))
    if stats.finite:
        return stats.min
    return np.inf if stats.infs else np.nan
