"""What does a training in 1,024 processes cost? All its writers, one after the other, and a reader of what they leave.

    python bench/ranks.py [--ranks 1024] [--steps 1000] [--dir DIRECTORY] [--quick]

Every rank is the real writer with its real pace, on a clock of its own: a step takes half a second, and every step is captured.
A sampled rank records the 82 sites of a ten-layer network, a light rank its pulse; only the numbers are made up. The store is
obstore's `LocalStore`, a directory behind the same calls as S3, so a request here is a request there. The reader is another
process, and reads once as fast as the store answers and once with 20 ms for each request, as an object store in the same region
takes.

Writes the tables of docs/scale.md, between its markers. Takes four minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from growth import LAYERS, sites

from fitscope.pipeline.diagnosis import Diagnosis
from fitscope.pipeline.pulse import Pulse
from fitscope.record import Block, Head, Moment
from fitscope.reduce.stats import Columns
from fitscope.sites import Site
from fitscope.store import Remote, RunWriter, interval, sampled_ranks
from fitscope.store.pace import LIGHT_SECONDS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scale.md"
STEP = 0.5  #: seconds of the imagined training
DEFAULT = 8  #: of `Scope(ranks=…)`
LATENCY = 0.02  #: seconds of a request to an object store in the same region
DRAWN = 64  #: steps whose numbers are drawn; others repeat them


def store(directory: str, latency: float = 0.0) -> Remote:
    """A directory as an object store."""
    from obstore.store import LocalStore

    made = Remote(LocalStore(directory, mkdir=True), name="local")
    if latency:
        made = Slow(made.store, name="local")
        made.latency = latency
    return made


class Slow(Remote):
    """A store that takes its time."""

    latency = 0.0

    def folder(self, name: str) -> Remote:
        inner = Slow(self.store, name=self.name, prefix=f"{self._prefix}{name.rstrip('/')}/")
        inner._made, inner.latency = self._made, self.latency
        return inner

    def _call(self, request: Any, of: int = 1) -> Any:
        time.sleep(self.latency * of)
        return super()._call(request, of)


def model() -> dict[str, Any]:
    """The network, as a run describes it."""
    layers = [
        {
            "path": name,
            "name": name,
            "type": "Dense",
            "from": LAYERS[n - 1 : n],
            "weights": {f"{name}/{weight}": {"trainable": True} for weight in ("kernel", "bias")},
        }
        for n, name in enumerate(LAYERS)
    ]
    return {"name": "net", "parameters": 1_000_000, "layers": layers}


class Drawn:
    """The numbers of some steps."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        listed = sites()
        self.heads = tuple(
            Head(Site.parse(name), () if size == 1 else (32, size // 32 + 1), "float32", size > 1)
            for name, size, _ in listed
        )
        self._columns = [_columns(rng, np.array([size for _, size, _ in listed])) for _ in range(DRAWN)]

    def block(self, step: int, at: float) -> Block:
        stats = self._columns[step % DRAWN]
        values = np.where([head.shape == () for head in self.heads], stats.moments[:, 0], np.nan)
        return Block((Moment(step, 0, step, at),), self.heads, stats, values)


def _columns(rng: np.random.Generator, sizes: np.ndarray[Any, Any]) -> Columns:
    rows = len(sizes)
    scale = 10.0 ** rng.uniform(-3, 0, rows)
    moments = np.stack([0.01 * scale, scale, -4 * scale, 4 * scale, scale], axis=1)
    counts = np.zeros((rows, 5), np.int64)
    counts[:, 0], counts[:, 2] = sizes, sizes // 2
    wide = np.where(sizes == 1, 1, 24)
    buckets = np.concatenate([np.sort(rng.choice(np.arange(90, 140), n, replace=False)) for n in wide])
    tallies = rng.integers(1, 1 + np.repeat(np.maximum(sizes // 24, 1), wide))
    return Columns(counts, moments, wide.astype(np.int64), buckets.astype(np.int16), tallies)


class Imagined:
    """One rank of the training, on a clock of its own."""

    def __init__(self, runs: Remote, rank: int, world: int, sampled: list[int] | None) -> None:
        info = {"model": model(), "launch": "x", **({"sampled": sampled} if sampled else {})}
        self.runs, self.now, self.offset = runs, 0.0, 3.0 * (rank % 7)
        self.minutes: Counter[int] = Counter()  # requests, by minute
        self.flushes = 0
        before = runs.requests
        self.writer = RunWriter.share(
            runs, "run", info, attempt=0, start_step=0, world=world, rank=rank, limit=None
        )
        begun = time.monotonic()
        self.writer.pace._clock = lambda: begun + self.now
        self.began = runs.requests - before
        self.minutes[0] += self.began
        self.pulse = Pulse.of(info["model"], shards=False)
        self.diagnosis = None if self.writer.pace.light else Diagnosis(info)

    def train(self, steps: int, drawn: Drawn) -> None:
        due = 0.0
        for step in range(steps):
            self.now = (step + 1) * STEP
            block = drawn.block(step, 1.7e9 + self.offset + self.now)
            self.pulse.take(block.ats[0], [block])
            if self.writer.pace.light:
                self.writer.reached(step)
            else:
                self.writer.write([], [], [block])
                self.diagnosis.take([block])
            if self.now >= due:
                self.flush()
                due = self.now + self.writer.pace.pause(self.now)

    def flush(self) -> None:
        found = self.diagnosis.judge() if self.diagnosis is not None else None
        if found is not None:
            self.writer.note(findings=found)
        before = self.runs.requests
        self.flushes += 1
        self.writer.note(
            pulse=self.pulse.describe(),
            overhead={"steps": self.writer._step, "wall_seconds": self.now, "cpu_share": 0.01},
            identity={"train": {"status": "proven", "steps": [0, 1, 2], "why": None}},
        )
        self.writer.flush(tensors=self.writer.pace.tensors_due())
        self.minutes[int(self.now // 60)] += self.runs.requests - before

    def close(self) -> None:
        before = self.runs.requests
        self.writer.close()
        self.minutes[int(self.now // 60)] += self.runs.requests - before


def write(directory: str, ranks: int, steps: int) -> dict[str, Any]:
    """The run of all ranks, and what they asked of the store. They are left open."""
    runs, drawn = store(directory), Drawn()
    sampled = sampled_ranks(ranks, DEFAULT)
    began = time.process_time()
    imagined = []
    for rank in range(ranks):
        one = Imagined(runs, rank, ranks, sampled)
        one.train(steps, drawn)
        if one.diagnosis is not None:
            one.writer.note(findings=one.diagnosis.judge(last=True))
        one.flush()
        imagined.append(one)
    seconds = time.process_time() - began
    return {"imagined": imagined, "cpu": seconds, **counted(directory, imagined, steps)}


def counted(directory: str, imagined: list[Imagined], steps: int) -> dict[str, Any]:
    """Objects and bytes in the store, and requests, of sampled ranks and of light ones."""
    found: dict[str, Any] = {}
    for kind, light in (("sampled", False), ("light", True)):
        some = [one for one in imagined if one.writer.pace.light is light]
        if not some:
            continue
        files = [
            file
            for one in some
            for file in Path(directory, "run", f"a0000/r{one.writer.rank:05d}").rglob("*")
            if file.is_file()
        ]
        made = [sum(one.minutes.values()) for one in some]
        found[kind] = {
            "ranks": len(some),
            "objects": len(files) / len(some),
            "bytes": sum(file.stat().st_size for file in files) / len(some),
            "requests": sum(made) / len(some),
            "a flush": sum(sum(list(one.minutes.values())) - one.began for one in some)
            / sum(one.flushes for one in some),
            "a start": sum(one.began for one in some) / len(some),
            "a minute": sum(made) / len(some) / (steps * STEP / 60),
            "most in a minute": max(max(one.minutes.values()) for one in some),
        }
    return found


def look(directory: str, latency: float) -> dict[str, float]:
    """Seconds until one has what one asked for, of a run that was not open before."""
    import pandas  # noqa: F401 - takes longer than all the rest

    from fitscope import read
    from fitscope.show.app import Pages
    from fitscope.show.parameters import Parameters
    from fitscope.show.shelf import Shelf

    runs = store(directory, latency)
    found: dict[str, float] = {}

    def timed(name: str, action: Any) -> Any:
        began, cpu, before = time.perf_counter(), time.process_time(), runs.requests
        result = action()
        found[name], found[f"{name} CPU"] = time.perf_counter() - began, time.process_time() - cpu
        found[f"{name} requests"] = runs.requests - before
        return result

    def opened() -> Any:
        run = read.open(runs, "run")
        return run, run.status, run.last_step

    run, *_ = timed("open", opened)
    assert len(timed("sites", lambda: run.sites)) == 82
    frame = timed("ranks", lambda: run.ranks)
    assert len(frame) == int(run.attempts[0]["world"])

    def picture() -> None:  # as the page asks the server: which runs there are, then the newest
        pages = Pages(Shelf(runs), 1.0, lambda: False)
        assert len(json.loads(bytes(pages.runs(None).body))) == 1
        head = json.loads(bytes(pages.head(Parameters({})).body))
        answers = [
            pages.matrix(Parameters({"measure": head["measures"][0]["key"]})),
            pages.series(Parameters({})),
        ]
        assert {answer.status_code for answer in answers} == {200}

    timed("picture", picture)
    timed("series", lambda: run.series("gradients/conv_3", "rms"))
    return found


def looked(directory: str, latency: float) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--look", directory, "--latency", str(latency)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=600).stdout
    found: dict[str, float] = json.loads(said)
    return found


LONG = 1_000_000  #: steps of the training that is only computed
LONG_CAPTURED = (
    10 + 10 + (LONG - 100) // 100
)  #: the default where several processes train: see docs/distributed.md


def derived(written: dict[str, Any], ranks: int, steps: int) -> dict[str, dict[str, float]]:
    """What a training of `LONG` steps costs with the default schedule, from the figures of this one."""
    seconds, found = LONG * STEP, {}
    for kind in ("sampled", "light"):
        one, at, flushes = written[kind], 0.0, 0
        while at < seconds:  # as `Pace` does, with two requests a flush or one
            at += max(interval(at), LIGHT_SECONDS if kind == "light" else 2 * one["a flush"])
            flushes += 1
        requests = one["a start"] + flushes * one["a flush"]
        grows = kind == "sampled"  # a status does not
        found[kind] = {
            "ranks": one["ranks"],
            "bytes": one["bytes"] / steps * LONG_CAPTURED if grows else one["bytes"],
            "requests": requests,
            "a minute": requests / (seconds / 60),
        }
    assert sum(one["ranks"] for one in found.values()) == ranks
    return found


def size(number: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def report(written: dict[str, Any], looks: dict[str, dict[str, float]], ranks: int, steps: int) -> str:
    """The tables of docs/scale.md."""
    lines = [
        (
            f"Written by `python bench/ranks.py`: {ranks:,} ranks × {steps:,} steps, every step captured, {STEP} s a step. "
            f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}, Python {platform.python_version()}."
        ),
        "",
        "| one rank | sampled, records everything | light, records its pulse |",
        "|---|---|---|",
    ]
    both = [written[kind] for kind in ("sampled", "light")]
    for name, form in (
        ("ranks", lambda one: f"{one['ranks']:,}"),
        ("objects", lambda one: f"{one['objects']:.0f}"),
        ("bytes", lambda one: size(one["bytes"])),
        ("requests", lambda one: f"{one['requests']:.0f}"),
        ("requests a minute, on average", lambda one: f"{one['a minute']:.1f}"),
        ("requests in the busiest minute", lambda one: f"{one['most in a minute']:,}"),
        ("requests to begin, and for each flush", lambda one: f"{one['a start']:.0f}, {one['a flush']:.1f}"),
    ):
        lines.append(f"| {name} | " + " | ".join(form(one) for one in both) + " |")
    total = {name: sum(one["ranks"] * one[name] for one in both) for name in ("objects", "bytes", "requests")}
    lines += [
        "",
        (
            f"All {ranks:,} together: {total['objects']:,.0f} objects, {size(total['bytes'])}, {total['requests']:,.0f} requests. Every "
            f"writer of this run needed {written['cpu'] / ranks * 1000:.0f} ms of CPU time, on average."
        ),
        "",
        "| reading it | open, with status and last step | `run.ranks` | first picture | `run.sites` | one series |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in looks.items():
        cells = (
            f"{found[what]:.2f} s, CPU {found[f'{what} CPU']:.2f} s, {found[f'{what} requests']:,.0f} requests"
            for what in ("open", "ranks", "picture", "sites", "series")
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"| {LONG:,} steps on {ranks:,} devices, {LONG * STEP / 86_400:.1f} days | one sampled rank | one light rank | all |",
        "|---|---|---|---|",
    ]
    long = derived(written, ranks, steps)
    for name, form in (("bytes", size), ("requests", "{:,.0f}".format), ("a minute", "{:,.1f}".format)):
        each = [long[kind][name] for kind in ("sampled", "light")]
        whole = sum(long[kind]["ranks"] * long[kind][name] for kind in long)
        title = "requests a minute" if name == "a minute" else name
        lines.append(f"| {title} | {form(each[0])} | {form(each[1])} | {form(whole)} |")
    return "\n".join(lines)


def put_into(page: Path, tables: str) -> None:
    """Replaces what is between the markers of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- written by bench/ranks.py -->\n")
    _, end, after = rest.partition("<!-- until here -->")
    text = f"{before}<!-- written by bench/ranks.py -->\n{tables}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--quick", action="store_true", help="few ranks and steps; writes nothing")
    parser.add_argument("--look", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        print(json.dumps(look(given.look, given.latency)))
        return
    ranks, steps = (24, 60) if given.quick else (given.ranks, given.steps)
    logging.getLogger("fitscope").setLevel(logging.ERROR)  # made-up numbers have findings
    with tempfile.TemporaryDirectory(
        dir=given.dir or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    ) as at:
        written = write(at, ranks, steps)
        looks = {"while it runs": looked(at, 0.0), "while it runs, 20 ms a request": looked(at, LATENCY)}
        for one in written.pop("imagined"):
            one.close()
        looks["complete"] = looked(at, 0.0)
        looks["complete, 20 ms a request"] = looked(at, LATENCY)
    tables = report(written, looks, ranks, steps)
    print(tables)
    if not given.quick:
        put_into(PAGE, tables)


if __name__ == "__main__":
    main()
