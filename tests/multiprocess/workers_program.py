"""Trains under `MultiWorkerMirroredStrategy` as one of two workers: as Keras does it, and with the two defects of keras#20585 mended.

`python workers_program.py OUT`, with TF_CONFIG, writes runs to OUT and prints one line of JSON: what its trainings ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer

import fitscope as fs
from multiprocess.reference import BATCH, RATE, data, first_weights

out = Path(sys.argv[1])
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs on TensorFlow


def train(callbacks: list[Any], *, mended: bool) -> str:
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu", name="h"), keras.layers.Dense(4, name="out")]
        model = keras.Sequential([keras.Input((6,)), *layers], name="net")
        model.compile(keras.optimizers.SGD(RATE), "mse")
        model.set_weights(first_weights())
    if mended:
        vars(model)["_maybe_symbolic_build"] = lambda **_: None  # all of it is built, but for the optimizer
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
    try:
        history = model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks).history
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return hashlib.sha256(repr(([w.tobytes() for w in model.get_weights()], history)).encode()).hexdigest()


def mean(values: Any, strategy: Any, reduction: str) -> Any:
    return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)


said: dict[str, Any] = {
    "as it is": [
        train(some, mended=False) for some in ([], [fs.Scope(out / "as it is", every=1, name="exp")])
    ]
}
trainer.reduce_per_replica = mean
said["mended"] = [train([], mended=True)]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    said["mended"].append(train([fs.Scope(out / "mended", every=1, name="exp")], mended=True))
said["warned"] = [str(one.message) for one in caught if isinstance(one.message, fs.FitscopeWarning)]
print("RESULT", json.dumps(said), flush=True)
