"""The writer where the store fails: what is tried again, what is lost, and that it is counted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.errors import StoreError
from fitscope.record import Record
from fitscope.store import Memory, Objects, RunWriter
from fitscope.store import parts as parts_module
from fitscope.store import stats_table as tables_module

Make = Callable[..., Record]


class Mood:
    """Lets puts fail on demand; `fails` looks at the key."""

    def __init__(self) -> None:
        self.fails: Callable[[str], bool] = lambda _: False

    def __call__(self, key: str, data: Any) -> None:
        if self.fails(key):
            raise OSError(errno.ENOSPC, "No space left on device", key)


@pytest.fixture
def mood() -> Mood:
    return Mood()


@pytest.fixture
def moody(mood: Mood, spy: Any) -> Objects:
    """A store in memory that fails when it is in the mood."""
    store: Objects = spy(Memory(), on_put=mood)
    return store


def write_all(
    writer: RunWriter, make: Make, steps: range, sites: dict[str, tuple[int, ...]]
) -> tuple[dict[Any, Any], int]:
    """Writes captures, flushing now and then; returns all of them, and how often an OSError came home."""
    captures, errors = {}, 0
    for step in steps:
        batch = []
        for site, shape in sites.items():
            size = 1 + step * 7 % shape[0]  # up and down, so that one capture has less than the one before
            captures[site, step] = (
                np.random.default_rng(step).normal(size=(size, *shape[1:])).astype(np.float32)
            )
            batch.append(make(site, step, captures[site, step]))
        try:
            writer.write(batch)
        except OSError:
            errors += 1
        if step % 4 == 3:
            try:
                writer.flush()
            except OSError:
                errors += 1
    return captures, errors


@pytest.mark.parametrize("seed", range(12))
def test_a_failed_flush_leaves_a_readable_run(
    make: Make, seed: int, mood: Mood, moody: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts fail at random for a while. What is there afterwards is right, the rest is counted."""
    from fitscope.store import array as array_module

    monkeypatch.setattr(array_module, "LARGEST_CHUNK", 1500)
    monkeypatch.setattr(array_module, "SHARED_CHUNK", 300)
    writer = RunWriter.create(moody, "r")
    rng = np.random.default_rng(seed)
    sites = {"small": (3, 2), "middle": (5, 100), "large": (40, 50)}
    first, errors = write_all(writer, make, range(20), sites)
    assert errors == 0
    kind = ["zarr.json", "/c.", ".parquet", "status", ""][seed % 5]
    mood.fails = lambda key: kind in key and rng.random() < 0.4
    second, errors = write_all(writer, make, range(20, 60), sites)
    assert errors > 0
    mood.fails = lambda _: False
    third, errors = write_all(writer, make, range(60, 81), sites)
    assert errors == 0
    writer.close()
    captures = {**first, **second, **third}
    run = read.open(moody)
    found = rows = 0
    for site in sites:
        steps = set(run.tensor(site)["step"].values.tolist())
        for step in steps:
            expected = captures[site, step]
            assert (run.array(site, step) == expected).all()
            padded = run.tensor(site).sel(step=step).values
            assert np.isnan(padded[len(expected) :]).all()  # no chunk of a failed capture shines through
        found += len(steps)
        assert all(step in steps for step in range(20))
        assert all(step in steps for step in range(60, 81))
        rows += len(run.series(site, "mean"))
    assert run.damaged == []
    assert found + rows + sum(run.lost.values()) == 2 * len(captures)
    assert writer.lost == run.lost


def test_a_failed_flush_is_tried_again(make: Make, mood: Mood, moody: Objects) -> None:
    writer = RunWriter.create(moody, "r")
    writer.write([make("a", 0, np.ones((2, 2), np.float32))])
    mood.fails = lambda _: True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            writer.flush()
    writer.write([make("a", 1, np.ones((2, 2), np.float32))])
    mood.fails = lambda _: False
    writer.flush()
    run = read.open(moody)
    assert run.series("a", "mean").index.tolist() == [0, 1]
    assert run.tensor("a")["step"].values.tolist() == [0, 1]
    assert writer.lost == {}


def test_a_dead_store_costs_bounded_memory(
    make: Make, mood: Mood, moody: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "MOST_MEMORY", 50 * tables_module.ROW_MEMORY)
    writer = RunWriter.create(moody, "r")
    mood.fails = lambda _: True
    for step in range(300):
        writer.write([make("a", step, np.ones((2, 2), np.float32), keep="stats")])
    assert writer.lost == {"a": 250}
    mood.fails = lambda _: False
    writer.close()
    assert len(read.open(moody).stats) == 50


def test_close_counts_unwritten_records_as_lost(make: Make, mood: Mood, moody: Objects) -> None:
    writer = RunWriter.create(moody, "r")
    writer.write([make("a", 0, np.ones((2, 2), np.float32))])
    mood.fails = lambda key: "status" not in key
    with pytest.raises(OSError, match="No space"):
        writer.close("failed")
    run = read.open(moody)
    assert run.status == "failed"
    assert run.lost == {"a": 2}
    writer.close()  # a second time: nothing happens
    assert read.open(moody).status == "failed"


def test_an_array_that_is_not_listed_is_lost(make: Make, mood: Mood, moody: Objects) -> None:
    writer = RunWriter.create(moody, "r")
    mood.fails = lambda key: key.endswith("tensors.zarr/zarr.json")
    writer.write([make("a", 0, np.ones((2, 2), np.float32), keep="tensor")])
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert writer.lost == {"a": 1}


def test_a_tensor_that_cannot_be_stored_is_an_error(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    words = Record("inputs", make("x", 4, np.zeros(1)).at, (2,), "object", None, np.array(["a", "b"], object))
    with pytest.raises(StoreError, match="type object"):
        writer.write(
            [make("a", 4, np.ones((2,), np.float32)), words, make("b", 4, np.ones((2,), np.float32))]
        )
    writer.close()
    run = read.open(store)
    assert run.sites == ["a", "b"]
    assert run.lost == {"inputs": 1}


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    class Broken(Memory):
        def create(self, key: str, data: Any) -> bool:
            raise PermissionError(errno.EACCES, "Permission denied")

        def folder(self, name: str) -> Any:
            return self

    with pytest.raises(StoreError, match=r"can be written to.*Permission denied"):
        RunWriter.create(Broken(), "r")
    (tmp_path / "f").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        RunWriter.create(tmp_path / "f", "r")


def test_a_row_that_cannot_be_encoded_does_not_block_others(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    good = make("a", 0, np.ones((2, 2), np.float32), keep="stats")
    writer.write([replace(good, site="odd", shape=("no number",))])  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="fit the stats table"):
        writer.flush()
    writer.write([good])
    writer.flush()
    run = read.open(store)
    assert run.sites == ["a"]
    assert run.lost == {"odd": 1}
