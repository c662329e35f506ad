"""One table: what each row costs in the training of one model on one backend, relative to plain `fit`.

    KERAS_BACKEND=jax python bench/train.py --model mlp --rows 'every*' 'uncap*'

All rows train one model, in turns (see `measuring.py`). With `--peak` it is one row alone, in a process of its own, for
its peak memory: within one process the highest mark of one row would hide that of the next. Prints JSON; the tables are
made by `bench/run.py`.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

import keras
from measuring import FIRST, Row, answer, enough_steps, plain_figures, reason, say, size, take_turns
from models import TASKS, Task
from names import PLAIN
from rows import chosen

import fitscope as fs

JIT = {"auto": "auto", "yes": True, "no": False}


class Fit:
    """`fit` of one model for so many steps, with callbacks of each row's own."""

    def __init__(self, task: Task, jit: Any) -> None:
        self.task = task
        self.model = task.model(jit)
        self.x, self.y = task.data(10)

    def __call__(self, steps: int, callbacks: list[Any]) -> None:
        """Trains one epoch of so many batches."""
        batch, there = self.task.batch, len(self.x) // self.task.batch
        if steps > there:
            self.x, self.y = self.task.data(steps)
        self.model.fit(
            self.x[: steps * batch], self.y[: steps * batch], batch_size=batch, epochs=1, shuffle=False, verbose=0,
            callbacks=callbacks,
        )  # fmt: skip


def rows_of(fit: Fit, globs: list[str], to: Path) -> dict[str, tuple[Row, list[Any]]]:
    """The rows of this backend, by name, each with its callbacks."""
    made = {}
    for k, (name, kind) in enumerate(chosen(globs, keras.backend.backend()).items()):
        row = Row(name, lambda steps: None, longer=kind.longer)
        callbacks: list[Any] = []
        try:
            callbacks += kind.callbacks(to / str(k), fit.model, fit.x[: fit.task.batch])
        except Exception as error:  # a package that is not there, an argument that is not known
            row.failed = reason(error)
        row.train = lambda steps, callbacks=callbacks: fit(steps, callbacks)  # type: ignore[misc]
        made[name] = row, callbacks
    return made


def tell(row: Row, callbacks: list[Any], directory: Path, *, warm: bool) -> None:
    """Notes what a row left on disk, and what its run says of itself."""
    scope = next((c for c in callbacks if isinstance(c, fs.Scope)), None)
    if scope is not None and scope.path is not None:
        run = fs.open(scope.path)
        if warm:  # the tapped step was compiled in what was the first fit
            row.told["compile_seconds"] = sum(run.overhead.get("first_call_seconds", []))
        elif run.errors:
            row.told["note"] = f"{len(run.errors)} errors: {run.errors[0]}"
        row.told["sites"] = len(run.sites)
        row.told["captured_share"] = run.overhead["captured"] / max(run.overhead["steps"], 1)
    if directory.exists():
        row.told["bytes_per_step"] = size(directory) / max(row.steps, 1)


def measure(task: Task, jit: Any, options: argparse.Namespace, to: Path) -> dict[str, Any]:
    """Has the rows of a table take turns, and gives the table as JSON."""
    fit = Fit(task, jit)
    plain = Row(PLAIN, lambda steps: fit(steps, []))
    plain.timed(FIRST)  # compiles
    steps = options.steps or enough_steps(plain, options.seconds, min(task.least, options.least))
    made = rows_of(fit, options.rows, to)
    say(f"{keras.backend.backend()}, {task.about}: {steps} steps a round")

    def all_tell(*, warm: bool) -> None:
        for k, (row, callbacks) in enumerate(made.values()):
            if row.failed is None:
                tell(row, callbacks, to / str(k), warm=warm)

    rows = [row for row, _ in made.values()]
    take_turns(plain, rows, steps, options.rounds, lambda: all_tell(warm=True))
    all_tell(warm=False)
    return {"steps": steps, "plain": plain_figures(plain), "rows": {row.name: row.figures() for row in rows}}


def table(options: argparse.Namespace, to: Path) -> dict[str, Any]:
    return measure(TASKS[options.model], JIT[options.jit], options, to)


def peak(options: argparse.Namespace, to: Path) -> dict[str, Any]:
    """One row alone, for a few steps, and the most memory that this process ever had."""
    fit = Fit(TASKS[options.model], JIT[options.jit])
    steps = options.steps or 21
    if options.peak == PLAIN:
        fit(steps, [])
    else:
        row, _ = rows_of(fit, [options.peak], to)[options.peak]
        row.timed(steps)
        if row.failed is not None:
            return {"failed": row.failed}
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(TASKS), default="cnn")
    parser.add_argument("--jit", choices=list(JIT), default="auto")
    parser.add_argument("--rows", nargs="+", default=["*"], help="names of rows, or globs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of plain training, for each row and round"
    )
    parser.add_argument("--steps", type=int, help="instead of as many as last that long")
    parser.add_argument(
        "--least", type=int, default=1_000, help="never more than so many because a model wants them"
    )
    parser.add_argument("--peak", metavar="ROW", help="only the peak memory of this row, or of `plain`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as to:
        answer(lambda: (peak if options.peak else table)(options, Path(to)))


if __name__ == "__main__":
    main()
