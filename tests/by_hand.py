"""Training written out in NumPy, in float64: what the tests compare with. No framework and no code of ours has a part in it.

The parts (`crossentropy`, `dense_back`, …) make up any small network. `train` is one such network from first weights to last: two
dense layers with a ReLU between them, plain SGD, batches in the order of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]
Loss = Callable[[Array, Array], tuple[Array, Array]]

LR = 0.1
LAYERS = ("hidden", "relu", "head")


def crossentropy(logits: Array, y: Array) -> tuple[Array, Array]:
    """Each sample's loss, and its gradient with respect to the sample's logits."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    classes = np.arange(logits.shape[1])
    return -log_p[np.arange(len(y)), y], np.exp(log_p) - (y[:, None] == classes)


def squared_error(predictions: Array, y: Array) -> tuple[Array, Array]:
    """Each sample's mean squared error, and its gradient with respect to the sample's predictions."""
    apart = predictions - y
    return (apart**2).mean(1), 2 * apart / apart.shape[1]


def dense(w: Weights, layer: str, x: Array) -> Array:
    return x @ w[f"{layer}/kernel"] + w[f"{layer}/bias"]


def dense_back(w: Weights, layer: str, x: Array, d_out: Array) -> tuple[Array, Weights]:
    """The gradients of a dense layer's input and weights from that of its output."""
    return d_out @ w[f"{layer}/kernel"].T, {f"{layer}/kernel": x.T @ d_out, f"{layer}/bias": d_out.sum(0)}


# ---- a whole training ---------------------------------------------------------------------------------------


def weights(seed: int = 0, *, inputs: int = 6, units: int = 5, outputs: int = 3) -> Weights:
    """First weights, the same for every backend."""
    rng = np.random.default_rng(seed)
    shapes = {
        "hidden/kernel": (inputs, units), "hidden/bias": (units,), "head/kernel": (units, outputs), "head/bias": (outputs,),
    }  # fmt: skip
    return {name: rng.normal(0, 0.5, shape).astype("float32").astype(float) for name, shape in shapes.items()}


def data(n: int = 22, seed: int = 1) -> tuple[Array, Array]:
    """Samples, and the class of each. 22 of them: in batches of 8 the last one is smaller."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n).astype("int32")


def forward(w: Weights, x: Array) -> dict[str, Array]:
    """What each layer gives."""
    hidden = dense(w, "hidden", x.astype(float))
    relu = np.maximum(hidden, 0)
    head = dense(w, "head", relu)
    return dict(zip(LAYERS, (hidden, relu, head), strict=True))


def total(losses: Array, weight: Array, reduction: str) -> tuple[float, Array]:
    """The loss of the batch from those of its samples, and how much each counts in it."""
    share = {
        "sum_over_batch_size": 1 / len(losses), "sum": 1.0, "mean_with_sample_weight": 1 / weight.sum(),
    }[reduction] * weight  # fmt: skip
    return float((losses * share).sum()), share


@dataclass
class Training:
    """What happened in each step, by the names of the sites; and the weights that came out."""

    steps: list[dict[str, Any]]
    final: Weights

    def after(self, updates: int) -> Weights:
        """The weights after so many updates."""
        if updates == len(self.steps):
            return self.final
        return {
            site.removeprefix("weights/"): value
            for site, value in self.steps[updates].items()
            if site.startswith("weights/")
        }

    def __getitem__(self, step: int) -> dict[str, Any]:
        return self.steps[step]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def train(
    w: Weights,
    x: Array,
    y: Array,
    *,
    batch_size: int = 8,
    epochs: int = 1,
    loss: Loss = crossentropy,
    weight: Array | None = None,
    reduction: str = "sum_over_batch_size",
) -> Training:
    """A training from these weights on."""
    weight = np.ones(len(x)) if weight is None else weight
    batches = [slice(i, i + batch_size) for i in range(0, len(x), batch_size)]
    steps = []
    for rows in batches * epochs:
        seen = step(w, x[rows], y[rows], loss, weight[rows], reduction)
        steps.append(seen)
        w = {name: value - LR * seen[f"weight_gradients/{name}"] for name, value in w.items()}
    return Training(steps, w)


def step(w: Weights, x: Array, y: Array, loss: Loss, weight: Array, reduction: str) -> dict[str, Any]:
    """One step of it."""
    out = forward(w, x)
    losses, d_losses = loss(out["head"], y)
    whole, share = total(losses, weight, reduction)
    d_head = d_losses * share[:, None]
    d_relu, of_head = dense_back(w, "head", out["relu"], d_head)
    d_hidden = d_relu * (out["hidden"] > 0)
    _, of_hidden = dense_back(w, "hidden", x.astype(float), d_hidden)
    return {
        "inputs": x, "targets": y, "predictions": out["head"], "loss": whole, "losses": losses, "weight": weight,
        **{f"weights/{name}": value for name, value in w.items()},
        **{f"activations/{name}": value for name, value in out.items()},
        **{f"gradients/{name}": d for name, d in zip(LAYERS, (d_hidden, d_relu, d_head), strict=True)},
        **{f"weight_gradients/{name}": value for name, value in (of_hidden | of_head).items()},
    }  # fmt: skip
