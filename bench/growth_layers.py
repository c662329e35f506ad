"""How the cost of capture grows: with the number of layers, and with the size of the batch.

    KERAS_BACKEND=jax python bench/growth_layers.py
    KERAS_BACKEND=jax python bench/growth_layers.py --of layers --sizes 10 100

For each size the rows take turns as in the tables (see `measuring.py`). Compiling is told apart: the plain step's, and that of the
tapped step. Prints JSON; the plot is made by `bench/run.py`. How a run grows with its steps is another script's.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
from measuring import answer, reason
from models import Task, dense, small_cnn
from names import EXACT, SAMPLED, UNCAPTURED
from train import measure

SIZES = {"layers": (10, 30, 100, 300, 1_000), "batch": (8, 32, 128, 512)}


sys.setrecursionlimit(
    20_000
)  # Keras walks from layer to layer by calling itself, and cannot build a thousand otherwise


def task(of: str, size: int) -> Task:
    if of == "layers":
        return Task(lambda: dense(size, 8), 32, (32,), f"{size} dense layers")
    return Task(small_cnn, size, (16, 16, 3), f"batches of {size}")


def grown(of: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """One point: what a plain step takes, what capture adds to it, and what is compiled before."""
    try:
        with tempfile.TemporaryDirectory() as to:
            return {"of": of, "size": size, **measure(task(of, size), "auto", options, Path(to))}
    except Exception as error:  # too large for this machine: the smaller ones still count
        return {"of": of, "size": size, "failed": reason(error)}
    finally:
        keras.backend.clear_session()
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of those of the plot")
    parser.add_argument("--rows", nargs="+", default=[UNCAPTURED, SAMPLED, EXACT])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--least", type=int, default=1_000)
    options = parser.parse_args()
    sizes = [(of, size) for of in options.of for size in options.sizes or SIZES[of]]
    answer(
        lambda: {
            "backend": keras.backend.backend(),
            "points": [grown(of, size, options) for of, size in sizes],
        }
    )


if __name__ == "__main__":
    main()
