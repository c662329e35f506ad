"""Sinks beside a run: what they hold while the training goes on, and that it is what an export would make afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.export import export_run
from fitscope.export.live import tables as live_tables

from .live_training import Training, ask, compare, contents

pytestmark = pytest.mark.once


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize("flush_every", [1, 4, 100])
def test_a_live_export_equals_a_later_export(
    tmp_path: Path, steps: Any, events: Any, kind: str, flush_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tables, "FLUSH_MEMORY", 5_000)
    training = Training(tmp_path, kind=kind)
    steps(training, 0, 8, flush_every=flush_every)
    training.close()
    compare(tmp_path, kind)
    (path,) = export_run(tmp_path / "runs", "tensorboard", tmp_path / "after-logs")
    (live_path,) = (tmp_path / "logs" / "r").iterdir()
    assert live_path.name == path.name
    assert said(events(live_path)) == said(events(path))
    if flush_every == 100:  # otherwise the sites of one step may come in another order
        assert live_path.read_bytes() == path.read_bytes()


def said(found: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (event.step, value.tag, event.wall_time, value.tensor.SerializeToString())
        for event in found
        for value in event.summary.value
    )


def values(found: list[Any]) -> dict[tuple[str, int], float]:
    """By tag and step; the later of two."""
    return {
        (v.tag, e.step): v.tensor.float_val[0] for e in found for v in e.summary.value if v.tensor.float_val
    }


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_other_programs_read_the_exports_during_training(
    tmp_path: Path, steps: Any, events: Any, kind: str
) -> None:
    training = Training(tmp_path, kind=kind)
    training.flush()
    assert ask(tmp_path / "all.db", "SELECT run, status, last_step FROM runs") == [("r", "running", None)]
    steps(training, 0, 5)
    seen = ask(tmp_path / "all.db", "SELECT step, value FROM stats WHERE site = 'loss' ORDER BY step")
    assert seen == [(step, float(np.float32(1 / (step + 1)))) for step in range(5)]
    assert ask(tmp_path / "all.db", "SELECT status, last_step FROM runs") == [("running", 4)]
    assert ask(tmp_path / "all.db", "SELECT count(*) FROM samples") == [(5 * 2 + 6,)]

    path = next((tmp_path / "logs" / "r").iterdir())
    got = values(events(path))
    assert {step for tag, step in got if tag == "loss"} == {0, 1, 2, 3}, "the newest step may get more yet"
    assert got["validation/loss", 3] == 1.5, "its two batches are one value"
    training.flush()
    assert ("loss", 4) in values(events(path)), "nothing more came of it"

    arrays = tmp_path / "arrays"
    assert np.load(arrays / "epoch_0000_predictions.npy")[0, 0] == 2.0
    assert np.load(arrays / "epoch_0001_predictions.npy")[0, 0] == 4.0, (
        "the newest one of an epoch that goes on"
    )
    whole = np.load(arrays / "epoch_0000_validation~predictions.npy")
    np.testing.assert_array_equal(whole[:, 0], [0, 0, 0, 0, 1, 1])
    listed = {entry["file"]: entry for entry in json.loads((arrays / "index.json").read_text())["files"]}
    assert set(listed) == {path.name for path in arrays.iterdir()} - {"index.json"}
    assert listed["epoch_0001_predictions.npy"]["step"] == 4
    training.close()
    assert ask(tmp_path / "all.db", "SELECT status FROM runs") == [("complete",)]


def test_the_last_pass_is_written_at_the_next_flush(tmp_path: Path, steps: Any, events: Any) -> None:
    training = Training(tmp_path)
    steps(training, 0, 3)  # ends with a validation
    path = tmp_path / "arrays" / "epoch_0000_validation~predictions.npy"
    assert not path.exists(), "there may be more batches"
    training.flush()
    assert np.load(path).shape == (6, 3)
    assert values(events(next((tmp_path / "logs" / "r").iterdir())))["validation/loss", 3] == 1.5
    training.close()


def test_a_pass_that_takes_several_flushes_is_complete_in_the_end(
    tmp_path: Path, make: Any, events: Any
) -> None:
    training = Training(tmp_path)
    for number in range(3):
        seen = np.full((2, number + 1), number, np.float32)  # also of another width each time
        training.write([make("validation/predictions", 5, seen, epoch=1, batch=number, keep="both")])
        training.flush()
        training.flush()
        path = tmp_path / "arrays" / "epoch_0001_validation~predictions.npy"
        assert len(np.load(path)) == 2 * (number + 1)
    training.close()
    export_run(tmp_path / "runs", "npy", tmp_path / "after")
    assert contents(tmp_path / "arrays") == contents(tmp_path / "after")
    means = [
        value.tensor.float_val[0]
        for event in events(next((tmp_path / "logs" / "r").iterdir()))
        for value in event.summary.value
        if value.tag == "validation/predictions/mean"
    ]
    assert means == [0.0, np.float32(4 / 6), np.float32(16 / 12)], "the last one is of all batches"


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize(("start", "end"), [(6, 9), (5, 9), (3, 5), (0, 1)])
def test_a_second_attempt_continues_the_live_exports(
    tmp_path: Path, steps: Any, events: Any, kind: str, start: int, end: int
) -> None:
    """Goes on where it was, or does steps again; in the middle of an epoch, or after its validation."""
    first = Training(tmp_path, kind=kind)
    steps(first, 0, 6)
    first.close()
    before = contents(tmp_path / "logs" / "r")
    second = Training(tmp_path, start, kind=kind)
    second.flush()
    if start:  # else nothing is left to compare
        compare(tmp_path, kind)
        shutil.rmtree(tmp_path / "after")
        (tmp_path / "after.db").unlink()
    steps(second, start, end, scale=7.0)
    second.close()
    compare(tmp_path, kind)

    files = sorted((tmp_path / "logs" / "r").iterdir())
    assert [files[0].read_bytes()] == list(before.values()), "the first file stays as it was"
    assert len(files) == 2
    found = events(files[1])
    restarts = [event.step for event in found if event.HasField("session_log")]
    assert restarts == ([start, start] if start < 6 else [])
    got = values(found)
    run = fs.open(tmp_path / "runs")
    assert {step: value for (tag, step), value in got.items() if tag == "loss"} == {
        step: np.float32(value) for step, value in run.series("loss").items() if step >= start
    }
    if start == 3:
        assert got["validation/loss", 3] == 1.5, "the pass at the step of the restart is said again"


def test_a_later_sink_gets_the_earlier_data(tmp_path: Path, steps: Any) -> None:
    first = Training(tmp_path, only=[])
    steps(first, 0, 6)
    first.close()
    second = Training(tmp_path, 4)
    steps(second, 4, 7, scale=3.0)
    second.close()
    compare(tmp_path)


@pytest.mark.parametrize("load_fast", ["false", "true"])
def test_tensorboard_reads_the_live_files(tmp_path: Path, steps: Any, server: Any, load_fast: str) -> None:
    if load_fast == "true":
        pytest.importorskip("tensorboard_data_server", reason="TensorBoard's fast reader is not installed")
    training = Training(tmp_path, only=["tensorboard"])
    options = ("--load_fast", load_fast, "--reload_interval", "1")
    with server(tmp_path / "logs", *options) as (_, wait):

        def follow(tag: str, wanted: dict[int, float]) -> None:
            def ready(found: Any) -> bool:
                return [(step, value) for _, step, value in found] == list(wanted.items())

            wait(ready, "plugin/scalars/scalars", run="r", tag=tag)

        steps(training, 0, 6)
        training.flush()
        follow("loss", {step: float(np.float32(1 / (step + 1))) for step in range(6)})
        follow("validation/loss", {3: 1.5, 6: 1.5})
        training.close()
        second = Training(tmp_path, 3, only=["tensorboard"])
        steps(second, 3, 5, scale=2.0)
        second.flush()
        scaled = {step: (1.0 if step < 3 else 2.0) / (step + 1) for step in range(5)}
        follow("loss", {step: float(np.float32(value)) for step, value in scaled.items()})
        follow("validation/loss", {3: 1.5})
        steps(second, 5, 6, scale=2.0)
        second.close()
        follow("validation/loss", {3: 1.5, 6: 2.5})
