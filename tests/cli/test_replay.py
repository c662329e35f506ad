"""`fitscope replay` lists and runs the steps of a training that a signal ended, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fitscope import read
from fitscope.cli import app

TRAINING = """
import os, signal, sys, time
import keras, numpy as np
import fitscope as fs

def make():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    scope = fs.Scope(sys.argv[1], fs.loss(), every=2, black_box=4)
    make().fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[scope, Killed()])
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on JAX that SIGTERM ends after step 7."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "train.py").write_text(TRAINING)
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, str(folder / "train.py"), str(folder / "runs")]
    done = subprocess.run(command, env=environment, check=False, timeout=200)
    assert done.returncode == -signal.SIGTERM
    return folder


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["replay", *arguments])


def test_sigterm_writes_the_steps_and_they_are_listed(killed: Path) -> None:
    run = read.open(killed / "runs")
    assert run.status == "interrupted"
    assert {4, 5, 6, 7} <= {*run.black_box[0].steps}
    listed = call(str(killed / "runs"))
    assert listed.exit_code == 0
    assert "SIGTERM" in listed.output
    assert "7" in listed.output


@pytest.mark.parametrize("given", [(), ("--model", "train.py:make")], ids=["stored", "given"])
def test_a_step_runs_again_in_another_process(
    killed: Path, given: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(killed)
    done = call("runs", "--step", "6", *given)
    output = capfd.readouterr()
    assert done.exit_code == 0, output.err
    assert "as in the training, bit for bit" in output.out
    assert "weight_gradients/dense/kernel" in output.out


def test_replaying_a_step_that_was_not_kept_is_an_error(killed: Path) -> None:
    done = call(str(killed / "runs"), "--step", "99")
    assert done.exit_code == 2


def test_a_run_without_a_black_box_lists_nothing(write: Any) -> None:
    writer = write()
    done = call(writer.path)
    assert done.exit_code == 0
    assert "wrote no steps" in done.output
