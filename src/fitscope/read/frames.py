"""Converts rows of the stats table to data frames and histograms.

Rows of several ranks at one moment become one. Statistics over samples are merged with the same sums as `Stats.merge`, on whole columns.
Other values (weights, scalars) are the same on every rank, so the first rank is used; unless ranks hold shards of one tensor, which are
merged too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import xarray as xr

from fitscope.reduce.stats import NAMES, ZERO_BUCKET, edges

MOMENT = ("step", "epoch", "batch")
EPOCH = ("captures", "step", "time", *NAMES, "cosine")  #: the columns over an epoch
SAMPLE = (
    "step", "epoch", "batch", "sample", "pass", "output", "id", "loss", "weight", "target", "prediction",
    "time",
)  # fmt: skip

_SUMS = ("count", "zeros", "negatives", "nans", "infs")
_WEIGHTED = ("mean", "std", "rms")


def columns_for(stat: str, *, ranks: bool, of_pass: bool) -> tuple[str, ...]:
    """The columns needed for one stat, and for merging ranks if there are several."""
    if not ranks:
        return ("step", "batch", stat) if of_pass else ("step", stat)
    extra = ("count", "nans", "infs", "mean") if stat in _WEIGHTED else ()
    return tuple(dict.fromkeys((*MOMENT, "rank", "batched", stat, *extra)))


def frame_of(table: pa.Table) -> pd.DataFrame:
    """Converts a table to a data frame."""
    frame: pd.DataFrame = plain(table).to_pandas()
    return frame


def plain(table: pa.Table) -> pa.Table:
    """Removes dictionary encoding, which pandas would turn into categories."""
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, table.column_names)


def by_step(table: pa.Table, *, of_pass: bool, shards: bool = False) -> pd.DataFrame:
    """The rows of one site, one per moment, indexed by step; those of a pass by step and batch."""
    frame = _one_rank(frame_of(table), of_pass, shards)
    return frame.sort_values("step", kind="stable").set_index(["step", "batch"] if of_pass else "step")


def by_epoch(table: pa.Table, *, of_pass: bool, shards: bool = False) -> pd.DataFrame:
    """The stats of one site per epoch, as if its tensors were one. `captures` is the number of captures."""
    frame = _one_rank(frame_of(table), of_pass, shards).sort_values(
        ["epoch", "step"], kind="stable", ignore_index=True
    )
    place = frame.groupby("epoch").ngroup().to_numpy()
    rows = frame.groupby(place)
    merged = _merged(frame, place, np.ones(len(rows), bool))
    merged = merged.assign(
        captures=rows.size(), step=rows["step"].last(), time=rows["time"].max(), cosine=rows["cosine"].mean()
    )
    return without_empty(merged.set_index("epoch")[list(EPOCH)])


def without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Drops columns that only some sites have: the cosine of changes, the error of derived values."""
    empty = [name for name in ("cosine", "error", "over") if name in frame and frame[name].isna().all()]
    return frame.drop(columns=empty)


def _one_rank(frame: pd.DataFrame, of_pass: bool, shards: bool) -> pd.DataFrame:
    """Merges the rows of several ranks into one row per moment."""
    if "rank" not in frame or frame["rank"].nunique() < 2:
        return frame
    # The batches of a pass, then those of the next pass at the same step, in the order of the ranks.
    inner = ["again", "batch"] if of_pass else ["batch", "again"]
    frame = frame.assign(again=_again(frame, of_pass))
    frame = frame.sort_values(["step", "epoch", *inner, "rank"], kind="stable", ignore_index=True)
    place = frame.groupby(["step", "epoch", *inner]).ngroup().to_numpy()
    batched = frame.groupby(place)["batched"].first().to_numpy(bool) | shards
    return _merged(frame.drop(columns="again"), place, batched)


def _merged(frame: pd.DataFrame, place: np.ndarray[Any, Any], batched: np.ndarray[Any, Any]) -> pd.DataFrame:
    """Merges rows into one per place; for rows that are not `batched`, the first is used."""
    rows = frame.groupby(place)
    merged = rows.first()

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


def histogram(table: pa.Table, name: str, *, of_pass: bool) -> xr.DataArray:
    """The histograms of one site as counts (step, bucket), from the lists of non-empty buckets.

    Histograms of several ranks at one moment are added, and so are those of all batches of a pass.
    """
    frame = frame_of(table.select([*MOMENT, "rank"]))
    frame = frame.assign(again=_again(frame, of_pass))
    keys = ["step", "epoch", "again"] if of_pass else [*MOMENT, "again"]
    place = frame.groupby(keys).ngroup().to_numpy()
    moments = frame.assign(place=place).drop_duplicates("place").sort_values("place")
    lengths, ids = _flat(table["buckets"])
    _, counts = _flat(table["counts"])
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    dense = np.zeros((len(moments), high - low + 1), np.int64)
    np.add.at(dense, (np.repeat(place, lengths), ids.astype(np.int64) - low), counts)
    buckets = np.arange(low, high + 1)
    coords: dict[str, Any] = {
        "step": moments["step"].to_numpy(),
        "epoch": ("step", moments["epoch"].to_numpy()),
        "bucket": buckets,
        "edge": ("bucket", edges()[buckets + ZERO_BUCKET]),
    }
    if not of_pass:
        coords["batch"] = ("step", moments["batch"].to_numpy())
    return xr.DataArray(dense, dims=("step", "bucket"), coords=coords, name=name)


def samples(table: pa.Table) -> pd.DataFrame:
    """The samples, ordered by step, batch and sample. With several ranks, sample numbers continue from one rank to the next."""
    for name in ("target", "prediction"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, _single(table[name]))
    frame = frame_of(table)
    for name in ("target", "prediction"):
        if frame[name].dtype == object:
            frame[name] = frame[name].map(_number_or_array)
    # A pass comes first, because it describes the weights before the training step of the same number.
    frame["training"] = frame["pass"] == "train"
    walk = ["step", "training", "epoch", "pass"]
    place = frame["batch"].astype("int64") * (1 << 32) + frame["sample"]
    frame["again"] = _restarts(place, [frame[name] for name in (*walk, "output", "rank")])
    batch = [*walk, "again", "batch", "output"]
    frame = frame.sort_values([*batch, "rank", "sample"], kind="stable", ignore_index=True)
    if frame["rank"].nunique() > 1:
        frame["sample"] = frame.groupby(batch, sort=False).cumcount().astype("int32")
    return frame[list(SAMPLE)]


def _single(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts a column of lists to numbers, if no list has several."""
    lengths = pc.min_max(pc.list_value_length(column)).as_py()
    if lengths["max"] is None:
        return pa.nulls(len(column), pa.float64())
    return pc.list_element(column, 0) if lengths == {"min": 1, "max": 1} else column


def _number_or_array(value: Any) -> Any:
    if value is None:
        return np.nan
    return float(value[0]) if len(value) == 1 else value


def _again(frame: pd.DataFrame, of_pass: bool) -> Any:
    """The number of earlier rows of a rank at this moment; for a pass, the number of earlier passes at that step."""
    if not of_pass:
        return frame.groupby([*MOMENT, "rank"]).cumcount()
    return _restarts(frame["batch"], [frame[name] for name in ("step", "epoch", "rank")])


def _restarts(place: pd.Series[Any], walk: list[pd.Series[Any]]) -> pd.Series[Any]:
    """How many times a pass has restarted. Places within one pass increase."""
    return (place <= place.groupby(walk).shift(fill_value=-1)).groupby(walk).cumsum()


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Splits a column of lists into the length of each list and all items."""
    lists = column.combine_chunks()
    return np.diff(lists.offsets.to_numpy()), lists.flatten().to_numpy(zero_copy_only=False)
