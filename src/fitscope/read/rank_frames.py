"""Makes tables of the ranks of a run: the status of each, and one stat of each side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fitscope.diagnose.pulses import Pulses, medians
from fitscope.read.frames import by_step
from fitscope.read.ranks import Rank

COLUMNS = (
    "attempt", "status", "step", "last_seen", "step_seconds", "skew_seconds", "sampled", "host", "pid", "ended_by",
)  # fmt: skip
PULSE = ("step", "time", "cpu", "loss", "weights")
_NO_PACE = (math.nan, math.nan)
LATEST = 4_102_444_800.0  #: the year 2100 in seconds since 1970: a later heartbeat is invalid


def ranks(found: Sequence[tuple[int, Rank]], pulses: Pulses | None) -> pd.DataFrame:
    """A table with a row for each rank of `found`, next to its attempt. `last_seen` is its last flush, by its own clock, in UTC.

    `step_seconds` is the median time of a step, `skew_seconds` how far the rank is behind the median of all, at its newest step.
    """
    rows = []
    paces = _paces(pulses) if pulses is not None else {}
    for attempt, rank in found:
        said = rank.status()
        beat = float(said.get("heartbeat") or -1.0)
        rows.append(
            {
                "rank": rank.number,
                "attempt": attempt,
                "status": said.get("status", "not started"),
                "step": said.get("step"),
                "last_seen": pd.Timestamp(beat, unit="s", tz="UTC").floor("ms")
                if 0 <= beat < LATEST
                else pd.NaT,
                "step_seconds": paces.get(rank.number, _NO_PACE)[0],
                "skew_seconds": paces.get(rank.number, _NO_PACE)[1],
                "sampled": not rank.light,
                "host": said.get("host"),
                "pid": said.get("pid"),
                "ended_by": said.get("ended_by"),
            }
        )
    frame = pd.DataFrame(rows, columns=["rank", *COLUMNS]).set_index("rank")
    return frame.astype({"step": "Int64", "pid": "Int64"})


def _paces(pulses: Pulses) -> dict[int, tuple[float, float]]:
    """For each rank, the median time of a step and the newest skew."""
    usual = medians(pulses.step_seconds, axis=1)[:, 0]
    newest = [row[np.isfinite(row)][-1:] for row in pulses.skew]
    return {
        int(number): (float(seconds), float(skew[0]) if len(skew) else math.nan)
        for number, seconds, skew in zip(pulses.ranks, usual, newest, strict=True)
    }


def pulse(found: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each rank and each step of its pulse. Times are by the clock of the rank, in UTC."""
    rows = []
    for number, said in found.items():
        columns = {name: said.get(name) or [] for name in PULSE}
        length = min(map(len, columns.values()))
        frame = pd.DataFrame({name: column[:length] for name, column in columns.items()}, dtype="float64")
        rows.append(frame.assign(rank=number))
    if not rows:
        return pd.DataFrame(columns=["rank", *PULSE])
    joined = pd.concat(rows, ignore_index=True)
    joined["time"] = pd.to_datetime(joined["time"].where(joined["time"] < LATEST), unit="s", utc=True)
    return joined.astype({"step": "int64"})[["rank", *PULSE]]


def told(frame: pd.DataFrame) -> str:
    """Text: the number of ranks, and which ranks stopped while others did not. Empty for one rank."""
    if len(frame) < 2:
        return ""
    said = frame["status"]
    usual = "running" if (said == "running").any() else "complete" if (said == "complete").any() else ""
    odd = frame[~said.isin([usual, "complete"])] if usual else frame[:0]
    text = f"{len(frame):,} ranks"
    for number, row in odd[:3].iterrows():
        at = "" if pd.isna(row["step"]) else f" at step {row['step']:,}"
        when = "" if pd.isna(row["last_seen"]) else f", last seen {row['last_seen']:%Y-%m-%d %H:%M:%S} UTC"
        text += f", rank {number} {row['status']}{at}{when}"
    return f"{text}, …" if len(odd) > 3 else text


def by_rank(table: pa.Table, stat: str, *, of_pass: bool, shards: bool) -> pd.DataFrame:
    """One stat of a site, indexed as by `by_step`, with a column for each rank that recorded it."""
    numbers = sorted(pc.unique(table["rank"]).to_pylist())
    columns: dict[int, Any] = {}
    for number in numbers:
        rows = by_step(table.filter(pc.equal(table["rank"], number)), of_pass=of_pass, shards=shards)[stat]
        columns[number] = rows[~rows.index.duplicated(keep="last")]  # repeated moments have no common place
    return pd.DataFrame(columns).rename_axis(columns="rank")
