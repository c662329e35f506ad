"""What the tests of the capturing side share: data, the pair of a watched and an unwatched training, and a look at what is left over.

One process tests one backend, the one in KERAS_BACKEND (JAX if it is not set).
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from watching import Reader, everything, same, watch_fit

__all__ = ["watch_fit"]  # a fixture


@pytest.fixture(scope="session")
def backend() -> str:
    return keras.backend.backend()


@pytest.fixture
def xy() -> tuple[np.ndarray, np.ndarray]:
    """22 samples: in batches of 8 the last one is smaller."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(22, 5)).astype("float32"), rng.normal(size=(22, 2)).astype("float32")


@pytest.fixture
def small() -> Callable[..., keras.Model]:
    """A model with a weight that trains, one that is only kept, and randomness."""

    def make(optimizer: Any = "sgd", loss: Any = "mse", **compile_: Any) -> keras.Model:
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.layers.Input((5,)),
                keras.layers.Dense(4, name="first"),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.Dropout(0.5, name="drop"),
                keras.layers.Dense(2, name="last"),
            ]
        )
        model.compile(optimizer, loss, **{"metrics": ["mae"], **compile_})
        return model

    return make


def dense(at: Reader, layer: str, x: np.ndarray, step: int = 0) -> np.ndarray:
    """A Dense layer in NumPy, from its recorded weights."""
    return x @ at(f"weights/{layer}/kernel", step).astype("float64") + at(f"weights/{layer}/bias", step)


def close(a: Any, b: Any, rtol: float = 2e-4, atol: float = 2e-6) -> None:
    np.testing.assert_allclose(np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=rtol, atol=atol)


#: Functions of the frameworks that are replaced while a tapped step is made.
REPLACED = {
    "jax": [("jax", "grad"), ("jax", "value_and_grad")],
    "tensorflow": [("tensorflow.GradientTape", "gradient")],
    "torch": [("torch.Tensor", "backward")],
}


def left_over(model: keras.Model) -> dict[str, Any]:
    """All that a patch would change: which attributes each part of the model has, and what its methods are."""
    found: dict[str, Any] = {}
    optimizers = [getattr(model, "optimizer", None)]
    optimizers += [getattr(optimizer, "inner_optimizer", None) for optimizer in optimizers]
    for part in [*model._flatten_layers(), *model.metrics, *filter(None, optimizers)]:
        name = f"{type(part).__name__} {getattr(part, 'name', '')} {id(part)}"
        callables = {key: value for key, value in vars(part).items() if callable(value)}
        callables.pop("train_function", None)
        own = sorted(set(vars(part)) - {"_losses", "_loss_ids", "history", "_saved_model_inputs_spec"})
        found[name] = (own, {key: id(value) for key, value in callables.items()})
    found["train_function"] = id(model.train_function)
    for path, name in REPLACED[keras.backend.backend()]:
        module, _, owner = path.partition(".")
        thing: Any = importlib.import_module(module)
        found[f"{path}.{name}"] = getattr(getattr(thing, owner) if owner else thing, name)
    return found


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        everything=everything, same=same, dense=dense, close=close, left_over=left_over, Reader=Reader
    )
