"""What is written beside the run changes nothing in the training, and is what an export makes of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from fitscope.export import export_run

pytest.importorskip("tensorboard", reason="needs the tensorboard package: pip install tensorboard")


def train(callbacks: list[Any]) -> tuple[list[np.ndarray], np.ndarray]:
    """All that two calls of `fit` leave behind, and the predictions of the first validation."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(8, activation="relu", name="a"),
            layers.Dropout(0.2),
            layers.Dense(3),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(52, 5)).astype("float32"), rng.integers(0, 3, 52)
    rest = {"batch_size": 8, "validation_data": (x[:12], y[:12]), "verbose": 0, "callbacks": callbacks}
    losses = model.fit(x, y, epochs=2, **rest).history["loss"]
    first = model.predict(x[:12], verbose=0)
    losses += model.fit(x, y, epochs=3, **rest).history["val_loss"]
    state = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
    return [*state, np.array(losses)], first


def test_tensorboard_database_and_npy_sinks_write_during_training(tmp_path: Path) -> None:
    scope = fs.Scope(
        tmp_path / "runs",
        [fs.activations(), fs.weights(), fs.loss(), fs.metrics(), fs.predictions(keep="both")],
        every=2,
        on=("train", "validation"),
        tensorboard=tmp_path / "logs",
        database=f"duckdb:///{tmp_path / 'live.duckdb'}",
        npy=tmp_path / "arrays",
    )
    without, _ = train([])
    with_sinks, first = train([scope])
    for a, b in zip(without, with_sinks, strict=True):
        np.testing.assert_array_equal(a, b)

    run = fs.open(tmp_path / "runs")
    assert run.errors == []
    assert len(run.attempts) == 2
    export_run(run, "npy", tmp_path / "after")
    found, wanted = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("arrays", "after"))
    assert found == wanted
    assert {f"epoch_{epoch:04d}_predictions.npy" for epoch in range(3)} < found.keys()
    # Epoch 1 was validated in both calls, and the later one counts; so look at the run for the first.
    step = int(run.tensor("validation/predictions").step[1])
    np.testing.assert_allclose(run.array("validation/predictions", step), first, rtol=1e-5, atol=1e-6)
    last = np.load(tmp_path / "arrays" / "epoch_0002_validation~predictions.npy")
    np.testing.assert_array_equal(last, run.tensor("validation/predictions")[-1].values)

    rows = _rows(tmp_path / "live.duckdb", "SELECT site, step, batch, mean FROM stats")
    stats = run.stats[["site", "step", "batch", "mean"]]
    assert sorted(rows) == sorted(stats.itertuples(index=False, name=None))
    assert _rows(tmp_path / "live.duckdb", "SELECT run, status FROM runs") == [(run.id, "complete")]
    assert len(list((tmp_path / "logs" / run.id).iterdir())) == 2, "an event file for each attempt"


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as database:
        return database.execute(query).fetchall()
