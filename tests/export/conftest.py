"""Small runs whose every number can be worked out by hand, written straight into a store."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.record import Moment, Record, Samples
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

PATIENCE = 120.0  #: seconds a server may take; on a machine that does other things it takes twenty
Ask = Callable[..., Any]

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_server(logs: Path, *options: str) -> Iterator[tuple[Ask, Ask]]:
    """Starts TensorBoard; gives functions to ask it, and to ask until the answer is ready.

    It is ended by its own pid, and waited for.
    """
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1"]
    # Every event, not a sample (0, said to mean all, gives none in 2.21).
    command += ["--port", str(port), "--samples_per_plugin", "scalars=1000,histograms=1000", *options]
    said = (logs.parent / "tensorboard.log").open("wb")
    process = subprocess.Popen(
        command, stdout=said, stderr=said, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "*"}
    )
    until = time.monotonic() + PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(route: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{port}/data/{route}?{urllib.parse.urlencode(query)}"
        with opener.open(url, timeout=30) as answer:
            return json.load(answer)

    def wait(ready: Callable[[Any], bool], route: str, **query: str) -> Any:
        while True:
            try:
                if ready(found := ask(route, **query)):
                    return found
            except OSError as problem:  # it does not listen yet, or has not read that far
                found = problem
            log = (logs.parent / "tensorboard.log").read_text(errors="replace")
            assert process.poll() is None, f"TensorBoard ended: {log}"
            assert time.monotonic() < until, f"{route}: {found}; {log}"
            time.sleep(0.3)

    try:
        yield ask, wait
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
        said.close()


@pytest.fixture
def server() -> Callable[..., Any]:
    """The real TensorBoard, as a context."""
    return run_server


def read_events(path: Path) -> list[Any]:
    """The events of a file; TensorBoard's own reader would import TensorFlow."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, found = path.read_bytes(), []
    while data:  # length, its checksum, the event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


@pytest.fixture
def events() -> Callable[[Path], list[Any]]:
    return read_events


@pytest.fixture
def steps(make: Any) -> Callable[..., None]:
    """Trains from one step to another, three steps an epoch, each epoch with a validation of two batches."""

    def steps(training: Any, first: int, end: int, *, scale: float = 1.0, flush_every: int = 1) -> None:
        for step in range(first, end):
            epoch, batch = divmod(step, 3)
            rest: dict[str, Any] = {"epoch": epoch, "batch": batch}
            at = Moment(step, epoch, batch, T0 + step)
            some = Samples(at, "train", ids=["a", "b"], loss=np.array([step, scale]), target=np.eye(2))
            training.write(
                [
                    make("predictions", step, np.full((2, 3), scale * step, np.float32), keep="both", **rest),
                    make("loss", step, np.float32(scale / (step + 1)), **rest),
                    make("activations/a", step, np.arange(4.0) * scale - step, **rest),
                    make("weights/w", step, np.full(2, scale), keep="tensor", batched=False, **rest),
                ],
                [some],
            )
            for number, rows in enumerate((4, 2) if batch == 2 else ()):
                rest = {"epoch": epoch, "batch": number}
                seen = np.full((rows, 3), scale * (100 * epoch + number), np.float32)
                training.write(
                    [
                        make("validation/predictions", step + 1, seen, keep="both", **rest),
                        make("validation/loss", step + 1, np.float32(number + scale), keep="both", **rest),
                    ],
                    [Samples(Moment(step + 1, epoch, number, T0), "validation", loss=np.ones(rows))],
                )
            if step % flush_every == 0:
                training.flush()

    return steps
