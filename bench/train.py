"""What capture costs in training: CPU and wall time of `fit` relative to plain `fit`, on one backend.

All variants run in one process, one after the other within each round, each with a model of its own that was compiled and
warmed up before; a ratio compares two neighbours of the same round, and the median over the rounds is reported with its
spread. CPU time is that of the whole process, writer thread included. Run through `bench/run.py`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import fitscope as fs
from fitscope.store import Memory


class HandedOut(fs.Scope):
    """Lets go of the tensors as soon as the step has handed them out: the cost of the taps alone."""

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._recording.recorder._work = lambda capture: None


class Nowhere(Memory):
    """Takes every object and keeps none: all but the disk."""

    def put(self, key: str, data: Any) -> None:
        if key.endswith(".json"):
            super().put(key, data)


def cnn() -> keras.Model:
    """Three blocks of conv, batch norm, ReLU, conv, pool; dropout; two dense layers."""
    stack: list[Any] = [layers.Input((32, 32, 3))]
    for width in (32, 64, 128):
        stack += [
            layers.Conv2D(width, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
            layers.Conv2D(width, 3, padding="same"), layers.MaxPooling2D(),
        ]  # fmt: skip
    stack += [
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
    return keras.Sequential(stack)


def mlp() -> keras.Model:
    """Twenty tiny layers: nothing but fixed costs."""
    stack: list[Any] = [layers.Input((32, 32, 3)), layers.Flatten()]
    stack += [layers.Dense(16, activation="relu") for _ in range(20)]
    return keras.Sequential([*stack, layers.Dense(10, activation="softmax")])


class SecondModel(keras.callbacks.Callback):
    """What people write today: run the layers again, on the same batch, after the step."""

    def __init__(self, batch: np.ndarray) -> None:
        super().__init__()
        self.batch = batch

    def on_train_begin(self, logs: Any = None) -> None:
        if not hasattr(self, "probe"):
            self.probe = keras.Model(self.model.inputs, [layer.output for layer in self.model.layers])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        _ = self.model  # on JAX this is what brings the weights back from the training state
        for output in self.probe.predict_on_batch(self.batch):
            float(np.mean(output)), float(np.std(output)), float(np.min(output)), float(np.max(output))


def whole(every: Any) -> dict[str, Any]:
    return {
        "watch": [fs.activations(keep="tensor"), fs.gradients(keep="tensor")],
        "every": every,
        "limit": None,
    }


def variants(batch: np.ndarray, to: Path) -> dict[str, Callable[[], list[Any]]]:
    """Name of the row → the callbacks it adds to `fit`. The first is what the others are compared with."""
    return {
        "plain": list,
        "plain again": list,
        "nothing captured this step": lambda: [fs.Scope(to, every=fs.steps(10**12))],
        "default watches, every 10th step": lambda: [fs.Scope(to, every=10)],
        "default watches, every step": lambda: [fs.Scope(to, every=1)],
        "whole tensors handed out, every step": lambda: [HandedOut(to, **whole(1))],
        "whole tensors to a store that forgets them, every step": lambda: [fs.Scope(Nowhere(), **whole(1))],
        "whole tensors to disk, every 10th step": lambda: [fs.Scope(to, **whole(10))],
        "workaround: a second model in a callback": lambda: [SecondModel(batch)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--jit", choices=["auto", "yes", "no"], default="auto")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.steps * options.batch, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, len(x))
    build = {"cnn": cnn, "mlp": mlp}[options.model]

    with tempfile.TemporaryDirectory() as to:
        rows = variants(x[: options.batch], Path(to))
        trainings = {}
        for name, callbacks in rows.items():
            keras.utils.set_random_seed(0)
            model = build()
            jit = {"auto": "auto", "yes": True, "no": False}[options.jit]
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit)
            trainings[name] = (model, callbacks())
        cpu: dict[str, list[float]] = {name: [] for name in rows}
        wall: dict[str, list[float]] = {name: [] for name in rows}
        peak: dict[str, int] = {}
        for turn in range(options.rounds + 1):  # the first is for compiling
            for name, (model, callbacks) in trainings.items():
                began = time.process_time(), time.perf_counter()
                model.fit(
                    x, y, batch_size=options.batch, epochs=1, shuffle=False, verbose=0, callbacks=callbacks
                )
                if turn:
                    cpu[name].append((time.process_time() - began[0]) / options.steps)
                    wall[name].append((time.perf_counter() - began[1]) / options.steps)
                peak[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        size = sum(f.stat().st_size for f in Path(to).rglob("*.parquet"))

    def ratios(times: dict[str, list[float]], name: str) -> list[float]:
        return sorted(a / b for a, b in zip(times[name], times["plain"], strict=True))

    result = {
        name: {
            "cpu": statistics.median(ratios(cpu, name)),
            "cpu_spread": [ratios(cpu, name)[0], ratios(cpu, name)[-1]],
            "wall": statistics.median(ratios(wall, name)),
            "wall_spread": [ratios(wall, name)[0], ratios(wall, name)[-1]],
            "ms_cpu": 1e3 * statistics.median(cpu[name]),
        }
        for name in rows
    }
    print(json.dumps({"backend": keras.backend.backend(), "model": options.model, "jit": options.jit, "rows": result,
                      "parquet_bytes": size}))  # fmt: skip


if __name__ == "__main__":
    main()
