"""Small runs written straight into a store, and a way to call the command line on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

Write = Callable[..., RunWriter]


def record(site: str, step: int, tensor: Any, epoch: int = 0) -> Record:
    array = np.asarray(tensor, np.float32)
    at = Moment(step, epoch, step, 1_800_000_000.0 + step)
    return Record(site, at, array.shape, "float32", reduce(array), batched=array.ndim > 0)


def describe(names: list[str]) -> dict[str, Any]:
    """A model as the capturing side describes it."""
    layers = [
        {
            "path": n,
            "name": n,
            "type": "Dense",
            "container": False,
            "weights": {f"{n}/kernel": {"trainable": True}},
        }
        for n in names
    ]
    return {"name": "net", "parameters": 1234, "layers": layers}


def records(names: list[str], step: int) -> Iterator[Record]:
    rng = np.random.default_rng(step)
    yield record("loss", step, 1.0 / (step + 1), epoch=step // 10)
    for name in names:
        yield record(f"activations/{name}", step, np.maximum(rng.normal(size=(4, 6)), 0))
        yield record(f"gradients/{name}", step, rng.normal(size=(4, 6)) * 1e-3)
        yield record(f"weights/{name}/kernel", step, np.ones((3, 3)))
        yield record(f"updates/{name}/kernel", step, np.full((3, 3), 1e-2))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a run of layers with these names and returns its writer, closed unless told otherwise."""

    def write(
        names: tuple[str, ...] = ("conv1", "head"),
        steps: int = 20,
        *,
        name: str = "first",
        extra: tuple[Record, ...] = (),
        close: str | None = "complete",
        facts: dict[str, Any] | None = None,
        info: dict[str, Any] | None = None,
    ) -> RunWriter:
        info = {"model": describe(list(names)), "backend": "jax"} if info is None else info
        writer = RunWriter.create(tmp_path / "runs", name, info)
        for step in range(steps):
            writer.write(records(list(names), step))
        writer.write(extra)
        writer.note(**(facts or {}))
        writer.flush()
        if close:
            writer.close(close)
        return writer

    return write


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Calls `fitscope` with these arguments in the directory that has `runs`."""
    from fitscope.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "130")
    monkeypatch.setenv("TERM", "xterm")
    return lambda *arguments, **env: CliRunner().invoke(app, list(arguments), env=env)
