"""Long trainings: `python -m campaign.long soak|fits SEED` prints one line of JSON, the fields of a `Round` and the memory.

Memory is that of the whole process. What grows after the first fifth is a leak: of fitscope or of the framework, so the limit is wide
enough for the caches of the framework.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from campaign.ground import Round, most_memory
from campaign.killed import end_with_parent

STEPS = 200_000
FITS = 250
MAY_GROW = 100 << 20  #: bytes, after the first fifth


def resident() -> int:
    """The bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def model() -> Any:
    import keras

    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def grown(sizes: list[int], done: Round) -> None:
    """Judges the memory at equal distances."""
    fifth = sizes[len(sizes) // 5 :]
    if fifth[-1] > min(fifth) + MAY_GROW:
        done.failures.append(f"memory grew: {[size >> 20 for size in sizes]} MB")


def soak(place: str, done: Round, steps: int = STEPS) -> None:
    """A long training, recorded with the settings that people get."""
    import keras

    import fitscope as fs

    sizes: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.before = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now = time.perf_counter()
            if batch > 100:  # the first steps compile
                done.slowest = max(done.slowest, now - self.before)
            self.before = now
            done.tried += 1
            if batch % (steps // 20) == 0:
                sizes.append(resident())

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    batch = (x, x[:, :1])

    def batches() -> Any:
        while True:
            yield batch

    scope = fs.Scope(place, live=False)
    model().fit(batches(), steps_per_epoch=steps, verbose=0, callbacks=[scope, Watch()])
    run = fs.open(place)
    done.survived = int(run.series("loss").index[-1]) + 1
    done.lost = sum(run.lost.values()) + sum(run.dropped.values())
    if run.status != "complete" or run.errors or run.damaged or done.survived != steps:
        done.failures.append(f"{run!r}: {run.status}, {run.errors}, {run.damaged}, {done.survived} steps")
    grown(sizes, done)


def fits(place: str, done: Round, number: int = FITS) -> None:
    """Trainings one after another, each with its own scope and run."""
    import keras

    import fitscope as fs

    sizes: list[int] = []
    fresh = keras.backend.backend() == "torch"  # elsewhere every model is compiled, and the compiler keeps it
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    kept = model()
    for n in range(number):
        began = time.perf_counter()
        done.tried += 1
        one = model() if fresh else kept
        one.fit(
            x,
            x[:, :1],
            batch_size=8,
            verbose=0,
            callbacks=[fs.Scope(place, every=1, name=f"run{n}", live=False)],
        )
        run = fs.open(place, f"run{n}")
        if (
            run.status == "complete"
            and len(run.series("loss")) == 8
            and not (run.errors or run.lost or run.damaged)
        ):
            done.survived += 1
        else:
            done.failures.append(f"{n}: {run!r}, {run.errors}, {run.lost}")
        if n > 0:
            done.slowest = max(done.slowest, time.perf_counter() - began)
        if n % max(1, number // 20) == 0:
            sizes.append(resident())
    grown(sizes, done)


def main(what: str, seed: str) -> None:
    import fitscope as fs

    end_with_parent()
    done = Round()
    warnings.simplefilter("error", fs.FitscopeWarning)
    warnings.filterwarnings(
        "ignore", "fitscope cannot keep its budget"
    )  # on a machine that is busy with other work
    with tempfile.TemporaryDirectory() as place:
        {"soak": soak, "fits": fits}[what](place, done)
    print(json.dumps({**asdict(done), "memory": most_memory()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
