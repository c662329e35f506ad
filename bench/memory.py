"""What watching costs in memory: 20,000 batches through a small model, and how much the process grows after the warm-up.

Watched are statistics and running means of every activation, the changes of the widest one, and the loss of each sample, at
every step. Such a small step is quicker than what is made of it, so the queue between them fills up to its bound, here 16 MB, before
the warm-up is over, and training waits. The same training without a scope stands beside it, because frameworks grow as well. One
process for each; the table goes to `bench/memory.md`.

python bench/memory.py                      all backends
python bench/memory.py --backend jax        one of them
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BACKENDS = ("jax", "tensorflow", "torch")
MB = 2**20
QUEUE = "16 MB"
LIMIT = 50  #: MB of growth that is still called bounded


def train(batches: int, warm_up: int, watched: bool) -> dict[str, Any]:
    """One training in this process, and its resident memory after the warm-up, at most, and at the end."""
    import keras
    import numpy as np
    import psutil

    import fitscope as fs

    resident: list[int] = []

    class Resident(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1
            if self.seen >= warm_up and self.seen % 500 == 0:
                gc.collect()
                resident.append(psutil.Process().memory_info().rss)

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16_000, 32)).astype("float32"), rng.integers(0, 10, 16_000)
    layers = [keras.layers.Dense(128, activation="relu", name="wide"), keras.layers.Dense(10, name="head")]
    model = keras.Sequential([keras.layers.Input((32,)), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    watch = [fs.activations(keep=["stats", "mean"]), fs.changes("wide"), fs.loss(per_sample=True)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as to:
        scope = [fs.Scope(to, watch, every=1, memory=QUEUE)] if watched else []
        model.fit(x, y, batch_size=16, epochs=-(-batches // 1000), verbose=0, callbacks=[*scope, Resident()])
        if watched:
            run = fs.open(to)
            assert run.errors == []
            assert len(run.series("loss")) == len(run.series("activations/wide", "mean")) >= batches
    growth = [(now - resident[0]) / MB for now in resident]
    return {
        "start": resident[0] / MB,
        "most": max(growth),
        "end": growth[-1],
        "seconds": time.perf_counter() - began,
    }


def measure(backend: str, options: argparse.Namespace, watched: bool) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--here",
        "--batches",
        str(options.batches),
        "--warm-up",
        str(options.warm_up),
    ]
    command += ["--watched"] if watched else []
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(options: argparse.Namespace) -> bool:
    """Measures, writes the table, and says whether memory was bounded everywhere."""
    text = [
        "# What watching costs in memory",
        "",
        (
            f"Made by `make bench`: resident memory over {options.batches:,} batches of a small model, watched at every step "
            "(statistics and running means of all activations, changes, the loss of each sample), and of the same training "
            f"without a scope. Growth is since batch {options.warm_up:,}. The queue between training and disk may hold {QUEUE} of "
            "tensors; the step is so quick that it fills, and training waits."
        ),
        "",
        "| | after warm-up | highest growth | growth at the end | seconds |",
        "|---|---|---|---|---|",
    ]
    bounded = True
    for backend in [options.backend] if options.backend else BACKENDS:
        for watched in (False, True):
            found = measure(backend, options, watched)
            bounded = bounded and (not watched or found["most"] < LIMIT)
            name = f"{backend}, {'watched' if watched else 'plain'}"
            text.append(
                f"| {name} | {found['start']:.0f} MB | {found['most']:.1f} MB | {found['end']:.1f} MB | {found['seconds']:.0f} |"
            )
            print(text[-1], flush=True)
            options.out.write_text("\n".join([*text, ""]))
    return bounded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--warm-up", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=HERE / "memory.md")
    parser.add_argument("--here", action="store_true", help="one training in this process (used by itself)")
    parser.add_argument("--watched", action="store_true")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(train(options.batches, options.warm_up, options.watched)))
    elif not report(options):
        sys.exit(f"Watched, memory grew by more than {LIMIT} MB after the warm-up.")


if __name__ == "__main__":
    main()
