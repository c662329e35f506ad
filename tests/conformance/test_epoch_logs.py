"""What Keras says of each epoch is in the run, as `history` has it: `logs/loss`, `logs/val_loss`, …"""

from __future__ import annotations

import keras
import numpy as np
import pytest

import fitscope as fs


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(1)])
    net.compile("sgd", "mse", metrics=["mae"])
    return net


def data(n: int = 22) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)).astype("float32"), rng.normal(size=(n, 1)).astype("float32")


@pytest.mark.parametrize("validation", [False, True], ids=["train", "validation"])
def test_the_run_has_the_history_of_fit(tmp_path, validation):
    x, y = data()
    scope = fs.Scope(tmp_path, watch=fs.weights("a"))
    given = {"validation_data": data(10)} if validation else {}
    history = model().fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[scope], **given).history
    run = fs.open(scope.path)
    names = {"loss", "mae"} | ({"val_loss", "val_mae"} if validation else set())
    assert {site for site in run.sites if site.startswith("logs/")} == {f"logs/{name}" for name in names}
    for name in names:
        series = run.series(f"logs/{name}")
        assert series.index.tolist() == [2, 5, 8], "the last step of each epoch"
        assert series.tolist() == history[name]
    assert run.frame("logs/loss")["epoch"].tolist() == [0, 1, 2]
    assert run.sql("select distinct kind from stats where site = 'logs/mae'")["kind"].tolist() == ["logs"]


def test_logs_that_are_not_numbers_are_left_out(tmp_path):
    class Names(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["name"], logs["big"] = "epoch", float("-inf")

    scope = fs.Scope(tmp_path, watch=fs.weights("a"))
    model().fit(*data(), batch_size=8, verbose=0, callbacks=[Names(), scope])
    run = fs.open(scope.path)
    assert "logs/name" not in run.sites
    assert run.series("logs/big").tolist() == [-np.inf]
    assert run.errors == []


def test_a_continued_training_has_one_log_for_each_epoch(tmp_path):
    x, y = data()
    net, scope = model(), fs.Scope(tmp_path)
    first = net.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[scope]).history["loss"]
    more = net.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[scope]).history["loss"]
    series = fs.open(scope.path).series("logs/loss")
    assert series.index.tolist() == [2, 5, 8, 11]
    assert series.tolist() == first + more
