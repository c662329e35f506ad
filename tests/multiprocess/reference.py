"""The trainings of these tests, and what one process computes in them by hand, in NumPy and float64.

A network of two layers, mean squared error, SGD: `loss = mean((relu(x w1 + b1) w2 + b2 - y)²)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEPS, BATCH, RATE = 4, 8, 0.1


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    n = STEPS * BATCH
    return rng.normal(size=(n, 6)).astype(np.float32), rng.normal(size=(n, 4)).astype(np.float32)


def first_weights() -> list[Array]:
    rng = np.random.default_rng(8)
    shapes = ((6, 8), (8,), (8, 4), (4,))
    return [rng.normal(size=shape, scale=0.3).astype(np.float32) for shape in shapes]


def mine(values: Array, rank: int, world: int, batch: int = BATCH) -> Array:
    """The rows of one process: its share of every batch."""
    share = batch // world
    return values.reshape(-1, world, share, *values.shape[1:])[:, rank].reshape(-1, *values.shape[1:])


def expected() -> dict[str, Array]:
    """By site, the tensors of all steps."""
    x, y = (values.astype(np.float64).reshape(STEPS, BATCH, -1) for values in data())
    w1, b1, w2, b2 = (value.astype(np.float64) for value in first_weights())
    found: dict[str, list[Array]] = {}
    for inputs, targets in zip(x, y, strict=True):
        before = inputs @ w1 + b1
        hidden = np.maximum(before, 0)
        outputs = hidden @ w2 + b2
        d_out = 2 * (outputs - targets) / outputs.size
        d_hidden = d_out @ w2.T
        d_before = d_hidden * (before > 0)
        gradients = [inputs.T @ d_before, d_before.sum(0), hidden.T @ d_out, d_out.sum(0)]
        seen = {
            "inputs": inputs, "targets": targets, "activations/h": hidden, "activations/out": outputs,
            "gradients/h": d_hidden, "gradients/out": d_out, "loss": np.mean((outputs - targets) ** 2),
        }  # fmt: skip
        names = ("h/kernel", "h/bias", "out/kernel", "out/bias")
        for name, weight, gradient in zip(names, (w1, b1, w2, b2), gradients, strict=True):
            seen[f"weights/{name}"] = weight.copy()
            seen[f"weight_gradients/{name}"] = gradient
            seen[f"updates/{name}"] = -RATE * gradient
        for site, value in seen.items():
            found.setdefault(site, []).append(np.asarray(value))
        for weight, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
            weight -= RATE * gradient
    return {site: np.stack(values) for site, values in found.items()}
