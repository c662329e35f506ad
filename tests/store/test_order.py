"""What a crash may do, point by point: the run as it is after each single put, for every put there was.

This is the kill test without luck: a crash between any two puts leaves exactly the objects put before. Each
of these states is opened by our reader and by zarr and pyarrow, and must show captures and rows as they were
written, at least those acknowledged by a flush, and no others.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from fitscope import read
from fitscope.errors import RunError
from fitscope.record import Record
from fitscope.store import Memory, RunWriter
from fitscope.store import array as array_module
from fitscope.store import tensors as tensors_module
from fitscope.store.array import GrowingArray

Make = Callable[..., Record]


def value(site: str, step: int) -> np.ndarray[Any, Any]:
    rows = {"small": 2, "large": 12, "late": 3}[site]
    if step % 5 == 4:
        rows -= 1
    x: np.ndarray[Any, Any] = (np.arange(rows * 10).reshape(rows, 10) + 1000.0 * step + 1).astype(np.float32)
    return x


Puts = list[tuple[str, bytes]]


def diary(make: Make, spy: Any) -> tuple[Puts, list[tuple[int, int]]]:
    """The puts of a run, and for each flush how many there were by then and the last step it acknowledged."""
    puts: Puts = []
    store = spy(Memory(), on_put=lambda key, data: puts.append((key, bytes(data))))
    writer = RunWriter.create(store, "r")
    acknowledged = [(len(puts), -1)]
    for step in range(14):
        sites = ("small", "large", "late") if step >= 5 else ("small", "large")
        writer.write([make(site, step, value(site, step)) for site in sites])
        if step % 3 == 2:
            writer.flush()
            acknowledged.append((len(puts), step))
    writer.close()
    acknowledged.append((len(puts), 13))
    return puts, acknowledged


def problems(puts: Puts, acknowledged: list[tuple[int, int]]) -> Iterator[str]:
    """Everything that is wrong in any state the store went through."""
    for count in range(1, len(puts) + 1):
        state = _state(puts[:count])
        promised = max((step for at, step in acknowledged if at <= count), default=-1)
        try:
            wrong = _wrong(state, promised)
        except RunError as problem:
            wrong = [f"missing: {problem}"]
        yield from (f"after put {count} ({puts[count - 1][0]}): {what}" for what in wrong)


def _state(puts: Puts) -> Memory:
    state = Memory()
    for key, data in puts:
        state.put(key, data)
    return state


def _wrong(state: Memory, promised: int) -> list[str]:
    wrong = []
    if "run.json" in state.list("r") and state.list("r/attempts"):
        run = read.open(state)
        sites = set(run.sites)
        for site in sites:
            for step in run.tensor(site)["step"].values.tolist():
                if not np.array_equal(run.array(site, step), value(site, step)):
                    wrong.append(f"{site} step {step}: wrong values")
        for site in ("small", "large", "late"):
            need = set(range(5 if site == "late" else 0, promised + 1))
            if not need:
                continue
            if site not in sites or need - set(run.tensor(site)["step"].values.tolist()):
                wrong.append(f"{site}: a flushed capture is missing")
            elif need - set(run.series(site, "mean").index):
                wrong.append(f"{site}: a flushed row is missing")
        if run.damaged:
            wrong.append(f"damaged: {run.damaged}")
    return wrong + _wrong_for_zarr(state) + _wrong_for_parquet(state)


def _wrong_for_zarr(state: Memory) -> list[str]:
    wrong = []
    prefix = "r/a0000/r00000/tensors.zarr/"
    buffer = default_buffer_prototype().buffer
    store = {
        key[len(prefix) :]: buffer.from_bytes(data)
        for key, data in state._objects.items()
        if key.startswith(prefix)
    }
    for key in store:
        if key.endswith("data/zarr.json"):
            array = zarr.open_array(zarr.storage.MemoryStore(store), path=key[: -len("/zarr.json")], mode="r")
            data = array[:]
            for row, step in enumerate(array.attrs["step"]):
                expected = value(str(array.attrs["site"]), step)
                if not np.array_equal(data[row, : len(expected)], expected):
                    wrong.append(f"zarr {key} row {row}: not what was captured at step {step}")
    return wrong


def _wrong_for_parquet(state: Memory) -> list[str]:
    for key, data in state._objects.items():
        if key.endswith(".parquet"):
            for row in pq.read_table(io.BytesIO(data), columns=["site", "step", "max"]).to_pylist():
                if row["max"] != value(row["site"], row["step"]).max():
                    return [f"{key}: {row}"]
    return []


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_module, "SHARED_CHUNK", 330)  # small: 4 captures to a chunk, large: 1
    monkeypatch.setattr(array_module, "LARGEST_CHUNK", 130)  # large: in pieces
    monkeypatch.setattr(tensors_module, "LONGEST_INDEX", 9)  # and in two arrays


@pytest.mark.usefixtures("_small_chunks")
def test_a_crash_at_any_point_leaves_a_readable_run(make: Make, spy: Any) -> None:
    puts, acknowledged = diary(make, spy)
    assert len(puts) > 100
    assert list(problems(puts, acknowledged)) == []


@pytest.mark.usefixtures("_small_chunks")
def test_parts_and_documents_of_the_start_never_change(make: Make, spy: Any) -> None:
    puts, _ = diary(make, spy)
    once = [key for key, _ in puts if key.endswith((".parquet", "run.json")) or "/attempts/" in key]
    assert len(once) == len(set(once)) > 3


@pytest.mark.usefixtures("_small_chunks")
def test_the_crash_test_detects_a_wrong_order(make: Make, spy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The obvious but wrong order, zarr.json before the chunks it counts, is found out."""

    def commit_first(self: GrowingArray) -> None:
        if self.captures > self.committed:
            self._meter.put(f"tensors.zarr/{self.path}/data/zarr.json", self._document().encode())
        real_stage(self)

    real_stage = GrowingArray.stage
    monkeypatch.setattr(GrowingArray, "stage", commit_first)
    puts, acknowledged = diary(make, spy)
    found = problems(puts, acknowledged)
    assert any("missing: Expected the tensors" in what for what in found)  # our reader says so
    assert not all(_wrong_for_zarr(_state(puts[:count])) == [] for count in range(len(puts)))  # zarr fills up


@pytest.mark.usefixtures("_small_chunks")
def test_a_premature_acknowledgement_is_detected(make: Make, spy: Any) -> None:
    """And so is a flush that returns before its part is put."""
    puts, acknowledged = diary(make, spy)
    early = [(max(1, at - 3), step) for at, step in acknowledged]
    assert any("missing" in what for what in problems(puts, early))
