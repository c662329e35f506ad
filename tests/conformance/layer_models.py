"""Data, modes of compiling and an export, for the tests of our layers."""

from __future__ import annotations

import keras
import pytest
from keras import ops

BACKEND = keras.backend.backend()


MODES = {
    "jax": [{"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}],
    "tensorflow": [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    "torch": [{"jit_compile": False}],
}[BACKEND]


EACH_MODE = pytest.mark.parametrize(
    "mode", MODES, ids=lambda mode: next(f"{name}={value}" for name, value in mode.items())
)


FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


def numpy(value):
    return ops.convert_to_numpy(value)


def exported(model, folder):
    """The model as others run it, and the sizes of batch that it takes: from torch, Keras 3.15 exports one of a single row."""
    if BACKEND == "torch":
        import torch

        model.export(folder / "model.pt2", format="torch", verbose=False)
        served = torch.export.load(folder / "model.pt2").module()
        return lambda x: served(torch.tensor(x)).detach().numpy(), [1]
    import tensorflow as tf

    model.export(folder / "model", verbose=False)
    loaded = tf.saved_model.load(folder / "model")
    return lambda x: loaded.serve(x).numpy(), [1, 3, 20]
