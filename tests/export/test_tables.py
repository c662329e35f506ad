"""parquet, csv, duckdb, sqlite: the statistics, against the run and against numbers worked out by hand."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import fitscope as fs
from fitscope.errors import FitscopeWarning, StoreError
from fitscope.export import export_run, rows
from fitscope.store import RunWriter
from fitscope.store.schema import STATS_SCHEMA

pytestmark = pytest.mark.once


def test_parquet_is_the_stats_table(small: fs.Run, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "stats.parquet"
    assert export_run(small, "parquet", out) == [out]
    pd.testing.assert_frame_equal(pd.read_parquet(out), small.stats)
    assert pq.read_schema(out).names == STATS_SCHEMA.names
    assert list(out.parent.iterdir()) == [out], "nothing unfinished is left"


def test_csv_holds_the_rows_computed_by_hand(small: fs.Run, tmp_path: Path) -> None:
    export_run(small.path, "csv", tmp_path / "stats.csv")
    with open(tmp_path / "stats.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == STATS_SCHEMA.names
    first = next(row for row in found if row["site"] == "activations/a")
    assert (first["step"], first["shape"], first["value"], first["count"]) == ("0", "[2, 2]", "", "4")
    assert (float(first["mean"]), float(first["min"]), float(first["max"])) == (-0.25, -4.0, 2.0)
    assert float(first["rms"]) == pytest.approx(math.sqrt(21 / 4), abs=0)
    assert (first["zeros"], first["negatives"]) == ("1", "1")
    # −4 = −2² → −(2 + 129), 0 → 0, 1 = 2⁰ → 129, 2 = 2¹ → 130
    assert json.loads(first["buckets"]) == [-131, 0, 129, 130]
    assert json.loads(first["counts"]) == [1, 1, 1, 1]
    loss = [float(row["value"]) for row in found if row["site"] == "loss"]
    assert loss == [float(np.float32(1 / (step + 1))) for step in range(6)]


def test_only_the_chosen_sites_and_stats_are_exported(small: fs.Run, tmp_path: Path) -> None:
    export_run(small, "parquet", tmp_path / "some.parquet", "val*", stats=["mean", "histogram"])
    frame = pd.read_parquet(tmp_path / "some.parquet")
    assert set(frame["site"]) == {"validation/loss", "validation/predictions"}
    assert list(frame.columns) == [*rows.ABOUT, "mean", "buckets", "counts"]
    export_run(small, "csv", tmp_path / "some.csv", ["loss", "activations/?"], stats="rms")
    assert list(pd.read_csv(tmp_path / "some.csv").columns) == [*rows.ABOUT, "rms"]


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path), read_only=True) as database:
            return database.execute(query).fetchall()
    with sqlite3.connect(path) as lite:
        return lite.execute(query).fetchall()


@pytest.fixture(params=["duckdb", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_databases_hold_the_rows_computed_by_hand(small: fs.Run, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"runs.{kind}"
    export_run(small, kind, out)
    query = (
        "SELECT run, step, epoch, mean, zeros, value FROM stats WHERE site = 'activations/a' ORDER BY step"
    )
    assert ask(out, query) == [("first", s, s // 3, -0.25 * 2**s, 1, None) for s in range(6)]
    query = "SELECT step, value FROM stats WHERE site = 'loss' ORDER BY step"
    assert ask(out, query) == list(small.series("loss").items())
    query = """SELECT bucket, lower, upper, count FROM histograms
               WHERE site = 'activations/a' AND step = 0 ORDER BY bucket"""
    assert ask(out, query) == [
        (-131, -8.0, -4.0, 1), (0, 0.0, 0.0, 1), (129, 1.0, 2.0, 1), (130, 2.0, 4.0, 1)
    ]  # fmt: skip
    assert ask(out, "SELECT sum(count) FROM histograms") == [(small.stats["count"].sum(),)]
    query = "SELECT run, status, last_step, model, parameters, errors FROM runs"
    assert ask(out, query) == [("first", "complete", 6, "net", 7, 0)]
    assert ask(out, "SELECT count(*) FROM stats") == [(len(small.stats),)]


def test_a_second_run_is_added_to_the_database(
    small: fs.Run, write: Callable[..., RunWriter], make: Any, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / f"runs.{kind}"
    export_run(small, kind, out)
    other = fs.open(write([make("loss", 0, np.float32(5))], name="second").path)
    export_run(other, kind, out)
    count = len(small.stats)
    query = "SELECT run, count(*) FROM stats GROUP BY run ORDER BY run"
    assert ask(out, query) == [("first", count), ("second", 1)]
    with pytest.raises(StoreError, match=r"has run 'second'.*--force"):
        export_run(other, kind, out)
    export_run(other, kind, out, force=True)
    assert ask(out, query) == [("first", count), ("second", 1)]
    assert ask(out, "SELECT run FROM runs ORDER BY run") == [("first",), ("second",)]


def test_a_failure_leaves_the_database_as_it_was(
    small: fs.Run, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"runs.{kind}"

    def fails(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("fitscope.export.database.histograms", fails)
        with pytest.raises(StoreError, match="the disk is full"):
            export_run(small, kind, out)
        assert not out.exists()
    export_run(small, kind, out, "loss")
    monkeypatch.setattr("fitscope.export.database.histograms", fails)
    with pytest.raises(StoreError, match="the disk is full"):
        export_run(small, kind, out, force=True)
    assert ask(out, "SELECT DISTINCT site FROM stats") == [("loss",)]


def test_an_error_of_the_database_is_an_export_error(
    small: fs.Run, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"runs.{kind}"

    def fails(*_: Any) -> None:
        raise duckdb.IOException("no space") if kind == "duckdb" else sqlite3.OperationalError("no space")

    monkeypatch.setattr("fitscope.export.database.histograms", fails)
    with pytest.raises(StoreError, match=r"Received: .*no space"):
        export_run(small, kind, out)
    assert list(tmp_path.glob("runs.*")) == []


def test_a_file_that_is_not_a_database_is_not_touched(small: fs.Run, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"letter.{kind}"
    out.write_text("Dear reader, " * 500)
    with pytest.raises(StoreError, match="Expected a database made by"):
        export_run(small, kind, out, force=True)
    assert out.read_text().startswith("Dear reader")
    foreign = tmp_path / f"foreign.{kind}"
    connect: Any = duckdb.connect if kind == "duckdb" else sqlite3.connect
    with connect(str(foreign)) as database:
        database.execute("CREATE TABLE stats (x INTEGER)")
    with pytest.raises(StoreError, match="its table stats has no column run"):
        export_run(small, kind, foreign)


def test_a_database_of_an_older_version_gets_its_columns(small: fs.Run, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"old.{kind}"
    connect: Any = duckdb.connect if kind == "duckdb" else sqlite3.connect
    with connect(str(out)) as database:
        database.execute("CREATE TABLE stats (run TEXT, site TEXT, step BIGINT)")
    export_run(small, kind, out)
    assert ask(out, "SELECT max(rms) FROM stats WHERE site = 'loss'") == [(1.0,)]


def test_nan_and_the_outermost_buckets(write: Any, make: Any, tmp_path: Path, kind: str) -> None:
    wild = np.array([1e-300, -1e-300, 1e300, -1e300, np.nan, np.inf])
    run = fs.open(write([make("loss", 0, np.float32(np.nan)), make("activations/w", 0, wild)]).path)
    out = tmp_path / f"runs.{kind}"
    export_run(run, kind, out)
    query = "SELECT bucket, lower, upper FROM histograms WHERE site = 'activations/w' ORDER BY bucket"
    inf, tiny, huge = math.inf, 2.0**-127, 2.0**127
    assert ask(out, query) == [(-256, -inf, -huge), (-1, -tiny, 0.0), (1, 0.0, tiny), (256, huge, inf)]
    ((value, nans),) = ask(out, "SELECT value, nans FROM stats WHERE site = 'loss'")
    assert nans == 1
    assert value is None if kind == "sqlite" else math.isnan(value)


def test_hostile_names_are_escaped_in_every_table(write: Any, make: Any, tmp_path: Path) -> None:
    names = [
        "activations/a\x00b\x1b[31m\n",
        "../../etc/passwd",
        'x","y',
        "'; DROP TABLE stats; --",
        "n" * 3000,
    ]
    run = fs.open(write([make(name, 0, np.ones(2, np.float32)) for name in names]).path)
    for kind, name in (
        ("csv", "s.csv"),
        ("parquet", "s.parquet"),
        ("duckdb", "s.duckdb"),
        ("sqlite", "s.sqlite"),
    ):
        export_run(run, kind, tmp_path / name)
    with open(tmp_path / "s.csv", newline="") as file:
        assert {row["site"] for row in csv.DictReader(file)} == set(run.sites)
    assert set(pd.read_parquet(tmp_path / "s.parquet")["site"]) == set(run.sites)
    for name in ("s.duckdb", "s.sqlite"):
        assert {site for (site,) in ask(tmp_path / name, "SELECT site FROM stats")} == set(run.sites)
    export_run(run, "csv", tmp_path / "one.csv", "n" * 3000)
    assert len(pd.read_csv(tmp_path / "one.csv")) == 1


def test_a_live_run_is_exported_in_its_current_state(
    write: Any, make: Any, tmp_path: Path, kind: str
) -> None:
    writer = write([make("loss", 0, np.float32(1))], close=False)
    run = fs.open(writer.path)
    export_run(run, "parquet", tmp_path / "live.parquet")
    assert list(pd.read_parquet(tmp_path / "live.parquet")["step"]) == [0]
    writer.write([make("loss", 1, np.float32(2))])
    writer.flush()
    export_run(run, "parquet", tmp_path / "live.parquet", force=True)
    assert list(pd.read_parquet(tmp_path / "live.parquet")["step"]) == [0, 1]
    export_run(run, kind, tmp_path / f"live.{kind}")
    assert ask(tmp_path / f"live.{kind}", "SELECT status FROM runs") == [("running",)]
    writer.close()


def test_a_damaged_part_is_named_and_the_rest_is_exported(write: Any, make: Any, tmp_path: Path) -> None:
    writer = write([make("loss", s, np.float32(s)) for s in range(4)], flush_every=1)
    run = fs.open(writer.path)
    assert run.sites == ["loss"]
    part = sorted((Path(writer.path) / "a0000/r00000/stats").iterdir())[1]
    part.write_bytes(b"x" * part.stat().st_size)
    with pytest.warns(FitscopeWarning, match="part-000001"):
        export_run(run, "csv", tmp_path / "s.csv")
    assert list(pd.read_csv(tmp_path / "s.csv")["step"]) == [0, 2, 3]


def test_attempts_and_ranks_follow_one_another_by_step(make: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = RunWriter.create(runs, "r", world=2)
    second = RunWriter.join(runs, "r", 0, 1)
    for step in range(40):
        first.write([make("a", step, np.full(2, step, np.float32))])
        first.flush()
        second.write([make("a", step, np.full(2, -step, np.float32))])
        if step % 7 == 0:  # another rhythm
            second.flush()
    first.close("failed")
    second.close("failed")
    again = RunWriter.attempt(runs, "r", start_step=30)
    again.write([make("a", step, np.full(2, 1000, np.float32)) for step in range(30, 50)])
    again.close()
    run = fs.open(runs / "r")
    export_run(run, "parquet", tmp_path / "s.parquet")
    frame = pd.read_parquet(tmp_path / "s.parquet")
    moments = list(zip(frame["step"], frame["attempt"], frame["rank"], strict=True))
    old = [(step, 0, rank) for step in range(30) for rank in (0, 1)]
    assert moments == [*old, *((step, 1, 0) for step in range(30, 50))]


@pytest.mark.parametrize("form", ["parquet", "csv", "duckdb", "sqlite", "tensorboard"])
def test_a_long_run_is_exported_in_pieces(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """20,000 rows in 40 parts: what is in memory at once is one part, whatever the format."""
    monkeypatch.setattr("fitscope.store.parts.SHARE", 40)
    if form == "tensorboard":
        pytest.importorskip("tensorboard", reason="needs the tensorboard package")
    writer = RunWriter.create(tmp_path / "runs", "long")
    pattern = [make(f"activations/{n}", 0, np.ones(1, np.float32)) for n in range(40)]
    for step in range(500):
        writer.write([replace(one, at=replace(one.at, step=step)) for one in pattern])
        if step % 13 == 12:
            writer.flush()
    writer.close()
    pieces: list[int] = []
    merged = rows._merged

    def spied(*how: Any) -> Any:
        for table in merged(*how):
            pieces.append(table.num_rows)
            yield table

    monkeypatch.setattr(rows, "_merged", spied)
    monkeypatch.setattr("fitscope.export.parquet.GROUP_ROWS", 2_000)
    told: list[tuple[int, int]] = []
    run = fs.open(writer.path)
    sites = None if form != "tensorboard" else "activations/1*"  # its checksums are plain Python
    export_run(run, form, tmp_path / f"out.{form}", sites, progress=lambda *at: told.append(at))
    assert sum(pieces) == (20_000 if sites is None else 11 * 500)
    assert max(pieces) <= 13 * 40
    assert told == [(n, 39) for n in range(1, 40)]
    assert run._state.stats._used and sum(p.kept_bytes for p in run._state.stats.parts) == 0  # noqa: PT018
    if form == "parquet":
        file = pq.ParquetFile(tmp_path / "out.parquet")
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert sum(groups) == 20_000
        assert max(groups) <= 2_000
        assert len(groups) >= 10


def test_rows_that_wait_for_a_part_are_exported(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long run that is still going."""
    monkeypatch.setattr("fitscope.store.parts.SHARE", 2)
    writer = RunWriter.create(tmp_path / "runs", "long")
    for step in range(20):
        writer.write([make(f"activations/{n}", step, np.full(2, step, np.float32)) for n in range(3)])
        writer.flush()
    run = fs.open(writer.path)
    export_run(run, "parquet", tmp_path / "out.parquet")
    assert any(part.becomes for part in run._state.stats.parts)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["step"].to_pylist() == [step for step in range(20) for _ in range(3)]
    assert table["mean"].to_pylist() == table["step"].to_pylist()
    writer.close()
