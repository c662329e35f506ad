"""What TensorBoard's debugger V2 costs on TensorFlow: `tf.debugging.experimental.enable_dump_debug_info`, mode FULL_HEALTH.

    KERAS_BACKEND=tensorflow python bench/debugger.py --model cnn

It is switched on for a whole process and changes what is traced, so no row beside it would be plain. Two processes therefore
take turns, one with it and one without; while one trains the other waits for a line on its stdin. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Row, Seconds, answer, enough_steps, reason, say, size, take_turns
from names import DEBUGGER, PLAIN


def work(model: str, to: Path, *, debug: bool) -> None:
    """Trains as many steps as each line of stdin says, and answers with what a step took."""
    import tensorflow as tf

    if debug:
        tf.debugging.experimental.enable_dump_debug_info(
            str(to), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1
        )
    from models import TASKS
    from train import Fit

    fit = Fit(TASKS[model], "auto")
    row = Row("", lambda steps: fit(steps, []))
    for line in sys.stdin:
        spent = row.timed(int(line))
        answer = {"failed": row.failed} if spent is None else {"cpu": spent.cpu, "wall": spent.wall}
        print(json.dumps(answer), flush=True)


class Worker(Row):
    """A row that trains in a process of its own."""

    def __init__(self, name: str, model: str, to: Path, *flags: str) -> None:
        super().__init__(name, lambda steps: None)
        command = [sys.executable, __file__, "--worker", "--model", model, "--to", str(to), *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def timed(self, steps: int) -> Seconds | None:
        if self.failed is not None:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError) as error:  # it is gone
            self.failed = f"the process ended with {self.process.wait()}: {reason(error)}"
            return None
        if "failed" in answer:
            self.failed = answer["failed"]
            return None
        self.steps += steps
        self.own.append(Seconds(**answer))
        return self.own[-1]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()


def compare(options: argparse.Namespace, to: Path) -> dict[str, Any]:
    plain, debugged = Worker(PLAIN, options.model, to), Worker(DEBUGGER, options.model, to, "--debug")
    try:
        plain.timed(2)  # compiles
        steps = options.steps or enough_steps(plain, options.seconds, 2)
        say(f"debugger V2, {options.model}: {steps} steps a round")
        take_turns(plain, [debugged], steps, options.rounds)
        if debugged.steps:
            debugged.told["bytes_per_step"] = size(to) / debugged.steps
        return {"steps": steps, **debugged.figures()}
    finally:
        plain.close()
        debugged.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--worker", action="store_true", help="be one of the two processes (used by itself)")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    if options.worker:
        work(options.model, options.to, debug=options.debug)
        return
    with tempfile.TemporaryDirectory() as to:
        answer(lambda: compare(options, Path(to)))


if __name__ == "__main__":
    main()
