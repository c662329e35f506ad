"""RunWriter and Run over every store: documents, attempts, ranks, limit, lost, notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.errors import StoreError
from fitscope.record import Record
from fitscope.store import Files, Memory, Objects, RunWriter, interval

Make = Callable[..., Record]


def of(objects: Objects, key: str) -> dict[str, Any]:
    document = json.loads(objects.get(key))
    assert isinstance(document, dict)
    return document


def test_a_writer_records_a_run_from_begin_to_end(objects: Objects, make: Make) -> None:
    writer = RunWriter.create(objects, "r", {"model": {"name": "m"}, "plan": ["p"], "notes": {"who": "me"}})
    assert read.open(objects).status == "running"
    assert read.open(objects).sites == []
    kept: dict[int, Any] = {}
    for step in range(12):
        x = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
        kept[step] = x
        writer.write([make("activations/a", step, x), make("loss", step, np.float32(step), batched=False)])
        if step % 5 == 4:
            writer.flush()
    live = read.open(objects)
    assert live.series("loss").index.tolist() == list(range(10))  # what is not flushed is not there
    writer.note(overhead={"seconds": 1.5}, dropped={"activations/a": 2})
    writer.note(error="something")
    writer.close()
    assert live.series("loss").tolist() == list(range(12))  # followed without opening again
    assert live.status == "complete"
    run = read.open(objects)
    assert (run.id, run.last_step, run.status) == ("r", 11, "complete")
    assert run.model == {"name": "m"}
    assert run.plan == ["p"]
    assert run.info["notes"] == {"who": "me"}
    assert run.overhead == {"seconds": 1.5}
    assert run.dropped == {"activations/a": 2}
    assert run.errors == ["something"]
    assert run.lost == {}
    for step, x in kept.items():
        assert (run.array("activations/a", step) == x).all()
    assert run.tensor("activations/a").sizes == {"step": 12, "sample": 4, "dim_1": 3}
    assert run.sql("select count(*) as n from stats where site = 'loss'")["n"].tolist() == [12]
    assert [brief.id for brief in read.runs(objects)] == ["r"]


def test_documents_have_the_documented_fields(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r", {"model": 1}, start_step=3)
    writer.write([make("a", 3, np.zeros((2, 2), np.float32))])
    writer.close("failed")
    run = of(store, "r/run.json")
    assert run["format"] == 2
    assert run["created_ns"] > 1.6e18
    assert run["created"].endswith("+00:00")
    assert {"python", "platform", "fitscope", "numpy"} <= set(run["software"])
    attempt = of(store, "r/attempts/0000.json")
    assert (attempt["attempt"], attempt["start_step"], attempt["world"], attempt["model"]) == (0, 3, 1, 1)
    assert attempt["pid"] > 0
    status = of(store, "r/a0000/r00000/status.json")
    assert (status["status"], status["step"], status["rows"], status["parts"], status["captures"]) == (
        "failed",
        3,
        1,
        1,
        1,
    )


def test_an_id_is_taken_once(objects: Objects) -> None:
    RunWriter.create(objects, "r")
    with pytest.raises(StoreError, match="exists"):
        RunWriter.create(objects, "r")


def test_continuing_a_run_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(StoreError, match="a run that exists"):
        RunWriter.attempt(Memory(), "r", start_step=0)
    store = Memory()
    RunWriter.create(store, "r")
    with pytest.raises(StoreError, match="an attempt that was begun"):
        RunWriter.join(store, "r", 1, 0)


def test_a_later_attempt_owns_its_steps(objects: Objects, make: Make) -> None:
    def value(attempt: int, step: int) -> Any:
        return np.full((2, 2), attempt * 100 + step, np.float32)

    first = RunWriter.create(objects, "r", {"model": "old"})
    for step in range(10):
        first.write([make("a", step, value(0, step)), make("old", step, value(0, step))])
    first.flush()  # and then it is killed
    run = read.open(objects)
    assert run.series("a", "mean").tolist() == list(range(10))
    second = RunWriter.attempt(objects, "r", {"model": "new"}, start_step=6)
    assert second.number == 1
    for step in range(6, 14):
        second.write([make("a", step, value(1, step))])
    second.close()
    expected = [*range(6), *range(106, 114)]
    for opened in (run, read.open(objects)):
        assert opened.series("a", "mean").tolist() == expected
        assert opened.series("old", "mean").index.tolist() == list(range(6))
        assert opened.sites == ["a", "old"]
        assert opened.tensor("a").values[:, 0, 0].tolist() == expected
        assert opened.array("a", 7)[0, 0] == 107
        assert (
            opened.sql("select mean from stats where site = 'a' order by step")["mean"].tolist() == expected
        )
        assert len(opened.stats) == 14 + 6
        assert opened.model == "new"
        assert [document["start_step"] for document in opened.attempts] == [0, 6]
        assert opened.status == "complete"
    third = RunWriter.attempt(objects, "r", start_step=2)  # and once more from further back
    third.write([make("a", 2, value(2, 2))])
    third.flush()
    assert run.series("a", "mean").tolist() == [0, 1, 202]
    assert run.tensor("a").values[:, 0, 0].tolist() == [0, 1, 202]
    assert run.sql("select mean from stats where site = 'a' order by step")["mean"].tolist() == [0, 1, 202]


def test_a_site_of_repeated_steps_is_no_longer_listed(make: Make) -> None:
    store = Memory()
    first = RunWriter.create(store, "r")
    first.write([make("gone", 5, np.ones((2, 2), np.float32), keep="stats")])
    first.flush()
    run = read.open(store)
    assert run.sites == ["gone"]
    RunWriter.attempt(store, "r", start_step=0).flush()
    assert run.sites == []


def test_two_attempts_at_once_have_different_numbers(objects: Objects) -> None:
    RunWriter.create(objects, "r")
    with ThreadPoolExecutor(4) as pool:
        writers = pool.map(lambda _: RunWriter.attempt(objects, "r", start_step=0), range(4))
        assert sorted(writer.number for writer in writers) == [1, 2, 3, 4]


def test_ranks_are_merged(objects: Objects, make: Make) -> None:
    rng = np.random.default_rng(0)
    ranks = [
        RunWriter.create(objects, "r", world=3),
        RunWriter.join(objects, "r", 0, 1),
        RunWriter.join(objects, "r", 0, 2),
    ]
    whole: dict[int, Any] = {}
    weights = {step: rng.normal(size=(3, 3)).astype(np.float32) for step in range(6)}
    for step in range(6):
        shares = [rng.normal(size=(4 - rank + step % 2, 5)).astype(np.float32) for rank in range(3)]
        whole[step] = np.concatenate(shares)
        for rank, writer in enumerate(ranks):
            writer.write([make("a", step, shares[rank]), make("w", step, weights[step], batched=False)])
    for writer in ranks:
        writer.close()
    run = read.open(objects)
    assert run.status == "complete"
    lazy = run.tensor("a")
    assert lazy["size"].values.tolist() == [9, 12, 9, 12, 9, 12]
    assert lazy.shape == (6, 12, 5)
    for step, x in whole.items():
        assert (run.array("a", step) == x).all()
        assert (lazy.sel(step=step).values[: len(x)] == x).all()
        assert np.isnan(lazy.sel(step=step).values[len(x) :]).all()
        assert (run.array("w", step) == weights[step]).all()
    assert (lazy.isel(sample=[5, 1, 8]).values == lazy.values[:, [5, 1, 8]]).all()
    frame = run.frame("a")
    assert len(frame) == 6
    for step, x in whole.items():
        x = x.astype(np.float64)
        row = frame.loc[step]
        assert row["count"] == x.size
        np.testing.assert_allclose(
            [row["mean"], row["std"], row["min"], row["max"]], [x.mean(), x.std(), x.min(), x.max()]
        )
        np.testing.assert_allclose(row["rms"], np.sqrt((x**2).mean()))
        assert row["negatives"] == (x < 0).sum()
    np.testing.assert_allclose(run.series("a", "std"), frame["std"])
    assert run.series("w", "count").tolist() == [9] * 6
    assert run.histogram("a").sum("bucket").values.tolist() == [x.size for x in whole.values()]
    assert sorted(run.sql("select distinct rank from stats")["rank"]) == [0, 1, 2]


def test_a_run_has_the_status_of_its_worst_rank(make: Make) -> None:
    store = Memory()
    ranks = [RunWriter.create(store, "r", world=2), RunWriter.join(store, "r", 0, 1)]
    ranks[0].close("complete")
    assert read.open(store).status == "running"
    ranks[1].close("failed")
    assert read.open(store).status == "failed"


class TestLimit:
    @pytest.mark.parametrize("keep", ["stats", "tensor", "both"])
    @pytest.mark.parametrize("rows", [3, 400, 1_500])
    def test_recording_stops_at_the_limit_and_reports_it(self, make: Make, keep: str, rows: int) -> None:
        store = Memory()
        limit = 100_000 if keep == "stats" else 1_000_000
        writer = RunWriter.create(store, "r", limit=limit)
        x = np.random.default_rng(0).normal(size=(rows, 30)).astype(np.float32)
        handed = 0
        for step in range(10_000):
            writer.write(
                [make("a", step, x[:, : 10 + step % 5], keep=keep), make("b", step, x, keep=keep)]
                if step < 3
                else fast(step, x, keep, make)
            )
            handed += 2
            if step % 50 == 49:
                writer.flush()
            if writer.full:
                break
        assert writer.full
        full_at = writer.full_at
        writer.write([make("a", 10**6, x, keep=keep)])
        writer.flush()
        writer.close()
        total = sum(len(data) for key, data in store._objects.items() if "/a0000/" in key)
        assert limit * 0.4 < total <= limit + 2_000  # the status may say so beyond the limit
        assert total == writer.bytes
        run = read.open(store)
        assert run.limit_reached_at == full_at
        assert run.status == "complete"
        kept = len(run.stats) if keep != "tensor" else 0
        kept += sum(run.tensor(site).sizes["step"] for site in run.sites) if keep != "stats" else 0
        each = 2 if keep == "both" else 1
        assert kept + sum(run.lost.values()) == (handed + 1) * each

    def test_steps_written_at_once_are_kept_or_lost_one_by_one(self, make: Make) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r", limit=400_000)
        x = np.random.default_rng(0).normal(size=(1_000, 10)).astype(np.float32)
        steps = [make("a", step, x, keep="tensor") for step in range(20)]
        text = replace(make("b", 0, x, keep="tensor"), tensor=np.array(["no", "numbers"]))
        with pytest.raises(StoreError, match="numbers at 'b'"):
            writer.write([text, *steps])
        assert writer.full
        writer.close()
        run = read.open(store)
        kept = run.tensor("a").sizes["step"]
        assert 0 < kept < 20
        assert run.lost == {"a": 20 - kept, "b": 1}

    def test_a_run_without_a_limit_is_never_full(self, make: Make) -> None:
        writer = RunWriter.create(Memory(), "r")
        writer.write([make("a", 0, np.zeros((100, 1000), np.float32))])
        assert not writer.full


_cache: dict[Any, Record] = {}


def fast(step: int, x: Any, keep: str, make: Make) -> list[Record]:
    """Records without computing the stats of the same numbers again."""
    records = []
    for site in ("a", "b"):
        key = (site, step % 5, keep, x.shape)
        if key not in _cache:
            _cache[key] = make(site, 0, x[:, : 10 + step % 5] if site == "a" else x, keep=keep)
        records.append(replace(_cache[key], at=replace(_cache[key].at, step=step, batch=step)))
    return records


def test_facts_of_the_user_do_not_replace_those_of_the_writer(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r", {"format": 99, "id": "x", "attempt": 7, "start_step": 5})
    writer.note(status="wonderful", bytes=-1)
    writer.close()
    run = read.open(store)
    assert (run.id, run.status, run.attempts[0]["attempt"], run.attempts[0]["start_step"]) == (
        "r",
        "complete",
        0,
        0,
    )
    assert run.bytes > 0


def test_an_unknown_status_is_an_error() -> None:
    writer = RunWriter.create(Memory(), "r")
    with pytest.raises(StoreError, match="complete, interrupted, failed"):
        writer.close("done")


def test_errors_are_bounded() -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    for number in range(1000):
        writer.note(error=f"error {number}")
    writer.flush()
    run = read.open(store)
    assert len(run.errors) == 50
    assert run.errors_total == 1000


def test_a_flush_without_rows_is_a_heartbeat() -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    before = of(store, "r/a0000/r00000/status.json")["heartbeat"]
    writer.flush()
    assert of(store, "r/a0000/r00000/status.json")["heartbeat"] > before
    assert store.list("r/a0000/r00000") == ["status.json"]


def test_the_flush_interval_grows_with_the_run() -> None:
    assert interval(0) == 2.0
    assert interval(5000) == 10.0
    assert interval(10**6) == 30.0
    parts, runtime = 0, 0.0
    while runtime < 36_000:
        runtime += interval(runtime)
        parts += 1
    assert parts < 3_000


def test_durable_runs_read_the_same(tmp_path: Path, make: Make) -> None:
    writer = RunWriter.create(Files(tmp_path, durable=True), "r")
    writer.write([make("a", 0, np.ones((2, 2), np.float32))])
    writer.close()
    assert read.open(tmp_path).series("a", "mean").tolist() == [1.0]
