"""SQL over many runs, and runs on Dask: the same rows and numbers as from each run by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fitscope as fs
from fitscope import read
from fitscope.errors import FitscopeWarning, RunError
from fitscope.read import find
from fitscope.read.evidence import StoredEvidence
from fitscope.record import Record
from fitscope.store import Files, Objects, RunWriter

Make = Callable[..., Record]
COUNTED = "select run, count(*) as rows, max(value) as loss from stats where site = 'loss' group by run order by run"


def write(objects: Objects, name: str, make: Make, steps: range, **more: Any) -> RunWriter:
    writer = RunWriter.create(objects, name, {"model": {"name": "net"}}, **more)
    for step in steps:
        x = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
        writer.write([make("activations/a", step, x), make("loss", step, np.float32(step), batched=False)])
        writer.flush()
    return writer


def test_one_query_over_all_runs(objects: Objects, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(objects, f"run{number}", make, range(4 + number)).close()
    objects.put("elsewhere/notes.txt", b"no run")
    runs = read.runs(objects)
    monkeypatch.setattr(find, "_open", lambda *_: pytest.fail("a run was opened"))
    asked = runs.sql(COUNTED)
    assert asked.to_dict("list") == {
        "run": ["run0", "run1", "run2"],
        "rows": [4, 5, 6],
        "loss": [3.0, 4.0, 5.0],
    }
    monkeypatch.undo()
    every = runs.sql("select * from stats").sort_values(["run", "site", "step"], ignore_index=True)
    each = [read.open(objects, name).stats.assign(run=name) for name in ("run0", "run1", "run2")]
    wanted = pd.concat(each).sort_values(["run", "site", "step"], ignore_index=True)
    for column in wanted.columns.drop(["weight", "over"]):  # which are empty
        assert [str(value) for value in every[column]] == [str(value) for value in wanted[column]], column


def test_the_table_of_runs_can_be_joined(make: Make, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(Files(tmp_path), name, make, range(3)).close()
    both = "select run, model, status, avg(value) from runs join stats using (run) where site = 'loss' group by all order by all"
    assert read.runs(tmp_path).sql(both).values.tolist() == [
        ["a", "net", "complete", 1.0],
        ["b", "net", "complete", 1.0],
    ]
    assert read.runs(tmp_path)[1:].sql(COUNTED)["run"].tolist() == ["b"]


def test_rows_that_a_later_attempt_repeated_count_once(make: Make, tmp_path: Path) -> None:
    store = Files(tmp_path)
    write(store, "again", make, range(6)).close("interrupted")
    write(store, "once", make, range(6)).close()
    again = RunWriter.attempt(store, "again", start_step=3)
    again.write([make("loss", step, np.float32(10 * step), batched=False) for step in (3, 4)])
    again.close()
    asked = read.runs(tmp_path).sql(
        "select run, step, value from stats where site = 'loss' order by run, step"
    )
    assert asked[asked["run"] == "again"]["value"].tolist() == [0, 1, 2, 30, 40]
    assert asked[asked["run"] == "once"]["value"].tolist() == [0, 1, 2, 3, 4, 5]


def test_one_unreadable_run_costs_only_itself(make: Make, tmp_path: Path) -> None:
    for name in ("bad", "good", "worse"):
        write(Files(tmp_path), name, make, range(2)).close()
    part = next((tmp_path / "bad").rglob("stats/*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    (tmp_path / "worse" / "attempts" / "0001.json").write_text("[" * 100_000)
    (tmp_path / "worse" / "run.json").write_text(json.dumps("no document"))
    with pytest.warns(FitscopeWarning, match="'bad'|'worse'"):
        asked = read.runs(tmp_path).sql(COUNTED)
    assert dict(zip(asked["run"], asked["rows"], strict=True)) == {"bad": 1, "good": 2}


def test_a_query_that_cannot_run_is_an_error(make: Make, tmp_path: Path) -> None:
    write(Files(tmp_path), "a", make, range(2)).close()
    with pytest.raises(RunError, match=r"(?s)nonsense.*a column run"):
        read.runs(tmp_path).sql("select nonsense from stats")
    with pytest.raises(RunError, match=r"a single run.*fs\.open\(path\)\.sql"):
        read.runs(tmp_path / "a").sql("select 1")
    assert read.runs(tmp_path / "a")[0].id == "a"


# ---- Dask --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A cluster of one process with one thread, on the loopback."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def run(make: Make, tmp_path: Path) -> read.Run:
    write(Files(tmp_path), "r", make, range(7)).close()
    return read.open(tmp_path)


def squares(run: read.Run, step: int) -> float:
    return float((run.array("activations/a", step) ** 2).sum())


def test_a_run_as_a_dask_dataframe(run: read.Run, client: Any) -> None:
    frame = run.to_dask()
    assert frame.npartitions > 1
    means = frame[frame["site"] == "activations/a"].groupby("step")["mean"].max().compute()
    assert means.sort_index().tolist() == run.series("activations/a", "mean").tolist()


def test_tensors_as_a_dask_array(run: read.Run, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fitscope.read import cluster

    monkeypatch.setattr(cluster, "BLOCK_BYTES", 100)
    array = run.to_dask("activations/a")
    assert array.chunks[0] == (2, 2, 2, 1)
    assert np.array_equal(array.compute(), run.tensor("activations/a").to_numpy())
    assert float(array[3:5].sum().compute()) == pytest.approx(float(run.tensor("activations/a")[3:5].sum()))


def test_dask_calls_a_function_for_each_step(run: read.Run, client: Any) -> None:
    here = fs.map_steps(run, squares)
    assert list(here) == list(range(7))
    assert here[4] == float((np.random.default_rng(4).normal(size=(4, 3)).astype(np.float32) ** 2).sum())
    assert fs.map_steps(run, squares, client=client) == here
    assert fs.map_steps(run, squares, client, steps=[2, 5]) == {2: here[2], 5: here[5]}
    with pytest.raises(RunError, match="step 99"):
        fs.map_steps(run, squares, client, steps=[99])


def test_one_rank_of_a_run_stays_one_rank(make: Make, tmp_path: Path, client: Any) -> None:
    for rank in range(2):
        writer = RunWriter.share(Files(tmp_path), "r", {}, attempt=0, start_step=0, world=2, rank=rank)
        x = np.full((4, 3), rank + 1, np.float32)
        writer.write([make("activations/a", step, x) for step in range(3)])
        writer.close()
    for rank in range(2):
        one = read.open(tmp_path).rank(rank)
        np.testing.assert_array_equal(
            one.to_dask("activations/a").compute(), one.tensor("activations/a").values
        )
        assert one.to_dask()["rank"].compute().unique().tolist() == [rank]
        assert fs.map_steps(one, squares, client) == dict.fromkeys(range(3), 12.0 * (rank + 1) ** 2)
    assert read.open(tmp_path).to_dask("activations/a").shape == (3, 8, 3)


def test_a_query_does_not_ask_light_ranks(make: Make, tmp_path: Path) -> None:
    """They have no table. A run of a thousand processes has a thousand of them."""
    from obstore.store import LocalStore

    from fitscope.store import Remote

    store = Remote(LocalStore(str(tmp_path)), name="local")
    for rank in range(40):
        about = {"sampled": [0, 20]}
        writer = RunWriter.share(store, "r", about, attempt=0, start_step=0, world=40, rank=rank)
        if rank in about["sampled"]:
            writer.write([make("loss", step, np.float32(step), batched=False) for step in range(3)])
        writer.close()
    before = store.requests
    assert read.runs(store).sql(COUNTED)["rows"].tolist() == [6]
    assert store.requests - before < 20


def test_a_slow_look_at_light_ranks_is_not_repeated_at_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own, on which each status takes five seconds: the answer to one page must not read them all again."""
    from fitscope.read import ranks, state

    now = [0.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])
        time = staticmethod(lambda: 0.0)

    monkeypatch.setattr(ranks, "time", Clock)
    monkeypatch.setattr(state, "time", Clock)
    store = Files(tmp_path)
    for rank in range(3):
        RunWriter.share(store, "r", {"sampled": [0]}, attempt=0, start_step=0, world=3, rank=rank).flush()
    asked = []
    look = ranks.Rank.look

    def slow(self: ranks.Rank) -> Any:
        asked.append(self.number)
        found = look(self)
        now[0] += 5.0
        return found

    monkeypatch.setattr(ranks.Rank, "look", slow)
    run = read.open(store, "r")
    for _ in range(3):
        run._state.look()
    assert asked == [0, 1, 2, 0, 0]
    now[0] += 200.0
    run._state.look()
    assert asked[5:] == [0, 1, 2]


def test_a_summary_of_a_run_that_is_written_looks_at_each_rank_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look takes several requests. The line of `fs.runs`, and the first evidence of the page, are made of many facts."""
    from fitscope.read import ranks

    writer = write(Files(tmp_path), "r", make, range(3))
    asked = []
    look = ranks.Rank.look

    def counted(self: ranks.Rank) -> Any:
        asked.append(self.number)
        return look(self)

    monkeypatch.setattr(ranks.Rank, "look", counted)
    (brief,) = read.runs(tmp_path)
    assert (brief.status, brief.last_step, asked) == ("running", 2, [0])
    asked.clear()
    assert brief.run is not None
    StoredEvidence(brief.run, brief.run._state.stats)
    assert asked == [0]
    writer.close()
