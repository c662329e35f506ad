"""Trains on JAX with `keras.distribution`, in one process or as one of several, with a scope and without.

`python jax_program.py RANK WORLD PORT OUT` writes runs to OUT and prints one line of JSON: what its trainings ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from keras import distribution

import fitscope as fs
from fitscope.capture import peers
from multiprocess.reference import BATCH, RATE, data, first_weights, mine

rank, world, port = (int(word) for word in sys.argv[1:4])
out = Path(sys.argv[4])
peers.PATIENCE = 2.0  # of the process that has a scope which the others lack
KINDS = (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates, fs.data)
WATCH = [*(kind() for kind in KINDS), *(kind(keep="tensor") for kind in KINDS[:5]), fs.loss(per_sample=True)]


def spread(kind: str) -> None:
    if kind == "data":
        distribution.set_distribution(distribution.DataParallel(auto_shard_dataset=False))
        return
    # of two processes, each holds one half of the model and all samples
    mesh = distribution.DeviceMesh((2, 2), ("model", "batch"), distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout["net/h/kernel"], layout["net/h/bias"] = (None, "model"), ("model",)
    layout["net/out/kernel"] = ("model", None)
    distribution.set_distribution(
        distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
    )


def rows(kind: str) -> Any:
    """What this process feeds: its rows of every batch, unless each process has all."""
    return [mine(values, rank, world) if kind == "data" else values for values in data()]


def train(kind: str, callbacks: list[Any], **more: Any) -> str:
    """A digest of this process's shards of all weights after the training, and of the losses."""
    keras.utils.set_random_seed(0)  # every process must begin with the same weights
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", name="h"),
            keras.layers.Dense(4, name="out"),
        ],
        name="net",
    )
    model.compile(keras.optimizers.SGD(RATE), "mse")
    model.set_weights(first_weights())
    x, y = rows(kind)
    more = {"batch_size": len(x) * BATCH // len(data()[0]), **more}
    history = model.fit(x, y, shuffle=False, verbose=0, callbacks=callbacks, **more).history
    shards = [
        (str(shard.index), np.asarray(shard.data).tobytes())
        for variable in model.variables + model.optimizer.variables
        for shard in variable.value.addressable_shards
    ]
    return hashlib.sha256(repr((shards, history)).encode()).hexdigest()


def main() -> None:
    if world > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", world, rank, initialization_timeout=60)
    said: dict[str, Any] = {}
    for kind in ("data", "model"):
        spread(kind)
        x, y = rows(kind)
        validation = {"validation_data": (x, y), "validation_batch_size": len(x) * BATCH // len(data()[0])}
        said[f"{kind} alone"] = train(kind, [], **validation)
        scope = fs.Scope(out / kind, WATCH, every=1, on=("train", "validation"))
        said[f"{kind} watched"] = train(kind, [scope], **validation)
        said[f"{kind} batch"] = [
            list(scope.batch["activations/h"].shape),
            scope.batch["activations/h"].tolist(),
        ]
    spread("data")
    said["default alone"] = train("data", [], epochs=4)
    said["default watched"] = train("data", [fs.Scope(out / "default")], epochs=4)
    if world > 1:  # as many programs do: only one process has a scope
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said["one scope"] = train("data", [fs.Scope(out / "one")] if rank == 0 else [], epochs=4)
        said["warned"] = [str(one.message) for one in caught if isinstance(one.message, fs.FitscopeWarning)]
    print("RESULT", json.dumps(said), flush=True)


main()
