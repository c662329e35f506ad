"""What capture costs in a TF1 session: CPU and wall time of a loop of `sess.run` relative to the same loop unwatched.

As in `train.py` all rows take turns in one process, here each with a graph and a session of its own. The first step of a block, in which
the graph is looked at, is not counted. Prints JSON; the table is made by `bench/run.py`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import FIRST, Row, answer, enough_steps, plain_figures, say, size, take_turns
from names import AGAIN, BUDGET, EXACT, PLAIN, SAMPLED, UNCAPTURED, WHOLE

import fitscope as fs

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
tf1.enable_resource_variables()


#: What people do instead.
SECOND_RUN = "second sess.run of the activations"
REDUCED = "second sess.run, and mean, std, min and max in NumPy"
FETCHED = "whole tensors fetched at every step, and let go"
IN_GRAPH = "activations alone, computed in the graph"


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
            outputs = self.session.run(self.layers, feed) if name in (SECOND_RUN, REDUCED) else []
            if name == REDUCED:
                for output in outputs:
                    [float(stat(output)) for stat in (np.mean, np.std, np.min, np.max)]


def kinds() -> dict[str, Callable[[Path], fs.Scope] | None]:
    """Name of the row → the scope that watches it, if one does, of its own directory."""
    whole = [fs.activations(keep="tensor"), fs.gradients(keep="tensor")]
    return {
        AGAIN: None,
        UNCAPTURED: lambda to: fs.Scope(to, every=fs.steps(10**12)),
        BUDGET: lambda to: fs.Scope(to, allowance=0),
        SAMPLED: lambda to: fs.Scope(to, every=1),
        EXACT: lambda to: fs.Scope(to, every=1, exact=True),
        WHOLE: lambda to: fs.Scope(to, whole, every=10, limit=None),
        FETCHED: lambda to: fs.Scope(to, whole, every=1, limit=None),
        IN_GRAPH: lambda to: fs.Scope(to, fs.activations(), every=1, reduce="step"),
        SECOND_RUN: None,
        REDUCED: None,
    }


class Loop(Row):
    """A loop, watched in a `with` block: entered, and its first step done, before the time counts; left with all written."""

    def __init__(self, name: str, make: Callable[[Path], fs.Scope] | None, to: Path, batch: Any) -> None:
        super().__init__(name, self._train, self._prepare, longer={BUDGET: 4, WHOLE: 2}.get(name, 1))
        self.make, self.to, self.batch = make, to, batch
        self.net, self.scope = Net(), None
        self.inside = ExitStack()

    def _prepare(self) -> None:
        if self.make is not None:
            self.scope = self.scope or self.make(self.to)
            self.inside.enter_context(self.scope.session(self.net.session))
            if self.name == FETCHED:  # the cost of the fetch alone
                self.scope._recordings.newest.recorder._work = lambda capture: None
        self.net.loop(1, self.batch, self.name)

    def _train(self, steps: int) -> None:
        with self.inside:
            self.net.loop(steps, self.batch, self.name)

    def figures(self) -> dict[str, Any]:
        if self.to.exists():
            self.told["bytes_per_step"] = size(self.to) / max(self.steps, 1)
        return super().figures()


def table(options: argparse.Namespace, to: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(options.batch, 32, 32, 3)).astype("float32"), rng.integers(0, 10, options.batch)
    plain = Loop(PLAIN, None, to / PLAIN, batch)
    plain.timed(FIRST)
    steps = options.steps or enough_steps(plain, options.seconds, min(10, options.least))
    say(f"session: {steps} steps a round")
    rows = [
        Loop(name, make, to / str(k), batch)
        for k, (name, make) in enumerate(kinds().items())
        if any(fnmatch(name, glob) for glob in options.rows)
    ]
    take_turns(plain, rows, steps, options.rounds)
    return {"steps": steps, "plain": plain_figures(plain), "rows": {row.name: row.figures() for row in rows}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", default=["*"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--least", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as to:
        answer(lambda: table(options, Path(to)))


if __name__ == "__main__":
    main()
