"""`fitscope replay RUN --step N`: runs a step again that a black box kept.

`fitscope.cli.replay_step` runs it in a separate process, because Keras chooses its backend once per process: here that of the
training.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from fitscope.cli.arguments import RunArgument
from fitscope.cli.demo import BACKENDS

if TYPE_CHECKING:
    from fitscope.read.black_box import Box


def replay(
    run: RunArgument = "runs",
    step: Annotated[
        int | None, typer.Option(help="The step. Without it, fitscope lists the stored steps.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            help="A Python file and the compiled model in it, or a function that returns it. Needed for custom classes.",
        ),
    ] = None,
) -> None:
    """Repeat a step that the black box kept, and compare its results with those of the training."""
    from fitscope.errors import RunError
    from fitscope.read import open as open_run
    from fitscope.read.black_box import ranges

    found = open_run(run)
    boxes = found.black_box
    console = Console(highlight=False, soft_wrap=True)
    if step is None:
        listed(console, boxes)
        return
    wanted = next((each for each in reversed(boxes) if step in each.steps), None)
    if wanted is None:
        there = ranges([one for each in boxes for one in each.steps])
        raise RunError(
            f"a step that the black box of run {found.id!r} wrote", f"--step {step}", f"There are: {there}"
        )
    if wanted.backend not in BACKENDS:
        raise RunError("a backend of Keras", repr(wanted.backend), "The run is damaged")
    given = ["--model", model] if model is not None else []
    environment = {**os.environ, "KERAS_BACKEND": wanted.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "fitscope.cli.replay_step", found.path, "--step", str(step), *given]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else 1)


def listed(console: Console, boxes: Sequence[Box]) -> None:
    """Lists the stored steps, and why they were written."""
    from fitscope.read.black_box import ranges
    from fitscope.show.text import clean

    if not boxes:
        console.print(
            "The black box of this run wrote no steps. Record with fs.Scope(black_box=20): "
            "it writes at an error, or when the training dies."
        )
    for box in boxes:
        why = clean("; ".join(box.why))
        console.print(Text.assemble(("steps ", "dim"), (ranges(box.steps), "bold"), f"  {why}"))
        if box.odd_step is not None:
            console.print(Text(f"  the first loss that is not finite: step {box.odd_step:,}"))
