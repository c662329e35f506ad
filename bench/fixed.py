"""Three costs that do not depend on the size of tensors: of a captured site on the training thread, of a step on disk, and of rules.

    KERAS_BACKEND=jax python bench/fixed.py

The first is CPU time of the training thread alone, from the begin of one batch to the begin of the next, with a scope at every
step and without, in turns, divided by the sites; the model is that of 21 tiny layers. The second is the size
of a whole run of ten dense layers with the default watches at every step, histograms included. The third is the share of the CPU
time that judging took in the last of those trainings of tiny layers, including the judgement at its end. Prints JSON.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from measuring import answer, say, size
from models import TASKS, Task, dense
from train import Fit

import fitscope as fs


class Thread(keras.callbacks.Callback):
    """CPU seconds of the training thread at the begin of each batch. Keras calls the end of one elsewhere if it can."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begins.append(time.thread_time())

    def step(self) -> float:
        """What a step took, from the begin of one to the begin of the next."""
        return statistics.median(np.diff(self.begins))


def per_site(steps: int, rounds: int, to: Path) -> dict[str, Any]:
    """Microseconds of the training thread for each site of a captured step."""
    fit, scope = Fit(TASKS["mlp"], "auto"), fs.Scope(to, every=1)
    found = []
    for turn in range(rounds + 1):
        medians = []
        for callbacks in ([], [scope]):
            thread = Thread()
            fit(steps, [thread, *callbacks])
            medians.append(thread.step())
        sites = len(fs.open(scope.path).sites)
        if turn:
            found.append(1e6 * (medians[1] - medians[0]) / sites)
        say(
            f"  thread, round {turn} of {rounds}: {medians[0] * 1e6:.0f} and {medians[1] * 1e6:.0f} µs a step, {sites} sites"
        )
    own = fs.open(scope.path).overhead
    return {
        "sites": sites,
        "us": statistics.median(found),
        "us_spread": [min(found), max(found)],
        "judged": own["judging_seconds"] / own["cpu_seconds"],
        "own_us": 1e6 * own["training_thread_seconds"] / own["captured"] / sites,
    }


def on_disk(steps: int, to: Path) -> dict[str, Any]:
    """Bytes a step of a run of ten layers."""
    task = Task(lambda: dense(10, 64), 32, (32,), "ten dense layers")
    scope = fs.Scope(to, every=1)
    Fit(task, "auto")(steps, [scope])
    run = fs.open(scope.path)
    return {"steps": steps, "sites": len(run.sites), "bytes": size(to) / steps, "errors": list(run.errors)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as to:
        answer(
            lambda: {
                "thread": per_site(options.steps, options.rounds, Path(to, "thread")),
                "disk": on_disk(2 * options.steps, Path(to, "disk")),
            }
        )


if __name__ == "__main__":
    main()
