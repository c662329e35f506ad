"""The reader's face: names, series, scalars, errors in three clauses, following."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fitscope import read
from fitscope.errors import RunError
from fitscope.record import Record
from fitscope.store import Files, Memory, RunWriter
from fitscope.store.liveness import me

Make = Callable[..., Record]


def test_reading_imports_no_framework() -> None:
    code = (
        "import sys; import fitscope.read\n"
        "unwanted = 'keras tensorflow jax torch numba xarray pandas duckdb zarr obstore'.split()\n"
        "unwanted += ['fitscope.scope', 'fitscope.plan.plan', 'fitscope.capture.backends', 'fitscope.pipeline.queue']\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_repr_shows_status_steps_and_path(run: read.Run) -> None:
    assert repr(run) == "<Run 'r': complete, up to step 5, 5 sites, at memory:///r>"


class TestSeries:
    def test_a_scalar_needs_no_stat(self, run: read.Run) -> None:
        series = run.series("loss")
        assert series.tolist() == [float(np.float32(step / 3)) for step in range(6)]
        assert series.index.tolist() == list(range(6))
        assert (series.name, series.index.name) == ("loss", "step")

    def test_a_series_holds_one_stat(self, run: read.Run) -> None:
        series = run.series("activations/encoder/dense1", "mean")
        assert series.tolist() == [1, 2, 3, 4, 5, 6]
        assert series.name == "activations/encoder/dense1.mean"
        assert run.series("activations/encoder/dense1", "count").dtype == np.int64

    def test_a_series_has_epoch_and_batch(self, run: read.Run) -> None:
        frame = run.frame("loss")
        assert frame.index.equals(run.series("loss").index)
        assert frame["epoch"].tolist() == [0] * 6
        assert run.frame("gradients/encoder/dense1")["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
        assert frame["batch"].tolist() == list(range(6))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1e-45, 3.4e38])
    def test_scalars_are_exact(self, make: Make, value: float) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        writer.write([make("loss", 0, np.float32(value), keep="stats", batched=False)])
        writer.close()
        np.testing.assert_equal(read.open(store).series("loss").tolist(), [float(np.float32(value))])

    def test_the_sign_of_an_infinity_needs_the_tensor(self, make: Make) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        writer.write([make("loss", 0, np.float32(-np.inf), batched=False)])
        writer.close()
        assert read.open(store).series("loss").tolist() == [-np.inf]

    def test_a_series_has_several_batches_of_one_step(self, make: Make) -> None:
        """A hand-written step that does not count."""
        store = Memory()
        writer = RunWriter.create(store, "r")
        for batch in range(4):
            writer.write([make("a", 10, np.full((2,), batch, np.float32), batch=batch)])
        writer.write([make("a", 10, np.full((2,), 9, np.float32), batch=3)])  # twice the same
        writer.close()
        run = read.open(store)
        assert run.series("a", "mean").tolist() == [0, 1, 2, 3, 9]
        assert run.tensor("a")["batch"].values.tolist() == [0, 1, 2, 3, 3]
        assert run.tensor("a").values[:, 0].tolist() == [0, 1, 2, 3, 9]
        assert run.array("a", 10)[0] == 9
        assert run.histogram("a").shape[0] == 5


class TestNames:
    def test_a_short_name_finds_its_site(self, run: read.Run) -> None:
        assert run.resolve("activations/dense1") == "activations/encoder/dense1"
        assert run.resolve("dense2") == "activations/encoder/dense2"
        assert run.series("activations/dense1", "max").name == "activations/encoder/dense1.max"

    def test_an_ambiguous_name_is_an_error(self, run: read.Run) -> None:
        with pytest.raises(
            RunError, match=r"matches 2.*activations/encoder/dense1.*gradients/encoder/dense1"
        ):
            run.series("dense1", "mean")

    def test_an_unknown_site_is_an_error(self, run: read.Run) -> None:
        with pytest.raises(RunError, match="Did you mean 'activations/encoder/dense1'") as caught:
            run.series("activations/encoder/dens1", "mean")
        assert (caught.value.expected, caught.value.received) == (
            "a site of run 'r'",
            "'activations/encoder/dens1'",
        )

    def test_a_kind_or_a_layer_lists_its_sites(self, run: read.Run) -> None:
        with pytest.raises(RunError, match=r"the name of one site.*'gradients', which matches \d+") as caught:
            run.frame("gradients")
        assert "'gradients/encoder/dense1'" in caught.value.fix
        assert "activations" not in caught.value.fix
        with pytest.raises(RunError, match=r"'gradients/encoder', which matches"):
            run.series("gradients/encoder", "mean")

    def test_a_stat_in_the_name_is_named(self, run: read.Run) -> None:
        with pytest.raises(RunError, match=r"Write 'activations/encoder/dense1', 'max'"):
            run.series("activations/encoder/dense1.max")

    def test_an_unknown_stat_is_an_error(self, run: read.Run) -> None:
        with pytest.raises(RunError, match=r"Received: 'avg'.*'mean', 'std'"):
            run.series("loss", "avg")

    def test_a_series_of_a_tensor_needs_a_stat(self, run: read.Run) -> None:
        with pytest.raises(
            RunError, match=r"not a scalar.*run\.series\('activations/encoder/dense1', 'mean'\)"
        ):
            run.series("activations/dense1")

    def test_asking_for_data_that_was_not_kept_is_an_error(self, run: read.Run) -> None:
        with pytest.raises(RunError, match=r"only statistics were recorded.*keep='tensor'"):
            run.tensor("loss")
        with pytest.raises(RunError, match=r"only tensors so far.*run\.tensor"):
            run.series("inputs", "mean")

    def test_a_step_that_was_not_captured_is_an_error(self, run: read.Run) -> None:
        with pytest.raises(RunError, match=r"Received: step 17\. There are: 0, 1, 2, 3, 4, 5"):
            run.array("inputs", 17)


class TestTables:
    def test_stats_is_a_table_of_all_sites(self, run: read.Run) -> None:
        frame = run.stats
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) == 24
        assert frame["step"].is_monotonic_increasing
        assert frame.groupby("site")["mean"].last()["activations/encoder/dense1"] == 6.0

    def test_the_stats_of_an_empty_run_are_an_empty_table(self) -> None:
        store = Memory()
        RunWriter.create(store, "r")
        run = read.open(store)
        assert list(run.stats.columns)[:3] == ["step", "epoch", "batch"]
        assert len(run.stats) == 0
        assert run.sql("select count(*) as n from stats")["n"].tolist() == [0]
        assert run.last_step is None
        assert "no steps yet" in repr(run)

    def test_sql_queries_the_stats(self, run: read.Run) -> None:
        frame = run.sql("select site, max(mean) as top from stats group by site order by site")
        assert frame["top"].tolist() == [6.0, 1.0, 6.0, pytest.approx(5 / 3)]
        frame = run.sql(
            "select step, unnest(buckets) as bucket, unnest(counts) as n from stats where site = 'loss'"
        )
        assert len(frame) == 6

    def test_invalid_sql_is_an_error(self, run: read.Run) -> None:
        for query in (
            "selec",
            "select nothing from stats",
            "select * from nowhere",
            "select 1/0 + 'x' from stats",
        ):
            with pytest.raises(RunError, match="The tables and their columns are stats"):
                run.sql(query)

    def test_sql_cannot_read_other_files(self, run: read.Run) -> None:
        frame = pd.DataFrame({"a": [1]})  # DuckDB would find a local variable by its name
        with pytest.raises(RunError):
            run.sql("select * from frame")
        assert len(frame) == 1


class TestStatus:
    def status(self, store: Memory, **changes: Any) -> str:
        key = "r/a0000/r00000/status.json"
        store.put(key, json.dumps({**json.loads(store.get(key)), **changes}).encode())
        return read.open(store).status

    def test_a_run_of_this_process_is_running(self) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        assert read.open(store).status == "running"
        writer.close("interrupted")
        assert read.open(store).status == "interrupted"

    def test_a_run_of_a_dead_process_is_interrupted(self) -> None:
        store = Memory()
        RunWriter.create(store, "r")
        assert self.status(store, pid=2**22 + 12345) == "interrupted"

    def test_a_reused_process_id_does_not_count_as_running(self) -> None:
        store = Memory()
        RunWriter.create(store, "r")
        assert self.status(store, started="1") == "interrupted"

    def test_a_run_of_a_zombie_process_is_interrupted(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            from fitscope.store.liveness import is_alive, started

            status = {**me(), "pid": child.pid, "started": started(child.pid), "heartbeat": time.time()}
            assert is_alive(status)
            child.kill()
            deadline = time.monotonic() + 10
            while is_alive(status) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not is_alive(status)  # though nobody has asked for its exit code yet
        finally:
            child.kill()
            child.wait()

    def test_on_another_host_the_heartbeat_decides(self) -> None:
        store = Memory()
        RunWriter.create(store, "r")
        assert self.status(store, machine="another", pid=1) == "running"
        assert self.status(store, machine="another", heartbeat=time.time() - 600) == "interrupted"

    def test_a_run_without_an_attempt_has_a_status(self) -> None:
        store = Memory()
        RunWriter.create(store, "r")
        bare = Memory()
        bare.put("r/run.json", store.get("r/run.json"))
        run = read.open(bare)
        assert (run.status, run.sites, run.attempts) == ("interrupted", [], [])


class TestFollowing:
    def test_old_parts_are_never_read_again(self, make: Make, spy: Any) -> None:
        reads: list[str] = []
        store = Memory()
        writer = RunWriter.create(store, "r")
        run = read.open(spy(store, on_get=lambda key: reads.append(key) if "parquet" in key else None))
        for step in range(20):
            writer.write([make("a", step, np.ones((2, 2), np.float32), keep="stats")])
            writer.flush()
            assert len(run.series("a", "mean")) == step + 1
        assert len(reads) == 20
        reads.clear()
        assert len(run.series("a", "mean")) == 20
        assert reads == []

    def test_a_follower_keeps_bounded_memory(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        from fitscope.read import tables

        monkeypatch.setattr(tables, "KEEP_BYTES", 2_000)
        store = Memory()
        writer = RunWriter.create(store, "r")
        for step in range(60):
            writer.write([make("a", step, np.full((2, 2), step, np.float32), keep="stats")])
            writer.flush()
        run = read.open(store)
        for stat in ("mean", "max", "std", "mean"):
            assert len(run.series("a", stat)) == 60
            assert sum(part.kept_bytes for part in run._state.stats.parts) <= 2_000
        assert run.series("a", "mean").tolist() == list(range(60))

    def test_tensors_of_a_run_that_ends_can_be_read(self, make: Make) -> None:
        """What was read before the end must not be taken for the end."""
        store = Memory()
        writer = RunWriter.create(store, "r")
        writer.write([make("a", 0, np.ones((2, 2), np.float32))])
        writer.flush()
        run = read.open(store)
        assert run.tensor("a").sizes["step"] == 1
        writer.write([make("a", 1, np.ones((2, 2), np.float32)), make("b", 1, np.ones((2, 2), np.float32))])
        writer.close()
        assert run.status == "complete"
        assert run.tensor("a").sizes["step"] == 2
        assert run.sites == ["a", "b"]
        assert run.refresh().tensor("b").sizes["step"] == 1


class TestTensor:
    def test_a_tensor_is_read_lazily(self, make: Make, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        for step in range(4):
            writer.write([make("a", step, np.full((64, 1000), step, np.float32), keep="tensor")])
        writer.close()
        lazy = read.open(tmp_path).tensor("a")
        for chunk in (tmp_path / "r").rglob("c.[012].*"):
            chunk.unlink()
        assert lazy.sel(step=3).values.max() == 3
        assert "values with dtype" in repr(lazy)
        with pytest.raises(RunError, match="it is missing"):
            lazy.sel(step=1).load()

    def test_a_tensor_becomes_a_dask_array(self, run: read.Run) -> None:
        pytest.importorskip("dask")
        lazy = run.tensor("activations/dense1").chunk(step=2)
        assert lazy.chunks is not None
        assert float(lazy.mean().compute()) == 3.5

    def test_dask_reads_tensors_in_processes(self, make: Make, tmp_path: Path) -> None:
        dask = pytest.importorskip("dask")
        import pickle

        writer = RunWriter.create(Files(tmp_path), "r")
        writer.write([make("a", 0, np.ones((2, 2), np.float32))])
        writer.close()
        lazy = read.open(tmp_path).tensor("a").chunk()
        assert float(dask.compute(pickle.loads(pickle.dumps(lazy)).sum())[0]) == 4.0

    def test_a_histogram_equals_that_of_numpy(self, run: read.Run) -> None:
        hist = run.histogram("activations/dense1")
        assert hist.dims == ("step", "bucket")
        assert hist["bucket"].values.tolist() == [129, 130, 131]
        assert hist["edge"].values.tolist() == [1.0, 2.0, 4.0]
        assert hist.values.tolist() == [[6, 0, 0], [0, 6, 0], [0, 6, 0], [0, 0, 6], [0, 0, 6], [0, 0, 6]]
        assert hist["epoch"].values.tolist() == [0, 0, 0, 1, 1, 1]
