"""`make programs`: trains every program on every backend it runs on, and prints one table.

    python -m programs [--backend jax] [--quick] [--verbose] [NAME ...]

A NAME is a part of a program's name. One process at a time, one for each backend; a program that crashes or hangs costs its own
row and the others go on in a new process. Ends with 1 if a program fails.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from programs.catalog import ALL, PROGRAMS, Program
from programs.table import Reasons, Row, footnotes, line, titles
from programs.worker import MARK

HERE = Path(__file__).parents[1]
PATIENCE = 600.0  #: seconds without an answer, after which a program hangs


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m programs")
    asked.add_argument("--backend", choices=ALL, action="append")
    asked.add_argument("--quick", action="store_true", help="only those that CI runs")
    asked.add_argument("--verbose", action="store_true", help="name each site that was not seen")
    asked.add_argument("names", nargs="*", help="parts of names")
    options = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker ends too
    rows, reasons = [], Reasons()
    print(titles(), flush=True)
    for backend in options.backend or ALL:
        chosen = [one for one in PROGRAMS if backend in one.backends and _chosen(one, options)]
        for row in _on(backend, chosen):
            rows.append(row)
            print(line(row, reasons), flush=True)
            for site, why in row.unseen.items() if options.verbose else ():
                print(f"    {site}: {why}", flush=True)
    print(footnotes(rows, reasons))
    return int(any(row.problems for row in rows))


def _chosen(program: Program, options: argparse.Namespace) -> bool:
    named = not options.names or any(name in program.name for name in options.names)
    return named and (program.quick or not options.quick)


def _on(backend: str, programs: list[Program]) -> Iterator[Row]:
    """The rows of one backend: programs that need nothing special share a process."""
    groups: list[list[Program]] = []
    for program in programs:
        if groups and groups[-1][0].environment == program.environment:
            groups[-1].append(program)
        else:
            groups.append([program])
    for group in groups:
        remaining = group
        while remaining:
            done = 0
            for row in process(backend, remaining):
                done += 1
                yield row
            remaining = remaining[done:]


def process(backend: str, programs: list[Program], module: str = "programs.worker") -> Iterator[Row]:
    """One worker, until it is through or dies; a program that it dies of has a row that says so."""
    environment = {**os.environ, **programs[0].environment, "KERAS_BACKEND": backend, "PYTHONPATH": _path()}
    command = [sys.executable, "-m", module, *(one.name for one in programs)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            yield from _rows(worker, backend, programs)
        finally:
            worker.kill()  # does nothing to one that is through


def _rows(worker: subprocess.Popen[str], backend: str, programs: list[Program]) -> Iterator[Row]:
    running, said = "", ""
    for answer in _lines(worker):
        if not answer.startswith(MARK):
            said += answer
            continue
        told = json.loads(answer.removeprefix(MARK))
        if "begins" in told:
            running, said = told["begins"], ""
        else:
            running = ""
            yield Row(**told)
    code = worker.wait()
    if running or code:
        name = running or programs[0].name
        ended = f"the process ended with {code}: {said.strip()[-300:]}"
        yield Row(name, backend, problems=[ended])


def _lines(worker: subprocess.Popen[str]) -> Iterator[str]:
    """What the worker writes to either stream; kills it when it has been silent for too long."""
    assert worker.stdout is not None
    assert worker.stderr is not None
    with selectors.DefaultSelector() as streams:
        for stream in (worker.stdout, worker.stderr):
            os.set_blocking(stream.fileno(), False)
            streams.register(stream, selectors.EVENT_READ, bytearray())
        heard = time.monotonic()
        while streams.get_map():
            for key, _ in streams.select(1.0):
                data = os.read(key.fd, 65536)
                key.data.extend(data)
                if not data:
                    streams.unregister(key.fileobj)
                *whole, rest = key.data.split(b"\n")
                key.data[:] = rest
                for one in whole:
                    text = one.decode(errors="replace") + "\n"
                    heard = time.monotonic() if text.startswith(MARK) else heard
                    yield text
            if time.monotonic() - heard > PATIENCE:
                worker.kill()
                yield f"silent for {PATIENCE:.0f} s, so it was killed\n"
                return


def _path() -> str:
    return os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    sys.exit(main())
