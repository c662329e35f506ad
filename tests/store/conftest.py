"""Stores of every kind, and records to put into them."""

from __future__ import annotations

import builtins
import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.record import Moment, Record
from fitscope.reduce.stats import Stats
from fitscope.store import Files, Memory, Objects, Remote, RunWriter
from fitscope.store import parts as parts_module
from fitscope.store import tail as tail_module

Make = Callable[..., Record]


def stats_of(tensor: np.ndarray[Any, Any]) -> Stats:
    """Good enough for a store, which must only give back what it got."""
    x = np.asarray(tensor).astype(np.float64).ravel()
    finite = x[np.isfinite(x)]
    hist = np.zeros(513, np.int64)
    nonzero = finite[finite != 0]
    exponent = np.clip(np.frexp(np.abs(nonzero))[1] - 1, -128, 127)
    np.add.at(hist, (np.sign(nonzero) * (exponent + 129)).astype(int) + 256, 1)
    hist[256] += int((finite == 0).sum())
    numbers = (
        [finite.mean(), finite.std(), finite.min(), finite.max(), np.sqrt((finite**2).mean())]
        if len(finite)
        else [np.nan] * 5
    )
    return Stats(
        x.size,
        *map(float, numbers),
        zeros=int((finite == 0).sum()),
        negatives=int((finite < 0).sum()),
        nans=int(np.isnan(x).sum()),
        infs=int(np.isinf(x).sum()),
        hist=hist,
    )


def make_record(
    site: str,
    step: int,
    tensor: Any,
    *,
    keep: str = "both",
    batched: bool = True,
    epoch: int = 0,
    batch: int | None = None,
    shape: tuple[int, ...] | None = None,
) -> Record:
    """A record of a tensor; `keep` is "stats", "tensor" or "both"."""
    tensor = np.asarray(tensor)
    return Record(
        site,
        Moment(step, epoch, step if batch is None else batch, 1_700_000_000.0 + step),
        tensor.shape if shape is None else shape,
        tensor.dtype.name,
        None if keep == "tensor" else stats_of(tensor),
        None if keep == "stats" else tensor,
        batched,
    )


@pytest.fixture(scope="session")
def make() -> Make:
    return make_record


class Spy(Objects):
    """A store with somebody looking on: `on_put(key, data)` and `on_get(key)` may note, wait or raise."""

    def __init__(self, inner: Objects, prefix: str = "", **hooks: Callable[..., None]) -> None:
        self.inner, self._prefix, self.hooks = inner, prefix, hooks

    def _tell(self, hook: str, key: str, *more: Any) -> None:
        self.hooks.get(hook, lambda *_: None)(self._prefix + key, *more)

    def put(self, key: str, data: Any) -> None:
        self._tell("on_put", key, data)
        self.inner.put(key, data)

    def create(self, key: str, data: Any) -> bool:
        self._tell("on_put", key, data)
        return self.inner.create(key, data)

    def get(self, key: str, most: int | None = None) -> bytes:
        self._tell("on_get", key)
        return self.inner.get(key)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def list(self, folder: str = "") -> builtins.list[str]:
        return self.inner.list(folder)

    def folder(self, name: str) -> Spy:
        return Spy(self.inner.folder(name), f"{self._prefix}{name}/", **self.hooks)

    def describe(self, key: str = "") -> str:
        return self.inner.describe(key)


@pytest.fixture(scope="session")
def spy() -> Callable[..., Spy]:
    return Spy


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket of a small S3 server on the loopback."""
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    values = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "NO_PROXY": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        boto3.client("s3", endpoint_url=values["AWS_ENDPOINT_URL"], region_name="us-east-1").create_bucket(
            Bucket="runs"
        )
        yield "s3://runs"
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        with contextlib.suppress(Exception):
            server.stop()


def make_store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Objects:
    if kind == "files":
        return Files(tmp_path / "store")
    if kind == "files, durable":
        return Files(tmp_path / "store", durable=True)
    if kind == "memory":
        return Memory()
    stores = pytest.importorskip("obstore.store")
    if kind == "obstore memory":
        return Remote(stores.MemoryStore(), name="memory")
    if kind == "obstore file":
        return Remote(stores.LocalStore(tmp_path), name=str(tmp_path))
    return Remote.at(f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}")


KINDS = ("files", "files, durable", "memory", "obstore memory", "obstore file", "s3")


@pytest.fixture(params=KINDS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """A store, empty; each test runs once per kind."""
    return make_store(request.param, tmp_path, request)


@pytest.fixture
def store(make: Make) -> Memory:
    """A run of six steps: statistics, tensors and a loss."""
    store = Memory()
    writer = RunWriter.create(store, "r", {"model": {"name": "net"}})
    for step in range(6):
        records = [
            make(
                f"{kind}/encoder/dense1",
                step,
                np.full((2, 3), step + 1, np.float32),
                keep="both",
                epoch=step // 3,
            )
            for kind in ("activations", "gradients")
        ]
        records.append(make("activations/encoder/dense2", step, np.ones((2, 3), np.float32), keep="stats"))
        records.append(make("inputs", step, np.ones((2, 3), np.float32), keep="tensor"))
        records.append(make("loss", step, np.float32(step / 3), keep="stats", batched=False))
        writer.write(records)
    writer.close()
    return store


@pytest.fixture
def run(store: Memory) -> read.Run:
    return read.open(store)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait from the third flush on, and a part of a hundred rows has several row groups."""
    monkeypatch.setattr(parts_module, "SHARE", 2)
    monkeypatch.setattr(parts_module, "LONG_STRETCH", 2)
    monkeypatch.setattr(tail_module, "GROUP_ROWS", 8)
