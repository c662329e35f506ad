"""The trainings that get killed, forked from one process that has imported everything: `python -m campaign.killed BACKEND`.

Reads lines `FOLDER START`, forks a child for each, and prints its pid; the child trains from that step on, in the only run of the folder,
until somebody kills it. Every element of the batch of a step is the number of the step, so everybody can check what was recorded. The
child notes in `FOLDER/flushed` the newest step that a flush has written, after the flush has returned.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH, WIDTH, STEPS = 4, 3, 100_000
SITE = "inputs"


class Flushed:
    """The newest flushed step, in memory that survives the process; -1 if there is none."""

    def __init__(self, folder: Path) -> None:
        path = folder / "flushed"
        if not path.exists():
            path.write_bytes(struct.pack("q", -1))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 8)

    def get(self) -> int:
        return int(struct.unpack("q", self._bytes[:])[0])

    def set(self, step: int) -> None:
        self._bytes[:] = struct.pack("q", step)


def batches(start: int) -> Iterator[tuple[Any, Any]]:
    for step in range(start, start + STEPS):
        yield np.full((BATCH, WIDTH), step, "float32"), np.zeros((BATCH, 2), "float32")


def noted(folder: Path) -> None:
    """From now on every flush is noted, and there is one every few milliseconds."""
    from fitscope.store import RunWriter
    from fitscope.store.pace import Pace

    flushed, flush = Flushed(folder), RunWriter.flush

    def noting(self: RunWriter, *, tensors: bool = True) -> None:
        flush(self, tensors=tensors)
        if tensors and self._step is not None:
            flushed.set(self._step)

    RunWriter.flush = noting  # type: ignore[method-assign]
    Pace.pause = lambda self, runtime: 0.005  # type: ignore[method-assign]


def scope(folder: Path) -> Any:
    import fitscope as fs

    watches = [fs.inputs(keep="both"), fs.weights(), fs.loss()]
    return fs.Scope(folder, watches, every=1, name="run", identity="trust", live=False)


def fit(folder: Path, start: int) -> None:
    """On the backend of Keras."""
    import keras

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(start)
    model.fit(batches(start), steps_per_epoch=STEPS, verbose=0, callbacks=[scope(folder)])


def session(folder: Path, start: int) -> None:
    """In a TF1 session."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    x = tf1.placeholder(tf.float32, [None, WIDTH], name="x")
    kernel = tf1.get_variable("kernel", [WIDTH, 2], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel)), name="loss")
    counter = tf1.train.get_or_create_global_step()
    train = tf1.train.GradientDescentOptimizer(0.0).minimize(loss, global_step=counter)
    with tf1.Session() as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(tf1.assign(counter, start))
        with scope(folder).session(sess):
            for data, _ in batches(start):
                sess.run(train, {x: data})


def imported(backend: str) -> None:
    """Everything that is slow to import, and nothing that starts a thread."""
    if backend == "sessions":
        import tensorflow as tf

        tf.compat.v1.disable_v2_behavior()
    else:
        import keras  # noqa: F401

    import fitscope.pipeline.recorder
    import fitscope.scope  # noqa: F401
    from fitscope.reduce import host

    host.warm_up()
    gc.freeze()


def end_with_parent() -> None:
    """Has Linux end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(backend: str) -> None:
    end_with_parent()
    imported(backend)
    print("ready", flush=True)
    for line in sys.stdin:
        folder, start = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            with open(Path(folder) / "said", "a") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            noted(Path(folder))
            (session if backend == "sessions" else fit)(Path(folder), int(start))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
