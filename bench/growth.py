"""Does a long run cost more than a short one? The store at 10³ to 10⁶ steps.

    python bench/growth.py [--steps 1000 10000 …] [--dir DIRECTORY] [--quick]

A training of a ten-layer network with the default watches, all 82 sites on every step, at twenty steps a second:
flushes come when they would come, and parts and tail are what the real writer leaves behind. Only the rows are made
up, column by column, because a training of 10⁶ steps takes fourteen hours. Numbers and histograms are drawn as those
of a network fall out, so that they compress no better; within a part nothing repeats.

Writes bench/growth.md, its figures for the results as growth.json, and docs/images/growth-steps.svg. By default it runs
in /dev/shm, which shows the price of the software and not of the disk; the longest run takes up 4.6 GB there, and five
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fitscope.reduce.stats import ZERO_BUCKET
from fitscope.store import RunWriter, interval, schema
from fitscope.store.parts import Parts
from fitscope.store.stats_table import ROW_BYTES, ROW_MEMORY, StatsRows, facts
from fitscope.store.table_store import FLUSH_MEMORY

STEPS = (1_000, 10_000, 100_000, 1_000_000)
PER_SECOND = 20.0  #: steps of the imagined training
POOL = 8_192  #: steps drawn; a part has fewer
HERE = Path(__file__).parent
LAYERS = [*(f"conv_{n}" for n in range(6)), *(f"dense_{n}" for n in range(4))]


def sites() -> list[tuple[str, int, bool]]:
    """(site, elements, whether a ReLU came before) of a ten-layer network."""
    found = [("loss", 1, False), ("metrics/accuracy", 1, False)]
    for n, layer in enumerate(LAYERS):
        outputs = 64 * 4096 >> n
        found += [(f"activations/{layer}", outputs, True), (f"gradients/{layer}", outputs, False)]
        for kind in ("weights", "weight_gradients", "updates"):
            found += [
                (f"{kind}/{layer}/kernel", 9 * 512 << n // 2, False),
                (f"{kind}/{layer}/bias", 64, False),
            ]
    return sorted(found)


class Drawn:
    """Rows of every site for `POOL` steps, drawn once."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.sites = sites()
        self.names = [name for name, _, _ in self.sites]
        self.tables = [_drawn(rng, size, relu) for _, size, relu in self.sites]
        self._next = 0
        self._joined: dict[tuple[int, int], pa.Table] = {}

    def rows(self, first: int, last: int) -> pa.Table:
        """The rows of the steps from `first` up to `last`, as the writer sorts them."""
        step = np.arange(first, last)
        wide, places = len(step), len(self.sites)
        if self._next + wide > POOL:
            self._next = 0  # the same again, but more than a part later
        start = self._next
        self._next += wide
        drawn = self._joined.get((start, wide))
        if drawn is None:
            drawn = pa.concat_tables([table.slice(start, wide) for table in self.tables]).combine_chunks()
        if first * wide > 10**8:  # late in the longest run, where every other stretch is as long
            self._joined[start, wide] = drawn
        every = {
            "step": np.tile(step, places),
            "epoch": np.tile(step // 1_000, places).astype(np.int32),
            "batch": np.tile(step % 1_000, places).astype(np.int32),
            "time": np.tile(1.7e9 + step / PER_SECOND, places),
            "attempt": np.zeros(wide * places, np.int16),
            "rank": np.zeros(wide * places, np.int32),
        }
        codes = np.repeat(np.arange(places, dtype=np.int32), wide)
        arrays: dict[str, Any] = {name: pa.array(values) for name, values in every.items()}
        arrays["site"] = pa.DictionaryArray.from_arrays(codes, pa.array(self.names))
        arrays |= {name: column.take(pa.array(codes)) for name, column in facts(self.names).items()}
        missing = {*schema.STATS_SCHEMA.names} - {*arrays, *drawn.column_names}
        arrays |= {name: pa.nulls(wide * places, schema.STATS_SCHEMA.field(name).type) for name in missing}
        return pa.table(
            [arrays[name] if name in arrays else drawn[name] for name in schema.STATS_SCHEMA.names],
            schema.STATS_SCHEMA.names,
        )


def _drawn(rng: np.random.Generator, size: int, relu: bool) -> pa.Table:
    scale = 10 ** rng.uniform(-4, 0.5)
    n, noise = POOL, rng.standard_normal((6, POOL))
    mean = scale * noise[0] / math.sqrt(size)
    std = scale * (1 + noise[1] / math.sqrt(2 * size))
    far = scale * (math.sqrt(2 * math.log(size + 1)) + 0.3 * np.abs(noise[2:4]))
    low, high = (-far[0]).astype(np.float32).astype(np.float64), far[1].astype(np.float32).astype(np.float64)
    if size == 1:
        std, low, high = np.zeros(n), mean, mean
    exponents = np.arange(-40, 4)
    edge = np.array([math.erf(2.0**e / math.sqrt(2)) for e in (*exponents, 4)])
    # how many fall between 2^e and 2^(e+1) times the scale, on each side of zero
    counts = rng.poisson(size * np.diff(edge) / 2, (2, n, len(exponents)))
    counts = counts if size > 1 else np.zeros_like(counts)
    shift = math.floor(math.log2(scale))
    buckets = np.concatenate([-(exponents + shift + 129)[::-1], [0], exponents + shift + 129])
    zero = np.full((n, 1), 0)
    if relu:
        zero = counts[0].sum(axis=1, keepdims=True)
        counts[0] = 0
        low = np.zeros(n)
    wide = np.concatenate([counts[0][:, ::-1], zero, counts[1]], axis=1)
    if size == 1:
        wide[:, len(exponents) + 1 + 30] = 1
    row, place = np.nonzero(wide)
    offsets = pa.array(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]), pa.int32())
    shape = [] if size == 1 else [32, size // 32 + 1]
    number = np.zeros(n, np.int64)
    assert abs(buckets).max() < ZERO_BUCKET
    arrays = {
        "dtype": pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array(["float32"])),
        "shape": pa.ListArray.from_arrays(
            pa.array(np.arange(n + 1, dtype=np.int32) * len(shape)), pa.array(shape * n, pa.int64())
        ),
        "batched": pa.array(np.full(n, size > 1)),
        "value": pa.array(mean if size == 1 else np.full(n, np.nan), from_pandas=True),
        "count": pa.array(number + size),
        "mean": pa.array(mean), "std": pa.array(std), "min": pa.array(low), "max": pa.array(high),
        "rms": pa.array(np.sqrt(mean**2 + std**2)),
        "zeros": pa.array(number + zero[:, 0]),
        "negatives": pa.array(counts[0].sum(axis=1)),
        "nans": pa.array(number), "infs": pa.array(number),
        "buckets": pa.ListArray.from_arrays(offsets, pa.array(buckets[place].astype(np.int16))),
        "counts": pa.ListArray.from_arrays(offsets, pa.array(wide[row, place].astype(np.int64))),
    }  # fmt: skip
    return pa.table(arrays)


class Prepared(StatsRows):
    """Rows of the stats table that come as whole columns."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self.ready: pa.Table | None = None
        self.names: list[str] = []

    def __len__(self) -> int:
        return 0 if self.ready is None else int(self.ready.num_rows)

    @property
    def memory(self) -> int:
        return len(self) * ROW_MEMORY

    @property
    def disk_bytes(self) -> int:
        return len(self) * ROW_BYTES

    def sites(self) -> Counter[str]:
        return Counter(dict.fromkeys(self.names, len(self) // len(self.names))) if len(self) else Counter()

    def table(self) -> pa.Table:
        assert self.ready is not None
        return self.ready

    def clear(self) -> None:
        self.ready = None


def write(place: Path, drawn: Drawn, steps: int) -> list[tuple[int, float]]:
    """A training of so many steps. Returns the rows and the CPU seconds of what the store did, time by time."""
    writer = RunWriter.create(place, "run")
    rows = Prepared()
    rows.names = drawn.names
    writer._tables.stats = parts = Parts(writer._objects, rows)
    at_once = FLUSH_MEMORY // ROW_MEMORY // len(drawn.names)  # steps after which `write` sets rows aside
    spent: list[tuple[int, float]] = []
    step = 0
    while step < steps:
        due = step + max(1, round(interval(step / PER_SECOND) * PER_SECOND))
        while step < min(due, steps):
            last = min(due, steps, step + at_once)
            rows.ready = drawn.rows(step, last)
            writer._step = last - 1
            taken = len(rows)
            since = time.process_time()
            if last == min(due, steps):
                writer.flush()
            else:  # as `write` does
                writer._tables.put(parts, [])
                parts.gather()
            spent.append((taken, time.process_time() - since))
            step = last
    since = time.process_time()
    writer.close()
    spent.append((0, time.process_time() - since))
    return spent


def looks(place: str) -> dict[str, float]:
    """Milliseconds until one has what one asked for, of a run that was not open before: wall and CPU, best of five."""
    from fitscope import read

    best: dict[str, float] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        began = time.perf_counter(), time.process_time()
        found = action()
        took = (time.perf_counter() - began[0]) * 1e3, (time.process_time() - began[1]) * 1e3
        for what, ms in zip((name, f"{name} CPU"), took, strict=True):
            best[what] = min(ms, best.get(what, math.inf))
        return found

    for again in range(6):
        run = read.open(place)
        timed("open", lambda: (read.open(place).status, read.open(place).last_step))
        assert len(timed("sites", lambda run=run: run.sites)) == 82
        run = read.open(place)
        series = timed("series", lambda run=run: run.series("gradients/conv_3", "mean"))
        timed("again", lambda run=run: run.series("gradients/conv_3", "mean"))
        timed("stat", lambda run=run: run.series("gradients/conv_3", "std"))
        assert series.index.is_monotonic_increasing
        best = best if again else {}  # the first imports pandas
    return {**best, "steps": len(series)}


def measure(directory: Path, drawn: Drawn, steps: int) -> dict[str, float]:
    place = directory / str(steps)
    spent = write(place, drawn, steps)
    late = spent[len(spent) * 9 // 10 :]
    files = [file for file in place.rglob("*") if file.is_file()]
    found = {
        "parts": sum(file.suffix == ".parquet" for file in files),
        "bytes": sum(file.stat().st_size for file in files) / steps,
        "row": sum(cpu for _, cpu in spent) / sum(rows for rows, _ in spent) * 1e6,
        "late": sum(cpu for _, cpu in late) / sum(rows for rows, _ in late) * 1e6,
    }
    # In a process of its own, which has nothing of the run in memory.
    command = [sys.executable, __file__, "--look", str(place)]
    found |= json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert found["steps"] == steps
    shutil.rmtree(place)
    return found


#: what a column shows → how to say it
COLUMNS: dict[str, tuple[str, str]] = {
    "parts": ("parts", "{parts:,.0f}"),
    "bytes": ("bytes a step", "{bytes:,.0f}"),
    "row": ("CPU a row", "{row:.2f} µs"),
    "late": ("… in the last tenth", "{late:.2f} µs"),
    "open": ("open", "{open:.1f} ms"),
    "sites": ("`.sites`", "{sites:.0f} ms ({sites CPU:.0f})"),
    "series": ("one series", "{series:.0f} ms ({series CPU:.0f})"),
    "stat": ("another stat", "{stat:.0f} ms ({stat CPU:.0f})"),
    "again": ("again", "{again:.0f} ms"),
}


def table(results: dict[int, dict[str, float]]) -> str:
    lines = [
        "| steps | " + " | ".join(title for title, _ in COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for steps, found in results.items():
        cells = (form.format_map(found) for _, form in COLUMNS.values())
        lines.append(f"| {steps:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(results: dict[int, dict[str, float]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "fitscope", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    ink, quiet = "#24292f", "#8c959f"
    figure, (reading, writing, disk) = plt.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
    steps = list(results)

    def line(axes: Any, name: str, label: str, colour: str, above: bool = True) -> None:
        values = [found[name] for found in results.values()]
        axes.plot(steps, values, color=colour, marker="o", markersize=3.5, linewidth=1.4, clip_on=False)
        axes.annotate(
            label, (steps[-1], values[-1]), (-2, 6 if above else -12), textcoords="offset points", ha="right",
            color=colour,
        )  # fmt: skip

    def limit(axes: Any, value: float, label: str) -> None:
        axes.axhline(value, color=quiet, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(label, (steps[0], value), (0, 3), textcoords="offset points", color=quiet, fontsize=8)

    line(reading, "series", "one series", "#0969da")
    line(reading, "open", "open", "#1a7f37")
    reading.set(yscale="log", ylim=(0.3, 1500), title="until it is there, ms")
    limit(reading, 500, "500 ms")
    line(writing, "row", "", "#0969da")
    writing.set(ylim=(0, 6), title="CPU to store a row, µs")
    line(disk, "bytes", "", "#0969da")
    disk.set(ylim=(0, 6000), title="on disk, bytes a step (82 rows)")
    limit(disk, 5000, "5,000")
    for axes in (reading, writing, disk):
        axes.set(xscale="log", xlabel="steps in the run")
        axes.minorticks_off()
        axes.title.set(fontsize=9, color=ink)
        axes.tick_params(colors=quiet, labelcolor=ink, length=3)
        axes.grid(axis="y", color="#d0d7de", linewidth=0.5)
        axes.set_axisbelow(True)
        for side in axes.spines:
            axes.spines[side].set_visible(side == "bottom")
            axes.spines[side].set_color(quiet)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=150)


def report(results: dict[int, dict[str, float]]) -> str:
    said = (
        "Made by `python bench/growth.py`: a ten-layer network, 82 sites with histograms on every step, twenty steps a\n"
        "second, stored as the writer leaves it. CPU a row is all that the store does with rows it was handed as columns: the\n"
        "tail, the part, the status. Reading is the wall time (and CPU time) of a process that has not seen the run, the best\n"
        "of five; one series is all there is between `fs.open` and a pandas Series, finding the site included.\n"
        f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, Python {platform.python_version()}, files in memory."
    )
    picture = "![Growth with the number of steps](../docs/images/growth-steps.svg)"
    return f"# What a long run costs\n\n{said}\n\n{table(results)}\n\n{picture}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+")
    parser.add_argument("--quick", action="store_true", help="only see that it runs; written to bench/quick")
    parser.add_argument("--dir", default="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112
    parser.add_argument("--look", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        print(json.dumps(looks(options.look)))
        return
    directory = Path(tempfile.mkdtemp(prefix="fitscope-growth-", dir=options.dir))
    results = {}
    try:
        drawn = Drawn()
        for steps in options.steps or STEPS[: 2 if options.quick else None]:
            results[steps] = measure(directory, drawn, steps)
            print(steps, {name: round(value, 2) for name, value in results[steps].items()}, flush=True)
    finally:
        shutil.rmtree(directory)
    out = HERE / "quick" if options.quick else HERE
    out.mkdir(exist_ok=True)
    (out / "growth.md").write_text(report(results))
    points = [
        {"steps": steps, "series_seconds": found["series"] / 1e3, "open_seconds": found["open"] / 1e3}
        for steps, found in results.items()
    ]
    (out / "growth.json").write_text(json.dumps({"points": points}, indent=1) + "\n")
    plot(results, (out if options.quick else HERE.parent / "docs" / "images") / "growth-steps.svg")


if __name__ == "__main__":
    main()
