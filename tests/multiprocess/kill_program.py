"""Trains until it is killed, as one of two processes, and says which steps it has flushed: `main`, in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

import fitscope as fs
from fitscope.store import RunWriter

port = to = ""
rank = 0

flushed = RunWriter.flush


def flush(self: RunWriter, **more: Any) -> None:
    """The writer's own, and a word about it once it has returned."""
    flushed(self, **more)
    if self._step is not None:
        print("FLUSHED", self._step, flush=True)


def main(engine: str, given_port: str, given_to: str, environment: dict[str, str], output: str) -> None:
    """Trains, with the environment that a launcher sets, and prints to a file."""
    global port, to, rank
    port, to, rank = given_port, given_to, int(environment["RANK"])
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    RunWriter.flush = flush  # type: ignore[method-assign]
    {"plain": plain, "torch": torch_ddp, "jax": jax_processes}[engine]()


def scope() -> fs.Scope:
    watch = [fs.activations(), fs.activations(keep="tensor"), fs.weights(), fs.loss()]
    return fs.Scope(to, watch, every=1)


def data() -> Any:
    rng = np.random.default_rng(rank)
    return rng.random((16, 6), np.float32), rng.random((16, 2), np.float32)


def plain() -> None:
    """No framework: the writer behind its queue, opened as a training opens it."""
    from fitscope.capture.opening import open_writer
    from fitscope.pipeline.queue import Transport
    from fitscope.record import Moment, Record
    from fitscope.reduce import host
    from fitscope.sites import Site

    writer = open_writer(scope()._recordings.settings, None, {"doing": "train"}, 0, None)
    transport: Transport[list[Record]] = Transport(
        lambda steps: [writer.write(records) for records in steps],
        lambda: writer.flush() or 0.05,
        lambda error, _: print(error),
        limit=1 << 20,
    )
    rng = np.random.default_rng(rank)
    for step in range(10**9):
        at = Moment(step, 0, step, time.time())
        small, large = rng.random((4, 6), np.float32), rng.random((300, 300), np.float32)
        found = {Site("activations", "h"): small, Site("activations", "wide"): large}
        some = [Record(site, at, a.shape, "float32", host.reduce(a), a) for site, a in found.items()]
        transport.put(some, small.nbytes + large.nbytes)
        time.sleep(0.005)


def torch_ddp() -> None:
    import keras
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, name="h"), keras.layers.Dense(2, name="out")]
    )
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    parallel, squared = DistributedDataParallel(model), keras.losses.MeanSquaredError()

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = squared(y, parallel(x))
        loss.backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)
        return loss

    watched = scope().step(step, model=model, optimizer=optimizer)
    x, y = (torch.from_numpy(values) for values in data())
    while True:
        watched(x, y)


def jax_processes() -> None:
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    import keras

    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, name="h"), keras.layers.Dense(2, name="out")]
    )
    model.compile("sgd", "mse")
    x, y = data()
    model.fit(x, y, batch_size=8, epochs=1_000_000, verbose=0, callbacks=[scope()])
