"""Trains a Keras model under torch's DistributedDataParallel, as one of two processes, with a scope and without.

`python torch_program.py RANK WORLD PORT OUT` writes runs to OUT and prints one line of JSON: what its trainings ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fitscope as fs
from fitscope.capture.backends._torch_programs import Compiled
from multiprocess.reference import BATCH, RATE, data, first_weights, mine

rank, world, port = (int(word) for word in sys.argv[1:4])
out = Path(sys.argv[4])
KINDS = (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates)
WATCH = [
    *(kind() for kind in KINDS), *(kind(keep="tensor") for kind in KINDS), fs.loss(),
    fs.weight_gradients(keep="both", local=True),
]  # fmt: skip


class Routed(keras.Sequential):
    """A model whose own step calls it through DistributedDataParallel, which is how `fit` can use that."""

    parallel: ClassVar[list[Any]] = []  # in a list: Keras would take it for a layer

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x, y, self.parallel[0](x))
        loss.backward()
        gradients = [variable.value.grad for variable in self.trainable_variables]
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss.detach()}


def network(kind: type[keras.Sequential] = keras.Sequential) -> keras.Sequential:
    layers = [keras.layers.Dense(8, activation="relu", name="h"), keras.layers.Dense(4, name="out")]
    model = kind([keras.Input((6,)), *layers], name="net")
    model.set_weights(first_weights())
    return model


def fitted(callbacks: list[Any], *, shard: bool = False) -> str:
    """The same by `fit`."""
    model = network(Routed)
    model.compile(keras.optimizers.SGD(RATE), "mse", run_eagerly=True)
    model.parallel = [model if shard else DistributedDataParallel(model)]
    if shard:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    x, y = (mine(values, rank, world) for values in data())
    model.fit(x, y, batch_size=BATCH // world, shuffle=False, verbose=0, callbacks=callbacks)
    return hashlib.sha256(repr([value.tobytes() for value in model.get_weights()]).encode()).hexdigest()


def train(scope: fs.Scope | None) -> str:
    """A digest of all weights after the training, and of the losses."""
    model = network()
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(model.trainable_variables)
    squared = keras.losses.MeanSquaredError()
    parallel = DistributedDataParallel(model)

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = squared(y, parallel(x))
        loss.backward()
        gradients = [variable.value.grad for variable in model.trainable_variables]
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
        return loss

    if scope is not None:
        step = scope.step(step, model=model, optimizer=optimizer)
    x, y = (torch.from_numpy(mine(values, rank, world)) for values in data())
    share = BATCH // world
    losses = [
        step(x[at : at + share], y[at : at + share]).detach().numpy().tobytes()
        for at in range(0, len(x), share)
    ]
    if scope is not None:
        scope.close()
    weights = [np.asarray(value).tobytes() for value in model.get_weights()]
    return hashlib.sha256(repr((weights, losses)).encode()).hexdigest()


def parts(scope: fs.Scope | None) -> str:
    """What people do besides: shares of different size, two backward passes for an update, an output that the loss does not use, a
    layer of which some rows are recorded.
    """
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    wide = keras.layers.Dense(600, activation="relu", name="wide")(inputs)
    wide = keras.layers.Dense(600, activation="relu", name="wider")(wide)
    model = keras.Model(
        inputs, [keras.layers.Dense(4, name="out")(wide), keras.layers.Dense(3, name="aux")(wide)]
    )
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(model.trainable_variables)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    squared = keras.losses.MeanSquaredError()

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        with parallel.no_sync():
            first = squared(y[:1], parallel(x[:1])[0])
            first.backward()
        second = squared(y[1:], parallel(x[1:])[0])
        second.backward()
        used = [v for v in model.trainable_variables if v.value.grad is not None]
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in used], used)
        return (first + second).detach()

    if scope is not None:
        step = scope.step(step, model=model, optimizer=optimizer)
    x, y = (torch.from_numpy(values) for values in data())
    cut = 5  # of 8 rows, the first process has these
    for at in range(0, len(x), BATCH):
        mine = slice(at, at + cut) if rank == 0 else slice(at + cut, at + BATCH)
        step(x[mine], y[mine])
    if scope is not None:
        scope.close()
    return hashlib.sha256(repr([np.asarray(w).tobytes() for w in model.get_weights()]).encode()).hexdigest()


def main() -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    twice = Compiled(lambda: (None, []), None).obstacle(None)
    assert twice is not None
    assert not twice.beside, "a step that exchanges gradients runs once"
    said: dict[str, Any] = {"alone": train(None), "watched": train(fs.Scope(out / "loop", WATCH, every=1))}
    local = fs.weight_gradients(local=True)
    some = [
        fs.activations(keep="tensor"),
        fs.gradients(),
        local,
        fs.weight_gradients("out", keep="tensor", local=True),
    ]
    said |= {"parts alone": parts(None), "parts watched": parts(fs.Scope(out / "parts", some, every=1))}
    said |= {"fit alone": fitted([]), "fit watched": fitted([fs.Scope(out / "fit", WATCH, every=1)])}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said["sharded watched"] = fitted([fs.Scope(out / "sharded", every=1)], shard=True)
    said["sharded warned"] = [
        str(one.message) for one in caught if isinstance(one.message, fs.FitscopeWarning)
    ]
    said["sharded alone"] = fitted([], shard=True)
    dist.barrier()
    print("RESULT", json.dumps(said), flush=True)
    dist.destroy_process_group()


main()
