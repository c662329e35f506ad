"""What the store costs: writing statistics and tensors, reading them back.

    python bench/store.py [--quick] [--dir DIRECTORY]

Writing is measured against the same bytes written to bare files, block by block in turn in one process, so
that a busy machine disturbs both alike; the figure is the median of the blocks' ratios. CPU is that of the
whole process. By default it runs in /dev/shm, which shows the price of the software and not of the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fitscope import read
from fitscope.record import Moment, Record
from fitscope.reduce.stats import Stats
from fitscope.store import Files, Memory, RunWriter, checksum


def stats_of(x: np.ndarray[Any, Any]) -> Stats:
    x = x.astype(np.float64).ravel()
    hist = np.zeros(513, np.int64)
    nonzero = x[x != 0]
    exponent = np.clip(np.frexp(np.abs(nonzero))[1] - 1, -128, 127)
    np.add.at(hist, (np.sign(nonzero) * (exponent + 129)).astype(int) + 256, 1)
    hist[256] = x.size - nonzero.size
    numbers = (x.mean(), x.std(), x.min(), x.max(), np.sqrt((x**2).mean()))
    return Stats(x.size, *map(float, numbers), int(hist[256]), int((x < 0).sum()), hist=hist)


def network(sites: int, steps: int) -> list[list[Record]]:
    """Records as a network makes them: each site its own size and scale, drifting, some after a ReLU."""
    rng = np.random.default_rng(0)
    layers = [
        (int(10 ** rng.uniform(1.5, 5)), 10 ** rng.uniform(-4, 0.5), rng.random() < 0.4) for _ in range(sites)
    ]
    batches = []
    for step in range(steps):
        at = Moment(step, 0, step, 1.7e9 + 0.0123 * step)
        batch = []
        for number, (size, scale, relu) in enumerate(layers):
            x = rng.normal(rng.normal() * 0.1, 1.0, size).astype(np.float32) * scale * (1 + 0.01 * step)
            x = np.maximum(x, 0) if relu else x
            site = f"activations/block_{number // 8}/layer_{number:02d}"
            batch.append(Record(site, at, (32, size // 32 + 1), "float32", stats_of(x)))
        batches.append(batch)
    return batches


def again(batches: list[list[Record]], steps: int) -> Any:
    """The same records over and over, with ever new steps."""
    for step in range(steps):
        at = Moment(step, 0, step, 1.7e9 + 0.0123 * step)
        yield [replace(record, at=at) for record in batches[step % len(batches)]]


def cpu(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def statistics_written(quick: bool) -> None:
    print("\nStatistics with histograms: CPU per step, and bytes")
    for sites, name in ((43, "43 sites (301 series)"), (80, "80 sites (10-layer network)")):
        batches = network(sites, 100)
        for per_flush in (1, 10, 100):
            steps = min(100 * per_flush, 400 if quick else 2_000)
            ready = list(again(batches, steps))  # making records is not the store's work
            times = []
            for _ in range(2 if quick else 3):
                store = Memory()
                writer = RunWriter.create(store, "r")

                def write(writer: RunWriter = writer, per_flush: int = per_flush, ready: Any = ready) -> None:
                    for step, batch in enumerate(ready):
                        writer.write(batch)
                        if step % per_flush == per_flush - 1:
                            writer.flush()

                times.append(cpu(write))
            parts = sum(
                len(store.get(f"r/a0000/r00000/stats/{n}")) for n in store.list("r/a0000/r00000/stats")
            )
            us = min(times) / steps * 1e6
            print(
                f"  {name:28} flush every {per_flush:3} steps: {us:7.0f} µs/step {us / sites:6.1f} µs/row"
                f" {parts / steps:7.0f} B/step {parts / steps / sites:6.1f} B/row"
            )


def tensors_written(directory: Path, quick: bool) -> None:
    print(f"\nTensors in {directory}: share of the speed of bare files (and multiple of their CPU time)")
    cases = (("4 kB", 1 << 10, 2560, 5), ("1 MB", 1 << 18, 100, 9), ("100 MB", 25 << 20, 3, 5))
    for name, elements, count, blocks in cases:
        x = np.maximum(np.random.default_rng(0).normal(size=(32, elements // 32)), 0).astype(np.float32)
        wall, cpus = [], []
        for block in range(2 if quick else blocks):
            place = directory / f"{name}-{block}".replace(" ", "")
            results: dict[str, tuple[float, float]] = {}
            order = ["bare", "ours"] if block % 2 else ["ours", "bare"]
            for who in order:
                writer = RunWriter.create(Files(place / "ours"), "r") if who == "ours" else None
                (place / "bare").mkdir(parents=True, exist_ok=True)
                began = time.perf_counter(), time.process_time()
                if writer is None:
                    fd = os.open(place / "bare" / "file", os.O_WRONLY | os.O_CREAT, 0o666)
                    for _ in range(count):
                        os.write(fd, x.data)
                    os.close(fd)
                else:
                    for step in range(count):
                        writer.write([Record("a", Moment(step, 0, step, 0.0), x.shape, "float32", None, x)])
                    writer.flush()
                results[who] = time.perf_counter() - began[0], time.process_time() - began[1]
            wall.append(results["bare"][0] / results["ours"][0])
            cpus.append(results["ours"][1] / results["bare"][1])
            shutil.rmtree(place)
        print(f"  {name:>7}: {statistics.median(wall):.2f} of the speed, {statistics.median(cpus):.2f} × CPU")


def checksums(directory: Path, quick: bool) -> None:
    print(f"\nChecksums of tensors in {directory}: CPU with them, as a multiple of that without")
    for name, elements, count in (("4 kB", 1 << 10, 2560), ("1 MB", 1 << 18, 100), ("100 MB", 25 << 20, 3)):
        x = np.random.default_rng(0).normal(size=(32, elements // 32)).astype(np.float32)
        ratios: dict[str, list[float]] = {"written": [], "read": []}
        for _ in range(2 if quick else 7):
            times: dict[tuple[str, bool], float] = {}
            for fast in (True, False):
                checksum.FAST = fast
                place = directory / f"{name}-{fast}".replace(" ", "")

                def write(place: Path = place, x: Any = x, count: int = count) -> None:
                    writer = RunWriter.create(Files(place), "r")
                    for step in range(count):
                        writer.write([Record("a", Moment(step, 0, step, 0.0), x.shape, "float32", None, x)])
                    writer.close()

                times["written", fast] = cpu(write)
                times["read", fast] = cpu(lambda place=place: read.open(place).tensor("a").load())
                shutil.rmtree(place)
            for what, found in ratios.items():
                found.append(times[what, True] / times[what, False])
        checksum.FAST = True
        print(
            f"  {name:>7}: {', '.join(f'{what} {statistics.median(found):.2f} ×' for what, found in ratios.items())}"
        )


def reading(directory: Path, quick: bool) -> None:
    sites = 10
    print(f"\nReading a run of {sites} sites, local files (first access, then again)")
    batches = network(sites, 50)
    for steps in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
        per_part = max(50, steps // 1_000)  # as `interval` would: some thousand parts at most
        place = directory / f"read-{steps}"
        writer = RunWriter.create(Files(place), "r")
        for step, batch in enumerate(again(batches, steps)):
            writer.write(batch)
            if step % per_part == per_part - 1:
                writer.flush()
        writer.close()
        print(f"  {steps:7} steps, {steps // per_part:5} parts: {read_times(place, batches[0][3].site)}")
        shutil.rmtree(place)


def read_times(place: Path, site: str) -> str:
    def ms(action: Callable[[], object]) -> float:
        began = time.perf_counter()
        action()
        return (time.perf_counter() - began) * 1e3

    run = read.open(place)
    times = {
        "open": ms(lambda: read.open(place)),
        "sites": ms(lambda: run.sites),
        "one series": ms(lambda: run.series(site, "mean")),
        "again": ms(lambda: run.series(site, "mean")),
        "another stat": ms(lambda: run.series(site, "std")),
        "histogram": ms(lambda: run.histogram(site)),
        "sql": ms(lambda: run.sql("select site, max(std) from stats group by site")),
    }
    return ", ".join(f"{name} {value:.1f} ms" for name, value in times.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dir", default="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fitscope-bench-", dir=options.dir))
    try:
        statistics_written(options.quick)
        tensors_written(directory, options.quick)
        checksums(directory, options.quick)
        reading(directory, options.quick)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
