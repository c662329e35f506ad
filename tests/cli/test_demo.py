"""`fitscope demo`: what its training leaves behind, in small, and what the command makes of it."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fitscope as fs
import fitscope.cli
from fitscope.cli import demo_training as demo

COMMAND = sys.modules["fitscope.cli.demo"]  #: the module; `fitscope.cli.demo` is the function in it


@pytest.mark.per_backend
def test_both_faults_are_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EVERY", 4)
    monkeypatch.setattr(demo, "BATCHES", 8)
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo, "UNSCALED", 4)
    said = Console(file=io.StringIO())
    run = fs.open(demo.train(str(tmp_path), said))
    assert run.status == "complete"
    assert run.errors == []
    side = run.frame("activations/side").eval("zeros / count")
    assert (side > 0.95).all()
    conv1 = run.series("activations/conv1", "rms")
    assert list(conv1.index) == [0, 4, 8, 12]
    assert (conv1[[4, 12]] > 50 * conv1[[0, 8]].to_numpy()).all()


def test_check_names_both_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EVERY", 1)
    monkeypatch.setattr(demo, "BATCHES", 12)
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo, "UNSCALED", 7)
    found = fs.open(demo.train(str(tmp_path), Console(file=io.StringIO()))).findings()
    named = {(one.rule, one.layer, one.first_step) for one in found if one.severity != "note"}
    assert named == {("dead_relu", "side", 0), ("odd_batch", "conv1", 7)}
    assert "batch 7 of each epoch" in next(one for one in found if one.rule == "odd_batch").message


def test_the_pictures_are_the_same_every_time_and_all_digits_differ() -> None:
    (images, labels), (again, _) = demo.digits(200), demo.digits(200)
    assert np.array_equal(images, again)
    assert images.shape == (200, 16, 16, 1)
    assert images.min() >= 0
    assert images.max() <= 1
    assert set(labels) == set(range(10))
    assert len(set(demo.LIT)) == 10


def test_the_command_shows_the_run_and_the_next_commands(
    call: Callable[..., Any], write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], env: dict[str, str], check: bool) -> Any:
        asked.append((command[1:], env["KERAS_BACKEND"]))
        write()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(COMMAND, "subprocess", SimpleNamespace(run=run))
    result = call("demo", "--backend", "jax")
    assert result.exit_code == 0
    assert asked == [(["-m", "fitscope.cli.demo_training", "--to", "runs"], "jax")]
    assert "✓ complete" in result.stdout
    assert " show runs --layers 'conv*'" in result.stdout
    assert " ls runs" in result.stdout
    assert " check runs" in result.stdout
    assert " serve runs" in result.stdout
    assert Path("runs/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [brief.id for brief in fs.runs("runs")] == ["first"], "the report is not taken for a run"


def test_the_demo_can_be_looked_at_while_it_trains(
    call: Callable[..., Any], write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    served: list[str] = []

    def run(command: list[str], env: dict[str, str], check: bool) -> Any:
        served.extend(thread.name for thread in set(threading.enumerate()) - before)
        write()
        return SimpleNamespace(returncode=0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMAND, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(COMMAND, "_until_interrupted", interrupted)
    result = call("demo", "--backend", "jax", "--serve")
    assert result.exit_code == 0, result.output
    assert "fitscope-page" in served, "before the training begins"
    assert result.stdout.count("http://127.0.0.1:") == 2
    assert "fitscope-page" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_training_that_fails_is_not_shown(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        COMMAND, "subprocess", SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=3))
    )
    result = call("demo", "--backend", "jax")
    assert result.exit_code == 3
    assert not result.stdout
