"""What the diagnosis costs: findings of a run of 10⁶ steps, and all rules together while a training runs.

    python bench/findings.py [--steps 1000000] [--every 50] [--models mlp cnn] [--rounds 3] [--quick]

A run as the default budget leaves it: the loss of every step, and all 81 other sites of a ten-layer network at one step in fifty. The
real writer stores it; only the rows are made up (see growth.py). A process that has not seen the run opens it and asks for its
findings: once those that the writer stored, once judged again from all rows.

The cost while training is that of the writer thread in the diagnosis (taking evidence, and judging), as a share of the CPU time of the
whole training. Trainings with and without the diagnosis take turns, so that a busy machine disturbs both alike.

Writes bench/findings.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

HERE = Path(__file__).parent
AT_ONCE = 20_000  #: steps that are handed to the writer together: a part


def stored(place: Path, steps: int, every: int) -> None:
    """Writes a run of so many steps."""
    from growth import Drawn, Prepared

    from fitscope.diagnose import Evidence, diagnose
    from fitscope.pipeline.diagnosis import stored as noted
    from fitscope.store import RunWriter
    from fitscope.store.parts import Parts

    drawn, losses = Drawn(), Drawn()
    at = losses.names.index("loss")
    losses.sites, losses.names, losses.tables = [losses.sites[at]], ["loss"], [losses.tables[at]]
    for kept in (drawn.sites, drawn.names, drawn.tables):
        del kept[at]
    writer = RunWriter.create(place, "run")
    rows = Prepared()
    rows.names = ["loss", *drawn.names]
    writer._tables.stats = parts = Parts(writer._objects, rows)
    for first in range(0, steps, AT_ONCE):
        last = min(first + AT_ONCE, steps)
        some = [drawn.rows(first // every, last // every)]
        some[0] = _later(some[0], every)
        some += [losses.rows(begin, min(begin + 5_000, last)) for begin in range(first, last, 5_000)]
        rows.ready = pa.concat_tables(
            [table.set_column(_at(table), "site", table["site"].cast(pa.string())) for table in some]
        ).sort_by([("site", "ascending"), ("step", "ascending")])
        rows.ready = rows.ready.set_column(_at(rows.ready), "site", rows.ready["site"].dictionary_encode())
        writer._step = last - 1
        writer._tables.put(parts, [])
        parts.gather()
        writer.flush()
    writer.note(findings=noted(diagnose(Evidence()), steps - 1))
    writer.close()


def _at(table: pa.Table) -> int:
    return table.column_names.index("site")


def _later(table: pa.Table, every: int) -> pa.Table:
    """The same rows, each so many times as late."""
    step = table["step"].to_numpy() * every
    return table.set_column(table.column_names.index("step"), "step", pa.array(step))


def looked(place: str) -> dict[str, float]:
    """Seconds until the findings are there, of a run that was not open before: wall and CPU."""
    import fitscope as fs

    found: dict[str, float] = {}
    for name, rules in (("noted", None), ("again", fs.RULES)):
        began = time.perf_counter(), time.process_time()
        findings = fs.open(place).findings(rules=rules)
        found[name] = time.perf_counter() - began[0]
        found[f"{name} CPU"] = time.process_time() - began[1]
        assert findings.checked
    return found


def online(name: str, steps: int, rounds: int) -> dict[str, float]:
    """The share of the diagnosis in the CPU time of a training under the default scope, and the ratio with and without it."""
    import models

    import fitscope as fs
    from fitscope.pipeline.diagnosis import Diagnosis
    from fitscope.pipeline.output import Output

    spent = [0.0]

    def timed(method: Any) -> Any:
        def run(*given: Any, **settings: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*given, **settings)
            finally:
                spent[0] += time.thread_time() - began

        return run

    for method in ("take", "take_losses", "judge"):
        setattr(Diagnosis, method, timed(getattr(Diagnosis, method)))
    task = models.TASKS[name]
    model, (x, y) = task.model(), task.data(steps)
    make = Output.__init__
    shares, cpu = [], {True: [], False: []}  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as to:
        for turn in range(2 * (rounds + 1)):
            judged = turn % 2 == 0

            def made(self: Any, *given: Any, judged: bool = judged, **settings: Any) -> None:
                make(self, *given, **settings)
                if not judged:
                    self._make_diagnosis = lambda: None

            Output.__init__ = made  # type: ignore[method-assign]
            spent[0], began = 0.0, time.process_time()
            model.fit(x, y, batch_size=task.batch, verbose=0, callbacks=[fs.Scope(Path(to) / str(turn))])
            took = time.process_time() - began
            if turn >= 2:  # the first of each compiles
                cpu[judged].append(took)
                shares += [spent[0] / took] if judged else []
    ratio = statistics.median(a / b for a, b in zip(cpu[True], cpu[False], strict=True))
    return {
        "share": statistics.median(shares),
        "most": max(shares),
        "ratio": ratio,
        "seconds": statistics.median(cpu[True]),
    }


def report(long: dict[str, float], costs: dict[str, dict[str, float]], options: argparse.Namespace) -> str:
    lines = [
        "# What the diagnosis costs",
        "",
        f"Made by `python bench/findings.py` on {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, Python {platform.python_version()}.",
        "",
        f"## Findings of a run of {options.steps:,} steps",
        "",
        f"The loss of every step, 81 other sites at one step in {options.every}: {long['rows']:,.0f} rows. A process that has not seen it",
        "opens it and asks for its findings.",
        "",
        "| | wall | CPU |",
        "|---|---|---|",
        f"| noted by the writer: `run.findings()` | {long['noted']:.3f} s | {long['noted CPU']:.3f} s |",
        f"| judged again from all rows: `run.findings(rules=fs.RULES)` | {long['again']:.2f} s | {long['again CPU']:.2f} s |",
        "",
        "## All rules together, while a training runs",
        "",
        "Default scope. The share is the writer thread's CPU time in the diagnosis by that of the whole training; the ratio is the CPU",
        f"time of trainings with the diagnosis by that of trainings without it, in turns, the median of {options.rounds}.",
        "The limit is 1 %.",
        "",
        "| model | share | largest | ratio | CPU of a training |",
        "|---|---|---|---|---|",
    ]
    for name, found in costs.items():
        lines.append(
            f"| {name} | {100 * found['share']:.2f} % | {100 * found['most']:.2f} % | {found['ratio']:.3f} | {found['seconds']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--fit", type=int, default=1_500, help="steps of a training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only see that it runs; written to bench/quick")
    parser.add_argument("--dir", default="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112
    parser.add_argument("--look", help=argparse.SUPPRESS)
    parser.add_argument("--online", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.steps, options.models, options.fit, options.rounds = 10_000, ["mlp"], 60, 1
    if options.look or options.online:
        found = looked(options.look) if options.look else online(options.online, options.fit, options.rounds)
        print(json.dumps(found))
        return
    directory = Path(tempfile.mkdtemp(prefix="fitscope-findings-", dir=options.dir))
    try:
        stored(directory, options.steps, options.every)
        long = _in_process("--look", directory / "run")
        long["rows"] = options.steps + 81 * (options.steps // options.every)
    finally:
        shutil.rmtree(directory)
    print(long, flush=True)
    costs = {}
    for name in options.models:
        costs[name] = _in_process("--online", name, "--fit", options.fit, "--rounds", options.rounds)
        print(name, costs[name], flush=True)
    out = HERE / "quick" if options.quick else HERE
    out.mkdir(exist_ok=True)
    (out / "findings.md").write_text(report(long, costs, options))


def _in_process(*arguments: Any) -> dict[str, Any]:
    """What this script answers in a process of its own, which has nothing of the run in memory."""
    command = [sys.executable, __file__, *map(str, arguments)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]
    )
    return found


if __name__ == "__main__":
    main()
