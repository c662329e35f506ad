"""Trains a Keras model under torch's DistributedDataParallel, as one of two processes, with a scope and without.

`python torch_program.py RANK WORLD PORT OUT` writes runs to OUT and prints one line of JSON: what its trainings ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fitscope as fs
from fitscope.capture.backends._torch_programs import Compiled
from multiprocess.reference import BATCH, RATE, data, first_weights, mine

rank, world, port = (int(word) for word in sys.argv[1:4])
out = Path(sys.argv[4])
KINDS = (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates)
WATCH = [*(kind() for kind in KINDS), *(kind(keep="tensor") for kind in KINDS), fs.loss()]


def train(scope: fs.Scope | None) -> str:
    """A digest of all weights after the training, and of the losses."""
    layers = [keras.layers.Dense(8, activation="relu", name="h"), keras.layers.Dense(4, name="out")]
    model = keras.Sequential([keras.Input((6,)), *layers], name="net")
    model.set_weights(first_weights())
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


def main() -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    twice = Compiled(lambda: (None, []), None).obstacle(None)
    assert twice is not None
    assert not twice.beside, "a step that exchanges gradients runs once"
    said = {"alone": train(None), "watched": train(fs.Scope(out, WATCH, every=1))}
    dist.barrier()
    print("RESULT", json.dumps(said), flush=True)
    dist.destroy_process_group()


main()
