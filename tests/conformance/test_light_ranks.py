"""A training of more processes than `Scope(ranks=…)`: the sampled rank records everything, the other its pulse, and both the same steps."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import fitscope as fs

WORLD = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}


def train(rank: int, to: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """One process of the training, as its launcher numbers it. Both are this process, one after the other."""
    for name, value in {**WORLD, "RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(4, name="h"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(2, name="out"),
    ]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).random((96, 6), np.float32)
    watch = [fs.activations(), fs.activations(keep="tensor"), fs.gradients(), fs.weights(), fs.loss()]
    scope = fs.Scope(to, watch, name="exp", ranks=1, on=("train", "validation"))
    model.fit(
        x, x[:, :2], batch_size=8, epochs=3, verbose=0, validation_split=0.1, shuffle=False, callbacks=[scope]
    )
    return list(model.get_weights())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fs.Run:
    weights = [train(rank, tmp_path, monkeypatch) for rank in (0, 1)]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    return fs.open(tmp_path)


def test_a_light_rank_records_its_pulse_alone(run: fs.Run) -> None:
    assert run.status == "complete"
    assert run.ranks["sampled"].tolist() == [True, False]
    assert run.errors == []
    assert run.lost == {}
    folder = Path(run.path) / "a0000" / "r00001"
    assert [path.name for path in folder.iterdir()] == ["status.json"]
    assert set(run.stats["rank"]) == {0}
    assert "activations/h" in run.sites
    pulse = run.pulse.set_index(["rank", "step"])
    steps = [*range(11), 20, 30]
    for rank in (0, 1):
        assert pulse.loc[rank].index.tolist() == steps, "no clock decides"
    np.testing.assert_array_equal(run.series("activations/h", "mean").index, steps)


def test_ranks_that_train_alike_have_the_same_pulse(run: fs.Run) -> None:
    pulse = run.pulse.set_index(["rank", "step"])
    np.testing.assert_array_equal(pulse.loc[0]["weights"], pulse.loc[1]["weights"])
    np.testing.assert_array_equal(pulse.loc[0]["loss"], pulse.loc[1]["loss"])
    assert pulse["weights"].nunique() == 13, "weights move, and every move is seen"
    np.testing.assert_allclose(pulse.loc[0]["loss"], run.series("loss").loc[pulse.loc[0].index], rtol=1e-6)
    assert not [
        found for found in run.findings() if found.rule == "rank_differs" and found.severity == "error"
    ]
