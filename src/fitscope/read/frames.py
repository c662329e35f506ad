"""From rows of the stats table to what people hold in their hands: data frames and histograms.

Rows of several ranks about one moment become one. What is made of samples is merged with the same sums as
`Stats.merge`, on whole columns; what is not (weights, scalars) is the same tensor in every rank, and the
first speaks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

from fitscope.reduce.stats import ZERO_BUCKET, edges

MOMENT = ("step", "epoch", "batch")

_SUMS = ("count", "zeros", "negatives", "nans", "infs")
_WEIGHTED = ("mean", "std", "rms")


def columns_for(stat: str, *, ranks: bool) -> tuple[str, ...]:
    """The columns it takes to give one stat, and to merge several ranks if there are any."""
    if not ranks:
        return ("step", stat)
    extra = ("count", "nans", "infs", "mean") if stat in _WEIGHTED else ()
    return tuple(dict.fromkeys((*MOMENT, "rank", "batched", stat, *extra)))


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A table as a data frame."""
    frame: pd.DataFrame = plain(table).to_pandas()
    return frame


def plain(table: pa.Table) -> pa.Table:
    """Without dictionaries: pandas would make categories of them, which surprise in a groupby."""
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, table.column_names)


def by_step(table: pa.Table) -> pd.DataFrame:
    """The rows of one site, one for each moment, indexed by step."""
    frame = frame_of(table)
    if "rank" in frame and frame["rank"].nunique() > 1:
        frame = merge_ranks(frame)
    return frame.sort_values("step", kind="stable").set_index("step")


def merge_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each moment, from the rows of several ranks."""
    frame = frame.sort_values([*MOMENT, "rank"], kind="stable", ignore_index=True)
    place = _places(frame)
    rows = frame.groupby(place)
    merged = rows.first()
    batched = merged["batched"].to_numpy(bool)

    def take(column: str, values: Any) -> None:
        merged[column] = merged[column].where(~batched, values)

    if "mean" in frame:
        finite = frame["count"] - frame["nans"] - frame["infs"]
        total = finite.groupby(place).sum()

        def weighted(values: Any) -> Any:
            sums = (values.where(finite > 0, 0.0) * finite).groupby(place).sum()
            return sums / total.where(total > 0)

        mean = weighted(frame["mean"])
        if "std" in frame:
            apart = frame["mean"] - mean.to_numpy()[place]
            take("std", np.sqrt(weighted(frame["std"] ** 2 + apart**2)))
        if "rms" in frame:
            take("rms", np.sqrt(weighted(frame["rms"] ** 2)))
        take("mean", mean)
    for column in set(_SUMS).intersection(frame):
        take(column, rows[column].sum())
    if "min" in frame:
        take("min", rows["min"].min())
    if "max" in frame:
        take("max", rows["max"].max())
    return merged


def histogram(table: pa.Table, name: str) -> xr.DataArray:
    """The histograms of one site as counts (step, bucket), from the lists of non-empty buckets."""
    frame = frame_of(table.select([*MOMENT, "rank"]))
    place = _places(frame)
    moments = frame.assign(place=place).drop_duplicates("place").sort_values("place")
    lengths, ids = _flat(table["buckets"])
    _, counts = _flat(table["counts"])
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    dense = np.zeros((len(moments), high - low + 1), np.int64)
    np.add.at(dense, (np.repeat(place, lengths), ids.astype(np.int64) - low), counts)  # ranks add up
    buckets = np.arange(low, high + 1)
    return xr.DataArray(
        dense,
        dims=("step", "bucket"),
        coords={
            "step": moments["step"].to_numpy(),
            "epoch": ("step", moments["epoch"].to_numpy()),
            "batch": ("step", moments["batch"].to_numpy()),
            "bucket": buckets,
            "edge": ("bucket", edges()[buckets + ZERO_BUCKET]),
        },
        name=name,
    )


def _places(frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    """For each row the number of its moment, by step; what one rank saw twice is two moments."""
    again = frame.groupby([*MOMENT, "rank"]).cumcount()
    return frame.assign(again=again).groupby([*MOMENT, "again"]).ngroup().to_numpy()


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A column of lists as the length of each list and all their items."""
    lists = column.combine_chunks()
    return np.diff(lists.offsets.to_numpy()), lists.flatten().to_numpy(zero_copy_only=False)
