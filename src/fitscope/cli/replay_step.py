"""The program behind `fitscope replay`: runs one step again and prints its results. KERAS_BACKEND names the backend.

It exits with 1 if the step gave other numbers than in the training, and with 2 if it could not run.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fitscope.errors import FitscopeError, FitscopeWarning, RunError, one_of
from fitscope.read import open as open_run
from fitscope.show.text import clean, terminal

if TYPE_CHECKING:
    from fitscope.capture.replay import Replay

AGREES = {
    True: ("as in the training, bit for bit", "green"),
    False: ("not as in the training", "bold red"),
    None: ("the step never ended in the training, so there is nothing to compare with", "yellow"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="fitscope replay")
    parser.add_argument("run")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--model")
    given = parser.parse_args()
    console = terminal(soft_wrap=True)
    try:
        model = None if given.model is None else model_in(given.model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitscopeWarning)  # `told` prints these warnings
            found = open_run(given.run).replay(given.step, model=model)
    except FitscopeError as error:
        message = Text.assemble(("fitscope: ", "bold red"), clean(error))
        Console(stderr=True, highlight=False, soft_wrap=True).print(message)
        return 2
    told(console, found)
    return 1 if found.agrees is False else 0


def model_in(named: str) -> Any:
    """The model that a Python file has, or makes, under a name."""
    file, _, name = named.rpartition(":")
    if not file or not Path(file).is_file():
        raise RunError("a Python file and a name in it", f"--model {named}", "Write --model train.py:model")
    sys.path.insert(0, str(Path(file).resolve().parent))
    there = runpy.run_path(file, run_name="fitscope_replay")
    if name not in there:
        names = [key for key in there if not key.startswith("_")]
        raise RunError(f"a name in {file!r}", repr(name), one_of(names, name))
    model = there[name]
    return model if hasattr(model, "train_on_batch") else model()


def told(console: Console, found: Replay) -> None:
    """Prints a replay."""
    words, style = AGREES[found.agrees]
    console.print(Text.assemble(("step ", "dim"), (f"{found.step:,}", "bold"), "  ", (words, style)))
    for note in found.notes:
        console.print(Text(f"  {clean(note)}", style="yellow"))
    for name, value in found.logs.items():
        console.print(Text(f"  {clean(name)}: {value}"))
    console.print(Text(f"  loss of the batch: {found.loss:.9g}"))
    if found.identity.status != "proven":
        console.print(
            Text(
                f"  activations and gradients: {found.identity.status}, {clean(found.identity.why)}",
                style="yellow",
            )
        )
    table = Table(box=None, pad_edge=False)
    for column in ("site", "shape", "rms", "not finite"):
        table.add_column(column, justify="left" if column in ("site", "shape") else "right")
    for site, value in found.items():
        if value.dtype.kind not in "fV":
            continue
        numbers = value.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        odd = numbers.size - finite.size
        rms = f"{np.sqrt(np.mean(finite**2)):.4g}" if finite.size else "–"
        table.add_row(
            clean(site), str(tuple(value.shape)), rms, f"{odd:,}" if odd else "", style="red" if odd else None
        )
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
