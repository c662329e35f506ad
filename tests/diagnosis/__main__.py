"""`make diagnose`: trains the corpus under a scope and prints how well its findings name what was planted.

    python -m diagnosis [--backend jax] [--part PART] [--setting default|every1|validation] [--judge] [NAME ...]

A NAME is a part of a program's name. Several programs share a process; one that crashes or hangs costs its own row. Runs and results
stay in the folder `--to`; the same command continues an interrupted one, `--fresh` begins again, and `--judge` reads the recorded
runs again without training, which takes seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from diagnosis.case import BACKENDS, Fault, Program
from diagnosis.corpus import PARTS, load
from diagnosis.score import Row, table
from diagnosis.worker import MARK, SETTINGS

HERE = Path(__file__).parents[1]
PATIENCE = 300.0  #: seconds without an answer, after which a program hangs
SHARED = 40  #: trainings for which one process is used before a new one is started


def main() -> int:
    options = asked()
    faults, programs = chosen(options)
    for setting in options.setting or ["default"]:
        folder = Path(options.to) / f"{options.backend}-{setting}"
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "results.jsonl"
        if options.fresh or options.judge:
            kept.unlink(missing_ok=True)
        rows = {(row.name, row.variant): row for row in read(kept)}
        tasks = [(one.name, variant) for one in faults for variant in ("fault", "twin")]
        tasks += [(one.name, "healthy") for one in programs]
        todo = [f"{name}:{variant}" for name, variant in tasks if (name, variant) not in rows]
        with kept.open("a", encoding="utf-8") as results:
            for done, row in enumerate(examined(todo, options, setting, folder / "runs"), 1):
                rows[row.name, row.variant] = row
                results.write(json.dumps(vars(row)) + "\n")
                results.flush()
                if sys.stderr.isatty():
                    print(f"\r{done} of {len(todo)}  {row.name:40}", end="", file=sys.stderr, flush=True)
        print(
            table(faults, [rows[task] for task in tasks], f"{setting}, {options.part}, on {options.backend}"),
            "\n",
        )
    return 0


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m diagnosis")
    parser.add_argument("--backend", choices=BACKENDS, default="jax")
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    parser.add_argument("--to", default="diagnose-results", help="folder for runs and results")
    parser.add_argument("--fresh", action="store_true", help="train again what has been trained")
    parser.add_argument("--judge", action="store_true", help="read recorded runs again instead of training")
    parser.add_argument("names", nargs="*", help="parts of names")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> tuple[list[Fault], list[Program]]:
    def wanted(one: Program) -> bool:
        part = options.part in ("all", one.part)
        named = not options.names or any(name in one.name for name in options.names)
        return part and named and options.backend in one.backends

    faults, programs = load()
    return [one for one in faults if wanted(one)], [one for one in programs if wanted(one)]


def read(kept: Path) -> Iterator[Row]:
    """The rows of an earlier call, but for those that failed and the line that it was interrupted in."""
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        try:
            row = Row(**json.loads(line))
        except ValueError:
            continue
        if not row.error:
            yield row


def examined(todo: list[str], options: argparse.Namespace, setting: str, runs: Path) -> Iterator[Row]:
    while todo:
        done = 0
        for row in process(todo[:SHARED], options, setting, runs):
            done += 1
            yield row
        todo = todo[done:]


def process(tasks: list[str], options: argparse.Namespace, setting: str, runs: Path) -> Iterator[Row]:
    """One worker, until it is through or dies; a program that it dies of has a row that says so."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    cache = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = {**cache, **os.environ, "KERAS_BACKEND": options.backend, "PYTHONPATH": path}
    judge = ["--judge"] if options.judge else []
    command = [sys.executable, "-m", "diagnosis.worker", setting, str(runs), *judge, *tasks]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            running = ""
            for line in answers(worker):
                told = json.loads(line)
                running = told.get("begins", "")
                if not running:
                    yield Row(**told)
            worker.kill() if worker.poll() is None and running else None
            if code := worker.wait() or running:
                name, _, variant = (running or tasks[0]).partition(":")
                yield Row(name, variant, error=f"the process ended with {code}")
        finally:
            worker.kill()  # does nothing to one that is through


def answers(worker: subprocess.Popen[bytes]) -> Iterator[str]:
    """What the worker says, until it is through or has been silent for too long."""
    assert worker.stdout is not None
    rest, heard = b"", time.monotonic()
    with selectors.DefaultSelector() as streams:
        streams.register(worker.stdout, selectors.EVENT_READ)
        while time.monotonic() - heard < PATIENCE:
            if not streams.select(1.0):
                continue
            data = os.read(worker.stdout.fileno(), 65536)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for one in whole:
                text = one.decode(errors="replace")
                if text.startswith(MARK):
                    heard = time.monotonic()
                    yield text.removeprefix(MARK)


if __name__ == "__main__":
    sys.exit(main())
