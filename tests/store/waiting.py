"""Runs whose rows wait for a part, and what must be seen of them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fitscope import read
from fitscope.record import Record
from fitscope.store import Objects
from fitscope.store.tail import PART

Make = Callable[..., Record]


RANK = "r/a0000/r00000"


TAIL = f"{RANK}/tail/stats.arrow"


SITES = ("activations/a", "activations/b", "loss", "validation/loss")


def records(make: Make, step: int) -> list[Record]:
    """Every third step lacks a site, one has a site of its own."""
    found = [
        make(site, step, np.full((2, 3), step * 10 + place, np.float32), keep="stats")
        for place, site in enumerate(SITES)
        if step % 3 or place != 1
    ]
    return [*found, make("late", step, np.full((2,), step, np.float32), keep="stats")] if step == 7 else found


def expected(make: Make, steps: range) -> Counter[tuple[str, int]]:
    return Counter((record.site, step) for step in steps for record in records(make, step))


def seen(run: read.Run) -> Counter[tuple[str, int]]:
    """Every row there is, as the table, as series and as SQL have it, which must be the same."""
    table = run.stats
    found = Counter(zip(table["site"], table["step"], strict=True))
    series = Counter((site, int(step)) for site in run.sites for step in _steps(run, site))
    asked = run.sql("select site, step from stats")
    assert found == series == Counter(zip(asked["site"], asked["step"], strict=True))
    assert table["mean"].tolist() == [
        _value(site, step) for site, step in zip(table["site"], table["step"], strict=True)
    ]
    assert run.damaged == []
    return found


def _steps(run: read.Run, site: str) -> list[int]:
    series = run.series(site, "mean")
    assert (series == [_value(site, step) for step in series.index.get_level_values("step")]).all()
    return series.index.get_level_values("step").tolist()


def _value(site: str, step: int) -> float:
    return step if site == "late" else step * 10 + SITES.index(site)


def parts_of(store: Objects, rank: str = RANK) -> Counter[tuple[str, int]]:
    """What somebody sees who reads all parts with a tool of their own."""
    found: Counter[tuple[str, int]] = Counter()
    for name in store.list(f"{rank}/stats"):
        table = pq.read_table(io.BytesIO(store.get(f"{rank}/stats/{name}")))
        found.update(zip(table["site"].to_pylist(), table["step"].to_pylist(), strict=True))
    return found


def tail_of(store: Objects) -> Counter[tuple[str, int]]:
    """What is in the tail, for those who follow the rule in docs/layout.md."""
    try:
        stream = pa.ipc.open_stream(store.get(TAIL))
    except FileNotFoundError:
        return Counter()
    if stream.schema.metadata[PART].decode() in store.list(f"{RANK}/stats"):
        return Counter()
    table = stream.read_all()
    return Counter(zip(table["site"].to_pylist(), table["step"].to_pylist(), strict=True))
