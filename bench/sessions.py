"""What capture costs in a TF1 session: CPU and wall time of a loop of `sess.run` relative to the same loop unwatched.

As in `train.py` all variants run in one process, interleaved, each with a graph and a session of its own that was warmed up; a ratio
compares two neighbours of the same round. Run through `bench/run.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import fitscope as fs
from fitscope.sessions.recording import SessionRecording
from fitscope.store import Memory

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
tf1.enable_resource_variables()


#: What people do instead.
AGAIN = "workaround: a second sess.run of the activations"
REDUCED = "workaround: a second sess.run, and mean, std, min and max in NumPy"


class Nowhere(Memory):
    """Takes every object and keeps none: all but the disk."""

    def put(self, key: str, data: Any) -> None:
        if key.endswith(".json"):
            super().put(key, data)


class Net:
    """Four convolutions, two pools, dropout, two dense layers, Adam."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(0)
            self.x = tf1.placeholder(tf.float32, [None, 32, 32, 3], name="x")
            self.y = tf1.placeholder(tf.int64, [None], name="y")
            h, self.layers = self.x, []
            for i, width in enumerate((32, 32, 64, 64)):
                h = self._layer(f"conv{i}", h, [3, 3, h.shape[-1], width])
                if i % 2:
                    h = tf1.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME", name=f"pool{i}")
                    self.layers.append(h)
            h = tf.reshape(h, [-1, 8 * 8 * 64], name="flat")
            h = tf1.nn.dropout(self._layer("dense", h, [8 * 8 * 64, 64]), rate=0.3, name="drop")
            self.layers.append(h)
            logits = self._layer("head", h, [64, 10], activation=None)
            self.loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.y, logits=logits)
            )
            self.train = tf1.train.AdamOptimizer().minimize(self.loss)
            start = tf1.global_variables_initializer()
        self.session = tf1.Session(graph=self.graph)
        self.session.run(start)

    def _layer(self, name: str, h: Any, shape: list[Any], activation: Any = tf.nn.relu) -> Any:
        with tf1.variable_scope(name):
            kernel = tf1.get_variable("kernel", shape)
            h = tf1.nn.conv2d(h, kernel, [1, 1, 1, 1], "SAME") if len(shape) == 4 else tf.matmul(h, kernel)
            h = tf.nn.bias_add(h, tf1.get_variable("bias", [shape[-1]], initializer=tf1.zeros_initializer()))
            self.layers.append(h if activation is None else activation(h))
        return self.layers[-1]

    def loop(self, steps: int, batch: tuple[np.ndarray, np.ndarray], name: str) -> None:
        feed = {self.x: batch[0], self.y: batch[1]}
        for _ in range(steps):
            self.session.run([self.train, self.loss], feed)
            outputs = self.session.run(self.layers, feed) if name in (AGAIN, REDUCED) else []
            if name == REDUCED:
                for output in outputs:
                    (
                        float(np.mean(output)),
                        float(np.std(output)),
                        float(np.min(output)),
                        float(np.max(output)),
                    )


@contextmanager
def handed_out(scope: fs.Scope, session: Any) -> Iterator[None]:
    """Lets go of what was fetched: the cost of the fetch alone."""
    kept = SessionRecording.deliver
    with scope.session(session):
        SessionRecording.deliver = lambda *_: None  # type: ignore[method-assign]
        try:
            yield
        finally:
            SessionRecording.deliver = kept  # type: ignore[method-assign]


def variants(to: Path) -> dict[str, Callable[[Net], Any]]:
    """Name of the row → what surrounds the loop. The first is what the others are compared with."""
    whole = [fs.activations(keep="tensor"), fs.gradients(keep="tensor"), fs.weight_gradients(keep="tensor")]
    stats = [fs.activations()]
    return {
        "plain": lambda net: nullcontext(),
        "plain again": lambda net: nullcontext(),
        "nothing captured this step": lambda net: fs.Scope(to, every=fs.steps(10**12)).session(net.session),
        "default watches, every 10th step": lambda net: fs.Scope(to, every=10).session(net.session),
        "default watches, every step": lambda net: fs.Scope(to, every=1).session(net.session),
        "statistics of activations, every step": lambda net: fs.Scope(to, stats, 1).session(net.session),
        "the same, computed in the graph": lambda net: fs.Scope(to, stats, 1, reduce="step").session(
            net.session
        ),
        "whole tensors fetched, every step": lambda net: handed_out(
            fs.Scope(Nowhere(), whole, 1), net.session
        ),
        "whole tensors to a store that forgets them, every step": lambda net: fs.Scope(
            Nowhere(), whole, 1, limit=None
        ).session(net.session),
        AGAIN: lambda net: nullcontext(),
        REDUCED: lambda net: nullcontext(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(options.batch, 32, 32, 3)).astype("float32"), rng.integers(0, 10, options.batch)
    with tempfile.TemporaryDirectory() as to:
        rows = variants(Path(to))
        nets = {name: Net() for name in rows}
        cpu: dict[str, list[float]] = {name: [] for name in rows}
        wall: dict[str, list[float]] = {name: [] for name in rows}
        for turn in range(options.rounds + 1):  # the first is for getting ready
            for name, around in rows.items():
                with around(nets[name]):
                    nets[name].loop(1, batch, name)  # the first step of a block analyses the graph
                    began = time.process_time(), time.perf_counter()
                    nets[name].loop(options.steps, batch, name)
                if turn:  # with the block left, all is written
                    cpu[name].append((time.process_time() - began[0]) / options.steps)
                    wall[name].append((time.perf_counter() - began[1]) / options.steps)

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
    print(json.dumps({"backend": "tensorflow", "model": "cnn", "jit": "session", "rows": result}))


if __name__ == "__main__":
    main()
