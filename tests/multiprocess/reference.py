"""The trainings of these tests, and what one process computes in them by hand, in NumPy and float64.

A network of two layers, mean squared error, SGD: `loss = mean((relu(x w1 + b1) w2 + b2 - y)²)`. On several replicas of
`tf.distribute` it is the mean of such means, one for the rows of each replica, however many rows those are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEPS, BATCH, RATE = 4, 8, 0.1


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    n = STEPS * BATCH
    return rng.normal(size=(n, 6)).astype(np.float32), rng.normal(size=(n, 4)).astype(np.float32)


def uneven(last: int = 3) -> tuple[Array, Array]:
    """Two batches of it, and a smaller last one."""
    x, y = data()
    return x[: 2 * BATCH + last], y[: 2 * BATCH + last]


def first_weights() -> list[Array]:
    rng = np.random.default_rng(8)
    shapes = ((6, 8), (8,), (8, 4), (4,))
    return [rng.normal(size=shape, scale=0.3).astype(np.float32) for shape in shapes]


def mine(values: Array, rank: int, world: int, batch: int = BATCH) -> Array:
    """The rows of one process: its share of every batch."""
    share = batch // world
    return values.reshape(-1, world, share, *values.shape[1:])[:, rank].reshape(-1, *values.shape[1:])


def shares(rows: int, replicas: int) -> list[int]:
    """How many rows of a batch each replica has: as many as fit, and the last ones fewer."""
    share = -(-rows // replicas)
    return [max(min(share, rows - share * number), 0) for number in range(replicas)]


def expected() -> dict[str, Array]:
    """By site, the tensors of all steps."""
    x, y = (values.reshape(STEPS, BATCH, -1) for values in data())
    found: dict[str, list[Array]] = {}
    for seen in steps(list(zip(x, y, strict=True))):
        for site, value in seen.items():
            found.setdefault(site, []).append(value)
    return {site: np.stack(values) for site, values in found.items()}


def steps(batches: list[tuple[Array, Array]], replicas: int = 1) -> Iterator[dict[str, Array]]:
    """By site, the tensors of each step of a training on these batches."""
    w1, b1, w2, b2 = (value.astype(np.float64) for value in first_weights())
    for inputs, targets in batches:
        inputs, targets = inputs.astype(np.float64), targets.astype(np.float64)
        # the weight of each row in the loss
        counts = shares(len(inputs), replicas)
        of_row = np.repeat([1 / (replicas * max(count, 1)) for count in counts], counts)[:, None]
        before = inputs @ w1 + b1
        hidden = np.maximum(before, 0)
        outputs = hidden @ w2 + b2
        d_out = 2 * (outputs - targets) * of_row / outputs.shape[1]
        d_hidden = d_out @ w2.T
        d_before = d_hidden * (before > 0)
        gradients = [inputs.T @ d_before, d_before.sum(0), hidden.T @ d_out, d_out.sum(0)]
        seen = {
            "inputs": inputs, "targets": targets, "activations/h": hidden, "activations/out": outputs,
            "gradients/h": d_hidden, "gradients/out": d_out,
            "loss": np.sum((outputs - targets) ** 2 * of_row) / outputs.shape[1],
        }  # fmt: skip
        names = ("h/kernel", "h/bias", "out/kernel", "out/bias")
        for name, weight, gradient in zip(names, (w1, b1, w2, b2), gradients, strict=True):
            seen[f"weights/{name}"] = weight.copy()
            seen[f"weight_gradients/{name}"] = gradient
            seen[f"updates/{name}"] = -RATE * gradient
        yield {site: np.asarray(value) for site, value in seen.items()}
        for weight, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
            weight -= RATE * gradient
