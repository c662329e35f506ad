"""A training on s3://, end to end: capture, live page, report, check, export."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fitscope as fs
from fitscope.cli import app
from fitscope.show.app import Pages, Parameters, Watcher
from fitscope.show.shelf import Shelf


@pytest.fixture(scope="module")
def runs(s3: str) -> str:
    """The place of one run, trained under a scope."""
    import keras

    pytest.importorskip("obstore")
    place = f"{s3}/{uuid.uuid4().hex}"
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, name="h"), keras.layers.Dense(2, name="out")]
    )
    model.compile("sgd", "mse")
    watch = [fs.activations(), fs.activations("h", keep="tensor"), fs.gradients(), fs.weights(), fs.loss()]
    x = np.random.default_rng(0).random((32, 6), np.float32)
    model.fit(x, x[:, :2], batch_size=8, epochs=2, verbose=0, callbacks=[fs.Scope(place, watch, every=1)])
    return place


def call(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_in_a_bucket_is_complete(runs: str) -> None:
    run = fs.open(runs)
    assert run.status == "complete"
    assert run.errors == []
    assert run.lost == {}
    assert len(run.series("loss")) == 8
    assert run.tensor("activations/h").shape == (8, 8, 4)
    assert run.path.startswith("s3://")


def test_the_page_shows_a_run_in_a_bucket(runs: str) -> None:
    pages = Pages(Shelf(runs), 1.0, lambda: False)
    head = json.loads(bytes(pages.head(Parameters({})).body))
    assert [row["name"] for row in head["rows"]][-2:] == ["h", "out"]
    assert pages.matrix(Parameters({"measure": "gradients.rms"})).status_code == 200
    assert Watcher(pages, Parameters({"measure": "gradients.rms"})).tick()


def test_a_run_in_a_bucket_has_a_report(runs: str, tmp_path: Path) -> None:
    call("report", runs, "-o", str(tmp_path / "r.html"))
    assert "fitscope" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_check_and_show_read_a_run_in_a_bucket(runs: str) -> None:
    assert "rules checked" in CliRunner().invoke(app, ["check", runs]).stdout
    assert "activations" in call("show", runs)


def test_a_run_in_a_bucket_is_exported(runs: str, tmp_path: Path) -> None:
    import pandas as pd

    call("export", "parquet", runs, str(tmp_path / "out"))
    files = [*(tmp_path / "out").rglob("*.parquet")] or [tmp_path / "out"]
    assert sum(len(pd.read_parquet(file)) for file in files) == len(fs.open(runs).stats)
