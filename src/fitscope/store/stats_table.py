"""The stats table of one rank: the stats of each site and step (see `parts`).

The rows of a part are sorted by site. In this order they compress best (54 to 60 bytes a row, with the histogram), and each site
is one stretch of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fitscope.record import Block, Head, Stretch
from fitscope.reduce.stats import COUNTS, MOMENTS, Columns
from fitscope.sites import Site
from fitscope.store.parts import Encoding, Rows
from fitscope.store.schema import STATS, STATS_SCHEMA
from fitscope.store.tail import sort

ROW_MEMORY = 250  #: rough bytes of a row in memory
ROW_BYTES = 150  #: bytes of a row on disk, estimated high
STRETCH_BYTES = 40  #: likewise, for one scalar over many steps

# Chosen by measurement (82 sites × 40 to 3,000 steps, `bench/growth.py`): floats split into byte planes, small integers
# as deltas, the histograms' counts in byte planes again: 54 to 60 bytes a row, fewer than with pyarrow's defaults, and
# faster. Buckets stay as they are: rows of a site repeat most of them, which zstd compresses well.
_FLOATS = ("time", "value", "mean", "std", "min", "max", "rms", "cosine", "error", "counts.list.element")
_INTEGERS = ("step", "epoch", "batch", "count", "zeros", "negatives", "nans", "infs", "over")
_DICTIONARIES = ["site", "kind", "layer", "weight", "pass", "dtype"]
_ENCODINGS = dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT") | dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED")
# Only these have min and max in the footer: readers skip parts by them, and more would enlarge the footer.
_STATISTICS = ["step", "site"]


class StatsRows(Rows):
    """Rows of the stats table."""

    name = STATS
    by = "site"
    encoding = Encoding(_DICTIONARIES, _ENCODINGS, _STATISTICS)

    def __init__(self, attempt: int, rank: int) -> None:
        self._origin = (attempt, rank)
        self._blocks: list[Block] = []
        self._stretches: list[Stretch] = []
        self._length = self._stretched = 0

    def __len__(self) -> int:
        return self._length + self._stretched

    @property
    def memory(self) -> int:
        return len(self) * ROW_MEMORY

    @property
    def disk_bytes(self) -> int:
        return self._length * ROW_BYTES + self._stretched * STRETCH_BYTES

    def add(self, block: Block) -> None:
        """Takes the rows of one step or several."""
        self._blocks.append(block)
        self._length += len(block)

    def add_stretch(self, stretch: Stretch) -> None:
        """Takes the rows of one site over many steps."""
        self._stretches.append(stretch)
        self._stretched += len(stretch)

    def sites(self) -> Counter[str]:
        found: Counter[str] = Counter()
        times: dict[int, int] = {}  # many steps share the same heads
        for block in self._blocks:
            times[id(block.heads)] = times.get(id(block.heads), 0) + len(block.ats)
        for block in self._blocks:
            steps = times.pop(id(block.heads), 0)
            for head in block.heads if steps else ():
                found[head.site] += steps
        for stretch in self._stretches:
            found[stretch.head.site] += len(stretch)
        return found

    def clear(self) -> None:
        self._blocks, self._stretches, self._length, self._stretched = [], [], 0, 0

    def table(self) -> pa.Table:
        """All rows, sorted by site and then by arrival. There must be at least one."""
        tables = [self._of_blocks()] if self._blocks else []
        tables += [self._of_stretch(stretch) for stretch in self._stretches]
        return tables[0] if len(tables) == 1 else sort(pa.concat_tables(tables).unify_dictionaries(), "site")

    def _of_stretch(self, stretch: Stretch) -> pa.Table:
        """The rows of one site over many steps."""
        number, head, stats = len(stretch), stretch.head, stretch.columns
        moments = (stretch.steps, stretch.epochs, stretch.batches, stretch.times)
        site = Site.parse(head.site)
        zeros = pa.array(np.zeros(number, np.int32))

        def same(value: Any, kind: pa.DataType) -> pa.Array:
            return pa.array([value], kind).take(zeros)

        columns = {
            **dict(zip(_MOMENT, moments, strict=True)),
            **dict(zip(("attempt", "rank"), (np.full(number, n) for n in self._origin), strict=True)),
            "site": pa.DictionaryArray.from_arrays(zeros, pa.array([site], pa.string())),
            **{name: column.take(zeros) for name, column in facts([site]).items()},
            "dtype": pa.array([head.dtype]).dictionary_encode().take(zeros),
            "shape": same(head.shape, pa.list_(pa.int64())),
            "batched": same(head.batched, pa.bool_()),
            "value": stretch.values,
            "cosine": pa.nulls(number, pa.float64()),
            "error": stretch.errors,
            "over": stretch.over,
            **_of_stats([stats]),
        }
        return pa.table(
            [_array(columns[field.name], field.type) for field in STATS_SCHEMA], STATS_SCHEMA.names
        )

    def _of_blocks(self) -> pa.Table:
        blocks = self._blocks
        sizes = [len(block.heads) for block in blocks for _ in block.ats]
        codes, heads = self._heads()
        moments = [
            np.repeat([getattr(at, name) for block in blocks for at in block.ats], sizes) for name in _MOMENT
        ]
        values = np.concatenate([block.values for block in blocks])
        cosines = np.concatenate([_cosines(block) for block in blocks])
        columns = {
            **dict(zip(_MOMENT, moments, strict=True)),
            **dict(zip(("attempt", "rank"), (np.full(len(codes), n) for n in self._origin), strict=True)),
            **heads,
            "value": pa.array(values, mask=_not_scalar(heads["shape"])),
            "cosine": pa.array(cosines, mask=np.isnan(cosines)),
            "error": pa.nulls(len(codes), pa.float64()),
            "over": pa.nulls(len(codes), pa.int32()),
            **_of_stats([block.stats for block in blocks]),
        }
        arrays = [_array(columns[field.name], field.type) for field in STATS_SCHEMA]
        return pa.table(arrays, STATS_SCHEMA.names).take(pa.array(np.argsort(codes, kind="stable")))

    def _heads(self) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """For each row, the place of its site in name order, and the columns that identify its tensor."""
        known: dict[Head, int] = {}
        of: dict[int, Any] = {}  # the same few tuples come again at every step
        rows = []
        for block in self._blocks:
            if id(block.heads) not in of:
                of[id(block.heads)] = np.array([known.setdefault(head, len(known)) for head in block.heads])
            rows += [of[id(block.heads)]] * len(block.ats)
        places = np.concatenate(rows)
        names = sorted({Site.parse(head.site) for head in known})
        code = {name: index for index, name in enumerate(names)}
        codes = np.array([code[Site.parse(head.site)] for head in known], np.int32)[places]
        shapes = pa.array([head.shape for head in known], pa.list_(pa.int64()))
        return codes, {
            "site": pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())),
            **{name: column.take(pa.array(codes)) for name, column in facts(names).items()},
            "dtype": pa.array([head.dtype for head in known]).dictionary_encode().take(pa.array(places)),
            "shape": shapes.take(pa.array(places)),
            "batched": np.array([head.batched for head in known])[places],
        }


def facts(sites: Iterable[str]) -> dict[str, pa.DictionaryArray]:
    """The columns with the facts of sites, one row each."""
    known = [Site.parse(site) for site in sites]
    columns = {
        "kind": [site.kind for site in known],
        "layer": [site.layer or None for site in known],
        "weight": [site.weight or None for site in known],
        "pass": [site.in_pass for site in known],
    }
    return {name: pa.array(column, pa.string()).dictionary_encode() for name, column in columns.items()}


_MOMENT = ("step", "epoch", "batch", "time")


def _of_stats(stats: Sequence[Columns]) -> dict[str, Any]:
    """The columns of the stats."""
    lengths, ids, tallies = (
        np.concatenate([getattr(each, name) for each in stats]) for name in ("lengths", "buckets", "tallies")
    )
    edges = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return {
        **dict(zip(COUNTS, np.concatenate([each.counts for each in stats]).T, strict=True)),
        **dict(zip(MOMENTS, np.concatenate([each.moments for each in stats]).T, strict=True)),
        "buckets": pa.ListArray.from_arrays(edges, pa.array(ids, pa.int16())),
        "counts": pa.ListArray.from_arrays(edges, pa.array(tallies, pa.int64())),
    }


def _cosines(block: Block) -> np.ndarray[Any, Any]:
    return np.full(len(block), np.nan) if block.cosines is None else block.cosines


def _not_scalar(shapes: pa.Array) -> np.ndarray[Any, Any]:
    """Whether each tensor is not a scalar."""
    return np.asarray(pc.list_value_length(shapes)) > 0


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.array(column.astype(kind.to_pandas_dtype(), copy=False), kind)
