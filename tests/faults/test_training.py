"""The same faults, met by a training: it goes on, is bit-identical, and the run says what is missing.

On every backend: a disk that fills up, a limit that is reached, a process that is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import fitscope as fs

pytestmark = pytest.mark.per_backend


def train(*callbacks, epochs: int = 2) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential([layers.Input((64,)), layers.Dense(256, "relu", name="wide"), layers.Dense(2)])
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(512, 64)).astype("float32"), rng.normal(size=(512, 2)).astype("float32")
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model.get_weights()


def caught(scope: fs.Scope) -> tuple[list[np.ndarray], list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        weights = train(scope)
    return weights, [str(w.message) for w in found if issubclass(w.category, fs.FitscopeWarning)]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_training_survives_a_disk_that_fills_up(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [str(shutil.which("mount")), "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)]
    if (
        shutil.which("mount") is None
        or os.geteuid() != 0
        or subprocess.run(mount, capture_output=True).returncode
    ):
        pytest.skip("this machine does not let us mount a small file system")
    try:
        scope = fs.Scope(disk, [fs.activations("wide", keep="tensor"), fs.loss()], every=1)
        weights, told = caught(scope)
        assert same(weights, train())
        during = [text for text in told if "could not record everything" in text]
        assert len(during) == 1  # once, however often it is met
        assert "No space left" in during[0]
        run = fs.open(disk)
        kept = run.tensor("activations/wide").sizes["step"]
        assert 0 < kept < 32
        assert kept + run.lost["activations/wide"] == 32
        assert any("No space left" in error for error in run.errors)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_training_continues_after_its_run_reached_the_limit(tmp_path):
    scope = fs.Scope(tmp_path, [fs.activations("wide", keep="both"), fs.loss()], every=1, limit="400 kB")
    weights, told = caught(scope)
    assert same(weights, train())
    assert len(told) == 1
    assert "reached its limit" in told[0]
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert 0 < run.limit_reached_at < 32
    assert run.tensor("activations/wide").sizes["step"] == run.limit_reached_at
    assert sum(f.stat().st_size for f in Path(run.path).rglob("*") if f.is_file()) < 450_000


def test_every_due_step_after_the_limit_is_counted(tmp_path):
    """Also those of later epochs and of validations, which are not captured at all."""
    x, y = np.ones((256, 8), "float32"), np.ones((256, 1), "float32")
    watch = [fs.activations(on=("train", "validation")), fs.weights(), fs.loss()]
    runs = {}
    for limit in ("1 GB", "40 kB"):
        layers = [keras.layers.Dense(16, name="hidden"), keras.layers.Dense(1, name="out")]
        model = keras.Sequential([keras.layers.Input((8,)), *layers])
        model.compile("sgd", "mse")
        scope = fs.Scope(tmp_path, watch, every=2, limit=limit, name=limit[-2:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fs.FitscopeWarning)
            model.fit(x, y, batch_size=4, epochs=3, validation_data=(x, y), verbose=0, callbacks=[scope])
        runs[limit] = fs.open(scope.path)
    whole, run = runs["1 GB"], runs["40 kB"]
    assert run.limit_reached_at is not None
    for site in whole.sites:
        kept = len(run.frame(site)) if site in run.sites else 0
        assert kept + run.lost.get(site, 0) == len(whole.frame(site)), site


CHILD = """
    import sys, keras, numpy as np, fitscope as fs
    layers = keras.layers
    model = keras.Sequential([layers.Input((8,)), layers.Dense(16, "relu", name="hidden"), layers.Dense(2)])
    model.compile("sgd", "mse")

    class Say(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(epoch, flush=True)

    x, y = np.ones((64, 8), "float32"), np.ones((64, 2), "float32")
    scope = fs.Scope(sys.argv[1], [fs.activations(keep="both"), fs.loss()], every=1)
    model.fit(x, y, batch_size=8, epochs=10**6, verbose=0, callbacks=[scope, Say()])
"""


def test_a_killed_training_leaves_its_captured_steps(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(CHILD))
    child = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # an epoch is over
        deadline = time.monotonic() + 60
        seen: list[float] = []
        while not seen and time.monotonic() < deadline:
            time.sleep(0.2)
            run = fs.open(tmp_path / "runs")
            assert run.status == "running"
            seen = list(run.series("loss")) if "loss" in run.sites else []
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    run = fs.open(tmp_path / "runs")
    assert run.status == "interrupted"
    assert seen
    assert list(run.series("loss"))[: len(seen)] == seen
    assert list(run.series("loss").index) == list(range(len(run.series("loss"))))
    assert not np.isnan(run.tensor("activations/hidden").values).any()
    assert not run.damaged
