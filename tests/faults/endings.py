"""Ends small trainings in every way, many times, and looks at what is left. Prints a table; exits with 1 if anything is wrong.

    python tests/faults/endings.py [--backend jax] [--tries 12] [--only PART_OF_A_NAME] [--fresh] [--write]

Each try is a process of its own that runs one script of `ending_scripts.py` to its end. Importing a framework takes most of
the time of such a process, so they are forked from one that has imported everything and computed nothing: no framework has a
thread yet, and each child goes through the whole end of the interpreter. `--fresh` starts each from nothing. `--write` puts the
counts into `endings.json`, and from there into the table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
sys.path[:0] = [str(HERE), str(HERE.parent), str(SOURCE)]

import ending_scripts  # noqa: E402
from ending_scripts import KINDS, Kind, Progress  # noqa: E402

from ledger import put_into  # noqa: E402

PATIENCE = (
    120.0  #: seconds in which a process that does not hang uses some CPU, also on a machine that is busy
)
#: By kind and backend: tries that ended as they should, and all tries, of the newest campaign.
COUNTS = HERE / "endings.json"
PAGE = HERE.parent.parent / "docs" / "reliability.md"
BACKENDS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
SWALLOWED = 150  #: steps after which a Ctrl-C counts as swallowed by the framework


@dataclass
class Row:
    """What came of all tries of one kind."""

    name: str
    tries: int = 0
    complete: int = 0
    status: int = 0
    code: int = 0
    aborted: int = 0
    hung: int = 0
    again: int = 0
    cpu: float = 0.0
    steps: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def right(self) -> int:
        """How many tries ended as they should, at most: what is wrong may be wrong in different ones."""
        return max(0, min(self.complete, self.status, self.code) - self.aborted - self.hung)

    @property
    def fine(self) -> bool:
        return self.right == self.tries


# ---- the process from which the others are forked ----------------------------------------------------------


def serve() -> tuple[str, str, int] | None:
    """Imports everything, then forks a child for each line it reads: returns in the child, with what it is to run."""
    import keras  # noqa: F401

    import fitscope.scope  # noqa: F401
    from fitscope.reduce import host

    host.warm_up()
    gc.freeze()  # children do not go through what they share
    print("ready", flush=True)
    for line in sys.stdin:
        name, folder, at = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            with open(os.devnull, "w") as nothing, open(Path(folder) / "stderr", "w") as said:
                os.dup2(nothing.fileno(), 1)
                os.dup2(said.fileno(), 2)
            return name, folder, int(at)
        print(pid, flush=True)
        _, status, used = os.wait4(pid, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
    return None


class Forked:
    """Starts scripts as children of one process that has imported everything."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._said() == "ready"

    def start(self, *request: str) -> int:
        assert self._server.stdin is not None
        print(*request, sep="\t", file=self._server.stdin, flush=True)
        return int(self._said())

    def wait(self) -> tuple[int, float]:
        """Its exit code, and the seconds of CPU it has used."""
        code, cpu = self._said().split()
        return int(code), float(cpu)

    def close(self) -> None:
        self._server.communicate()

    def _said(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


class Fresh:
    """Starts each script from nothing."""

    def start(self, name: str, folder: str, at: str) -> int:
        with open(Path(folder) / "stderr", "w") as said:
            command = [sys.executable, str(HERE / "ending_scripts.py"), name, folder, at]
            here = {**os.environ, "PYTHONPATH": str(SOURCE)}
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=here)
        return self._process.pid

    def wait(self) -> tuple[int, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = self._process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return code, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def close(self) -> None:
        pass


@contextmanager
def starter(fresh: bool) -> Iterator[Forked | Fresh]:
    made = Fresh() if fresh else Forked()
    try:
        yield made
    finally:
        made.close()


# ---- one try -----------------------------------------------------------------------------------------------


def attempt(start: Forked | Fresh, row: Row, folder: Path) -> None:
    """Runs the script once, ends it, and looks at what it left."""
    kind, at = KINDS[row.name], random.randrange(20, 150)
    progress = Progress(folder / "progress")
    pid = start.start(row.name, str(folder), str(at))
    code, cpu, seen, again = _drive(kind, start, pid, progress, at)
    row.tries += 1
    row.again += again
    row.cpu += cpu
    row.hung += code == -signal.SIGKILL
    row.aborted += code == -signal.SIGABRT
    # A second Ctrl-C may arrive when the first has just ended the training: then it ends the script, as without a scope.
    codes = (*kind.code, -signal.SIGINT) if again else kind.code
    row.code += code in codes
    if code not in codes:
        row.wrong.append(f"exit code {code}: {(folder / 'stderr').read_text()[-400:]}")
    # After SIGTERM the training goes on until everything before it is written.
    least = seen if "SIGTERM" in kind.send or "daemon" in row.name else progress.steps
    _look(row, kind, folder, least)


def _drive(
    kind: Kind, start: Forked | Fresh, pid: int, progress: Progress, at: int
) -> tuple[int, float, int, int]:
    """Sends the signals of the kind, each when it is time, until the process has ended.

    Returns its exit code and CPU time, the steps done when the first signal was sent, and how often one had to be sent again:
    frameworks swallow a KeyboardInterrupt now and then, without a scope too, and people press Ctrl-C again.
    """
    ended: list[tuple[int, float]] = []
    waits = threading.Thread(target=lambda: ended.append(start.wait()))
    waits.start()
    sent, again, seen, used, deadline = 0, 0, 0, 0.0, time.monotonic() + PATIENCE
    while waits.is_alive():
        if sent < len(kind.send) and (progress.steps >= at if sent == 0 else progress.left):
            time.sleep(random.uniform(0, 0.01))
            seen = progress.steps if sent == 0 else seen
            _kill(pid, getattr(signal, kind.send[sent]))
            sent += 1
        elif (
            kind.send[:1] == ("SIGINT",)
            and not progress.left
            and progress.steps > at + SWALLOWED * (again + 1)
        ):
            _kill(pid, signal.SIGINT)
            again += 1
        elif time.monotonic() > deadline:
            before, used, deadline = used, _cpu(pid), time.monotonic() + PATIENCE
            if used < before + 0.5:
                _kill(pid, signal.SIGKILL)
        waits.join(0.0005)
    return *ended[0], seen, again


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or this is no Linux
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _look(row: Row, kind: Kind, folder: Path, least: int) -> None:
    """Whether every run in the folder holds all that was captured, and says how it ended."""
    import fitscope as fs

    complete = right = True
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        run = fs.open(path)
        site = "loss" if "loss" in run.sites else run.sites[0]
        frame = run.frame(site)
        steps = list(
            frame.index[frame["error"].isna()] if "error" in frame else frame.index
        )  # captured, not derived
        due = range(0, len(steps) * kind.every, kind.every)
        held = steps == list(due) and not run.lost and not run.damaged
        if kind.lossless:
            held = held and due.stop >= least and not run.dropped
        else:
            told = "not written" in (folder / "stderr").read_text()
            held = held and (len(steps) >= least or told)
        by = run.ended_by or ""
        known = kind.by in by or not kind.lossless
        if not held:
            row.wrong.append(f"{len(steps)} of {least} steps, lost {run.lost}, dropped {run.dropped}")
        if run.status != kind.status or not known:
            row.wrong.append(f"{run.status} by {run.ended_by!r}")
        complete, right = complete and held, right and run.status == kind.status and known
        row.steps.append(len(steps))
    row.complete += complete
    row.status += right


# ---- the table ---------------------------------------------------------------------------------------------

TITLE = f"{'':36} {'tries':>5} {'complete':>8} {'status':>6} {'exit':>5} {'abort':>5} {'hang':>4} {'again':>5} {'steps':>9} {'CPU s':>5}"


def line(row: Row) -> str:
    steps = f"{min(row.steps)}–{max(row.steps)}" if row.steps else ""
    return (
        f"{row.name:36} {row.tries:5} {row.complete:8} {row.status:6} {row.code:5} {row.aborted:5} {row.hung:4} {row.again:5} "
        f"{steps:>9} {row.cpu / max(row.tries, 1):5.1f}{'' if row.fine else '   ' + row.wrong[0] if row.wrong else ''}"
    )


def counts() -> dict[str, dict[str, list[int]]]:
    return json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}


def page(kept: dict[str, dict[str, list[int]]]) -> str:
    """The table of the docs."""
    rows = [
        "| how the training ends | " + " | ".join(BACKENDS.values()) + " |",
        "|---|" + "--:|" * len(BACKENDS),
    ]
    for name, by_backend in kept.items():
        cells = (" of ".join(map(str, by_backend.get(backend, "–"))) for backend in BACKENDS)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def write(backend: str, rows: list[Row]) -> None:
    """Keeps the counts of these rows, and puts all that are kept into the docs."""
    kept = counts()
    for row in rows:
        kept.setdefault(row.name, {})[backend] = [row.right, row.tries]
    kept = {name: kept[name] for name in KINDS if name in kept}
    COUNTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    put_into(PAGE, "make endings", page(kept))


def kinds(backend: str) -> list[str]:
    """The names of the ways to end that exist on a backend."""
    return [name for name, kind in KINDS.items() if kind.only in ("", backend)]


def tried(start: Forked | Fresh, name: str, tries: int) -> Row:
    """So many tries of one kind."""
    row = Row(name)
    with tempfile.TemporaryDirectory() as place:
        for number in range(tries):
            folder = Path(place) / str(number)
            folder.mkdir()
            attempt(start, row, folder)
            shutil.rmtree(folder)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "jax"))
    parser.add_argument("--tries", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--write", action="store_true", help="count the tries in docs/reliability.md")
    given: Any = parser.parse_args()
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # in the background; the trainings would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(KERAS_BACKEND=given.backend, TF_CPP_MIN_LOG_LEVEL="3")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(JAX_COMPILATION_CACHE_DIR=cache, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
        _table(given)


def _table(given: Any) -> None:
    began, rows = time.monotonic(), []
    print(f"{given.backend}, {'fresh' if given.fresh else 'forked'}\n{TITLE}", flush=True)
    with starter(given.fresh) as start:
        for name in kinds(given.backend):
            if given.only in name:
                rows.append(tried(start, name, given.tries))
                print(line(rows[-1]), flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    if given.write:
        write(given.backend, rows)
    sys.exit(not all(row.fine for row in rows))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        wanted = serve()
        if wanted is not None:
            ending_scripts.main(*wanted)
    else:
        main()
