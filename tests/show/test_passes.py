"""What is not of the training, or not a layer's, leaves the picture as it is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fitscope as fs
from fitscope.record import Moment, Record, Samples
from fitscope.reduce.average import Average
from fitscope.reduce.oracle import reduce
from fitscope.show.data.gather import Gathered
from fitscope.show.overview import Overview
from fitscope.show.summary import summary
from fitscope.show.text import Pen
from fitscope.store import RunWriter

pytestmark = pytest.mark.once


def record(site: str, step: int, tensor: Any, batch: int = 0) -> Record:
    array = np.asarray(tensor)
    return Record(site, Moment(step, 0, batch, 1.8e9), array.shape, array.dtype.name, reduce(array))


def gathered(run: fs.Run) -> Gathered:
    found = Gathered(run)
    found.update()
    return found


def drawn(run: fs.Run) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(gathered(run), 100, Pen.of(console)))
    return console.export_text()


def test_passes_are_not_in_the_picture(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "r")
    for step in range(3):
        writer.write([record("loss", step, np.float32(1)), record("activations/a", step, np.ones((2, 2)))])
    for batch in range(4):
        writer.write([record("validation/activations/a", 3, np.full((2, 2), 99.0), batch)])
        writer.write([record("validation/loss", 3, np.float32(99), batch)])
    writer.close()
    run = fs.open(tmp_path)
    overview = Overview(gathered(run))
    assert overview.steps.tolist() == [0, 1, 2]
    assert [layer.name for layer in overview.layers] == ["a"]
    assert "99" not in drawn(run)


def test_a_run_of_passes_samples_and_averages_alone(tmp_path: Path) -> None:
    average = Average.empty()
    average.add(np.ones((2, 3)), 5, batched=True)
    writer = RunWriter.create(tmp_path, "r")
    samples = [Samples(Moment(5, 0, 0, 1.8e9), "evaluate", loss=np.ones(2))]
    writer.write([record("evaluate/loss", 5, np.float32(1))], samples)
    writer.average("evaluate/activations/a", average)
    writer.close()
    run = fs.open(tmp_path)
    assert "Nothing was recorded of any layer" in drawn(run)
    assert "2 sites" in repr(run)
    assert fs.runs(tmp_path)[0].last_step == 5
