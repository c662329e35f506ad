"""Small runs whose every number can be worked out by hand, written straight into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

T0 = 1_800_000_000.0  #: the time of step 0; a step takes a second

#: The small run's activations: of step s this times 2**s.
A = np.array([[1.0, 2.0], [-4.0, 0.0]], np.float32)


def make_record(
    site: str, step: int, tensor: Any, *, epoch: int = 0, batch: int | None = None, keep: str = "stats",
    batched: bool | None = None,
) -> Record:  # fmt: skip
    array = np.asarray(tensor)
    at = Moment(step, epoch, step if batch is None else batch, T0 + step)
    return Record(
        site,
        at,
        array.shape,
        array.dtype.name,
        reduce(array) if keep != "tensor" else None,
        array if keep != "stats" else None,
        array.ndim > 0 if batched is None else batched,
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., RunWriter]:
    def write(
        records: Iterable[Record], *, name: str = "first", close: bool = True, flush_every: int = 0
    ) -> RunWriter:
        writer = RunWriter.create(tmp_path / "runs", name, {"model": {"name": "net", "parameters": 7}})
        for count, record in enumerate(records, 1):
            writer.write([record])
            if flush_every and count % flush_every == 0:
                writer.flush()
        writer.flush()
        if close:
            writer.close()
        return writer

    return write


def small_records() -> list[Record]:
    """Two epochs of three steps: a loss, activations, predictions kept, and a validation of two batches each."""
    found = []
    for step in range(6):
        epoch, batch = divmod(step, 3)
        found += [
            make_record("loss", step, np.float32(1 / (step + 1)), epoch=epoch, batch=batch),
            make_record("activations/a", step, A * 2.0**step, epoch=epoch, batch=batch),
            make_record(
                "predictions", step, np.full((2, 3), step, np.float32), epoch=epoch, batch=batch, keep="both"
            ),
        ]
        if batch == 2:
            for number, rows in enumerate((4, 2)):  # the last batch is smaller
                rest = {"epoch": epoch, "batch": number, "keep": "both"}
                seen = np.full((rows, 3), 100 * epoch + number, np.float32)
                found.append(make_record("validation/predictions", step + 1, seen, **rest))
                rest["keep"] = "stats"
                found.append(make_record("validation/loss", step + 1, np.float32(number + 1), **rest))
    return found


@pytest.fixture
def small(write: Callable[..., RunWriter]) -> fs.Run:
    return fs.open(write(small_records()).path)
