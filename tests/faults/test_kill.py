"""kill -9 at random moments, and reading while another process writes.

Guaranteed: whatever `flush` returned from is there, every value is right, every tool opens every run. Only
what was not flushed may be missing.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from fitscope import read
from fitscope.store import Files, RunWriter

KILLS = 10


class Child:
    """The process, with what it says going to a file: that survives it, whatever happens."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        script = Path(__file__).with_name("child.py")
        self._log = directory.with_name(f"{directory.name}.log")
        with self._log.open("w") as log:
            command = [sys.executable, str(script), str(directory), *arguments]
            self._process = subprocess.Popen(command, stdout=log)

    def wait_for(self, step: int = -1) -> None:
        """Until it has flushed that step; by default, until there is a run."""
        while self._flushed() < step or not self._log.read_text():
            assert self._process.poll() is None
            time.sleep(0.002)

    def kill(self) -> int:
        """Kills it and returns the last step it said was flushed."""
        self._process.kill()
        self._process.wait(timeout=30)
        return self._flushed()

    def _flushed(self) -> int:
        *lines, _incomplete = self._log.read_text().split("\n")
        return int(lines[-1].split()[1]) if lines else -1


def check_ours(directory: Path, flushed: int, child: ModuleType) -> None:
    run = read.open(directory)
    assert run.status == "interrupted"
    for site in child.SITES:
        due = range(5, flushed + 1, 10) if "large" in site else range(flushed + 1)
        if not due:
            continue
        captured = run.tensor(site)["step"].values.tolist()
        assert captured[: len(due)] == list(due)
        assert len(set(captured)) == len(captured)
        for step in {*captured[-3:], *random.sample(captured, min(3, len(captured)))}:
            assert np.array_equal(run.array(site, step), child.value(site, step))
        series = run.series(site, "min")
        assert series.index.tolist()[: len(due)] == list(due)
        assert (series == series.index * 10 + 1).all()
    assert run.damaged == []
    assert run.sql("select count(*) as n from stats")["n"][0] == len(run.stats)


def check_others(directory: Path, flushed: int, child: ModuleType) -> None:
    rank = directory / "run" / "a0000" / "r00000"
    if flushed < 0:
        return
    parts = f"{rank}/stats/*.parquet"
    for frame in (
        pd.read_parquet(rank / "stats"),
        pl.read_parquet(parts).to_pandas(),
        duckdb.sql(f"select * from '{parts}'").df(),
    ):
        small = frame[frame["site"] == "activations/small"].sort_values("step")
        assert small["step"].tolist()[: flushed + 1] == list(range(flushed + 1))
        assert (frame["min"] == frame["step"] * 10 + 1).all()
    root = zarr.open_group(rank / "tensors.zarr", mode="r")
    for entry in json.loads((rank / "tensors.zarr" / "zarr.json").read_text())["attributes"]["arrays"]:
        array: Any = root[f"{entry['path']}/data"]
        for row in {0, array.shape[0] - 1, array.shape[0] // 2}:
            expected = child.value(entry["site"], array.attrs["step"][row])
            assert np.array_equal(array[row, : len(expected)], expected)
    tree = xr.open_datatree(rank / "tensors.zarr", engine="zarr", consolidated=False)
    last = int(tree["targets/data"].sizes["step"]) - 1
    assert int(tree["targets/data"][last].max()) >= last * 10 + 1


def test_a_process_killed_at_any_moment_leaves_a_readable_run(tmp_path: Path, child: ModuleType) -> None:
    random.seed(time.time_ns())
    for number in range(KILLS):
        directory = tmp_path / str(number)
        process = Child(directory)
        try:
            process.wait_for(2 * number - 1)  # somewhat further each time, and then at a random moment
            time.sleep(random.uniform(0.0, 0.08))
        finally:
            flushed = process.kill()
        check_ours(directory, flushed, child)
        check_others(directory, flushed, child)
        assert flushed >= 2 * number - 1


def test_killed_while_rows_wait_for_a_part(tmp_path: Path, child: ModuleType) -> None:
    """In a long run: parts and tail have every row that was flushed, and none twice."""
    random.seed(time.time_ns())
    waited = 0
    for number in range(KILLS):
        directory = tmp_path / str(number)
        process = Child(directory, "0", str(10**9), "1")
        try:
            process.wait_for(3 + 3 * number)
            time.sleep(random.uniform(0.0, 0.05))
        finally:
            flushed = process.kill()
        check_ours(directory, flushed, child)
        rank = directory / "run" / "a0000" / "r00000"
        frame = pl.read_parquet(f"{rank}/stats/*.parquet", columns=["site", "step", "min"])
        with pa.ipc.open_stream(rank / "tail" / "stats.arrow") as stream:
            part = stream.schema.metadata[b"fitscope.part"].decode()
            tail = pl.from_arrow(stream.read_all().select(frame.columns))
        assert isinstance(tail, pl.DataFrame)
        if not (rank / "stats" / part).exists():
            waited += len(tail) > 0
            frame = pl.concat([frame, tail])
        assert not frame.select("site", "step").is_duplicated().any()
        assert (frame["min"] == frame["step"] * 10 + 1).all()
        small = frame.filter(site="targets").sort("step")["step"].to_list()
        assert small in (list(range(flushed + 1)), list(range(flushed + 2)))
    assert waited > 0


def test_a_killed_and_resumed_training_is_one_run(tmp_path: Path, child: ModuleType) -> None:
    directory = tmp_path / "runs"
    process = Child(directory)
    try:
        process.wait_for(7)
    finally:
        flushed = process.kill()
    begin = max(flushed // 2, 0)
    writer = RunWriter.attempt(directory, "run", start_step=begin)
    for step in range(begin, begin + 30):
        writer.write(child.records(step))
    writer.close()
    run = read.open(directory)
    assert run.status == "complete"
    assert run.series("targets", "min").index.tolist() == list(range(begin + 30))
    assert run.tensor("targets")["step"].values.tolist() == list(range(begin + 30))
    assert np.array_equal(run.array("targets", begin), child.value("targets", begin))


def test_a_process_killed_while_a_run_begins_leaves_nothing_broken(tmp_path: Path) -> None:
    """From the first instruction on: either there is no run yet, or it can be opened."""
    for number in range(4):
        directory = tmp_path / str(number)
        process = Child(directory)
        time.sleep(0.12 + number * 0.06)
        process.kill()
        briefs = read.runs(Files(directory))
        assert [brief.status for brief in briefs] in ([], ["interrupted"])


def test_a_run_can_be_read_while_another_process_writes_it(tmp_path: Path, child: ModuleType) -> None:
    """Every look at a live run shows whole captures with right values, and never fewer than before."""
    directory = tmp_path / "runs"
    rank = directory / "run" / "a0000" / "r00000"
    process = Child(directory, "0.02")
    try:
        process.wait_for()
        run = read.open(directory)
        looks, before, deadline = 0, (0, 0), time.monotonic() + 6.0
        while time.monotonic() < deadline and looks < 60:
            if run.last_step is None:  # tensors may be one flush ahead of the table
                continue
            assert run.status == "running"
            for site in ("activations/middle", "activations/small", "targets"):
                lazy = run.tensor(site)
                newest = int(lazy["step"][-1])
                assert np.array_equal(run.array(site, newest), child.value(site, newest))
            series = run.series("activations/small", "min")
            assert (series == series.index * 10 + 1).all()
            now = (lazy.sizes["step"], len(series))
            assert now[0] >= before[0]
            assert now[1] >= before[1]
            before, looks = now, looks + 1
            if looks % 10 == 0:
                assert len(pl.read_parquet(f"{rank}/stats/*.parquet")) > 0
                assert len(duckdb.sql(f"select * from '{rank}/stats/*.parquet'").df()) > 0
                assert len(pd.read_parquet(rank / "stats")) > 0
                xr.open_datatree(rank / "tensors.zarr", engine="zarr", consolidated=False)
        assert looks > 5
        assert before[0] > 10
        assert run.damaged == []
    finally:
        process.kill()
    assert run.status == "interrupted"


@pytest.mark.parametrize("durable", [False, True])
def test_a_run_that_was_never_closed_has_its_flushed_rows(
    tmp_path: Path, child: ModuleType, durable: bool
) -> None:
    writer = RunWriter.create(Files(tmp_path, durable=durable), "run")
    for step in range(5):
        writer.write(child.records(step))
    writer.flush()
    del writer
    assert read.open(tmp_path).series("targets", "min").index.tolist() == list(range(5))
