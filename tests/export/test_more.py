"""Single samples, averages and cosines in the exports, and passes that reach into the next attempt."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

import fitscope as fs
from fitscope.errors import RunError
from fitscope.export import export_run
from fitscope.record import Moment, Record, Samples
from fitscope.reduce.average import Average
from fitscope.store import RunWriter

pytestmark = pytest.mark.once


@pytest.fixture
def rich(make: Any, tmp_path: Path) -> fs.Run:
    """A run with some of everything, in two attempts."""
    writer = RunWriter.create(tmp_path / "runs", "rich")
    average = Average.empty()
    for step in range(4):
        batch = np.full((2, 3), step, np.float32)
        average.add(batch, step, batched=True)
        plain = make("changes/predictions", step, batch)
        change = Record(plain.site, plain.at, plain.shape, plain.dtype, plain.stats, cosine=step / 8)
        at = Moment(step, 0, step, 1.8e9 + step)
        loss = np.array([step, step + 0.5])
        rows = Samples(at, "train", ids=["a", "b"], loss=loss, target=np.eye(2), prediction=loss)
        writer.write([make("loss", step, np.float32(step)), change], [rows])
        writer.flush()
    at = Moment(4, 0, 0, 1.8e9 + 4)
    writer.write(
        [make("validation/predictions", 4, np.full((2, 1), b), batch=b, keep="both") for b in range(3)],
        [Samples(at, "validation", loss=np.array([9.0]))],
    )
    writer.average("activations/head", average)
    writer.close()
    later = RunWriter.attempt(tmp_path / "runs", "rich", start_step=4)
    later.write([make("loss", 4, np.float32(4))])
    later.close()
    return fs.open(tmp_path / "runs")


LOSSES = [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 9]


def test_parquet_writes_the_samples_to_a_second_file(rich: fs.Run, tmp_path: Path) -> None:
    written = export_run(rich, "parquet", tmp_path / "out.parquet")
    assert written == [tmp_path / "out.parquet", tmp_path / "out.samples.parquet"]
    frame = pd.read_parquet(written[1])
    assert frame["loss"].tolist() == LOSSES
    assert frame["target"][1].tolist() == [0, 1]
    stats = pd.read_parquet(written[0])
    changes = stats[stats["site"] == "changes/predictions"]
    assert changes["cosine"].tolist() == [0, 0.125, 0.25, 0.375]
    assert (stats["site"] == "validation/predictions").sum() == 3, "the pass at the step of the next attempt"


def test_csv_writes_the_samples_to_a_second_file(rich: fs.Run, tmp_path: Path) -> None:
    written = export_run(rich, "csv", tmp_path / "out.csv")
    frame = pd.read_csv(written[1])
    assert frame["loss"].tolist() == LOSSES
    assert json.loads(frame["target"][0]) == [1, 0]
    assert frame["pass"].tolist() == ["train"] * 8 + ["validation"]


def test_samples_are_exported_unless_other_sites_are_chosen(
    rich: fs.Run, small: fs.Run, tmp_path: Path
) -> None:
    assert len(export_run(rich, "csv", tmp_path / "a.csv", "loss")) == 1
    assert len(export_run(rich, "csv", tmp_path / "b.csv", "samples")) == 2
    assert len(export_run(small, "csv", tmp_path / "c.csv")) == 1, "a run without samples"
    with pytest.raises(RunError, match="samples"):
        export_run(small, "csv", tmp_path / "d.csv", "samples")


def test_databases_have_a_table_of_samples(rich: fs.Run, small: fs.Run, tmp_path: Path) -> None:
    query = "select loss from samples where run = 'rich' order by step, pass, sample"
    export_run(rich, "duckdb", tmp_path / "a.duckdb")
    export_run(small, "duckdb", tmp_path / "a.duckdb")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        assert [row[0] for row in connection.execute(query).fetchall()] == LOSSES
        assert connection.execute("select count(distinct run) from samples").fetchone() == (1,)
    export_run(rich, "sqlite", tmp_path / "a.sqlite")
    export_run(rich, "sqlite", tmp_path / "a.sqlite", force=True)
    connection = sqlite3.connect(tmp_path / "a.sqlite")
    assert [row[0] for row in connection.execute(query)] == LOSSES
    assert connection.execute("select max(cosine) from stats").fetchone() == (0.375,)
    connection.close()


def test_npz_has_the_averages(rich: fs.Run, tmp_path: Path) -> None:
    export_run(rich, "npz", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["activations/head@mean"].tolist() == [1.5] * 3
        np.testing.assert_allclose(archive["activations/head@std"], [np.std(range(4))] * 3)
        assert archive["activations/head@count"] == 8
        assert archive["validation/predictions"][0, :, 0].tolist() == [0, 0, 1, 1, 2, 2]
        averages = json.loads(archive["@index.json"])["averages"]
    assert averages == [
        {
            "key": "activations/head",
            "site": "activations/head",
            "captures": 4,
            "first_step": 0,
            "last_step": 3,
        }
    ]
    export_run(rich, "npz", tmp_path / "b.npz", "activations/*")
    with np.load(tmp_path / "b.npz") as archive:
        assert sorted(key for key in archive.files if "@" not in key[:1]) == [
            f"activations/head@{name}" for name in ("count", "mean", "std")
        ]


def test_npy_and_tensorboard_export_a_run_with_samples(rich: fs.Run, tmp_path: Path) -> None:
    export_run(rich, "npy", tmp_path / "npy")
    seen = np.load(tmp_path / "npy/epoch_0000_validation~predictions.npy")
    assert seen[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    if pytest.importorskip("tensorboard"):
        assert export_run(rich, "tensorboard", tmp_path / "logs")
