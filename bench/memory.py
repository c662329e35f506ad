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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import HERE, answer, in_process

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
    arguments = ["--here", "--batches", options.batches, "--warm-up", options.warm_up]
    return in_process("memory.py", [*arguments, *(["--watched"] if watched else [])], backend)


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
    options.out.parent.mkdir(exist_ok=True)
    for backend in [options.backend] if options.backend else BACKENDS:
        for watched in (False, True):
            found = measure(backend, options, watched)
            name = f"{backend}, {'watched' if watched else 'plain'}"
            if "failed" in found:
                text.append(f"| {name} | failed: {found['failed']} | | | |")
                bounded = False
            else:
                bounded = bounded and (not watched or found["most"] < LIMIT)
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
    parser.add_argument("--batches", type=int)
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument("--out", type=Path, help="the table; bench/memory.md, quick: bench/quick/memory.md")
    parser.add_argument("--here", action="store_true", help="one training in this process (used by itself)")
    parser.add_argument("--watched", action="store_true")
    options = parser.parse_args()
    options.batches = options.batches or (1_000 if options.quick else 20_000)
    options.warm_up = options.warm_up or (500 if options.quick else 2_000)
    options.out = options.out or HERE / ("quick/memory.md" if options.quick else "memory.md")
    if options.here:
        answer(lambda: train(options.batches, options.warm_up, options.watched))
    elif not report(options):
        sys.exit(f"Watched, memory grew by more than {LIMIT} MB after the warm-up, or could not be measured.")


if __name__ == "__main__":
    main()
