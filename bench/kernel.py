"""What the host kernel costs, in units of reading the same bytes once.

    python bench/kernel.py [--rounds 15] [--json]

On a busy machine seconds mean little, so everything is measured in turn, round after round, in one process
and one thread, and printed as the median of the ratios of each round: CPU time first, wall time in brackets.
Two things count as "one read": `np.sum`, which most people would take for one, and a loop that does nothing
but read. The goal: moments and extremes within 1.6 reads, with the histogram within 3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from measuring import answer
from numba import njit

from fitscope.reduce import host, kernel
from fitscope.reduce.compiled import writable

ROUNDS = 15


@njit(nogil=True)
def read(words):
    """Nothing but reading."""
    found = words[0]
    for i in range(words.size):
        found |= words[i]
    return found


@njit(nogil=True)
def without_histogram(values, totals):
    """The kernel's own pieces, but for the histogram (and the negatives, which it counts)."""
    values = writable(values)
    words = values.view(np.int32)
    zeros = 0
    for start in range(0, values.size, kernel.BLOCK):
        end = start + kernel.BLOCK
        kernel._fetch_third(words, end, 0)
        kernel._fetch_third(words, end, 1)
        low, high, some = kernel._extremes(words[start:end])
        zeros += some + (high >= 0x7F80_0000)
        totals[kernel.MIN] = min(totals[kernel.MIN], low)
        totals[kernel.MAX] = max(totals[kernel.MAX], high)
        kernel._fetch_third(words, end, 2)
        kernel._add_moments(values[start:end], totals)
    return zeros


Seconds = dict[str, list[tuple[float, float]]]


def measure(functions: dict[str, Callable[[], object]]) -> Seconds:
    """CPU and wall seconds of each function, round after round."""
    for function in functions.values():
        function()
    seconds: Seconds = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            cpu, wall = time.thread_time(), time.perf_counter()
            function()
            seconds[name].append((time.thread_time() - cpu, time.perf_counter() - wall))
    return seconds


def ratio(seconds: Seconds, name: str, unit: str) -> tuple[float, float]:
    """How many times as long as the other, in CPU and wall time."""
    cpu, wall = (
        statistics.median(a[which] / b[which] for a, b in zip(seconds[name], seconds[unit], strict=True))
        for which in (0, 1)
    )
    return cpu, wall


def measured(array: np.ndarray, *, parts: bool = False) -> Seconds:
    """The whole reduction of an array, and without its histogram, beside reading it."""
    words = array.ravel("K").view(np.uint64)  # a copy of what is not in one piece, but as many bytes
    functions = {"sum": array.sum, "read": lambda: read(words), "all": lambda: host.reduce(array)}
    if parts:
        flat = host._flat(array, array.dtype)
        functions["some"] = lambda: without_histogram(flat, kernel.NOTHING.copy())
    return measure(functions)


def report(title: str, array: np.ndarray, *, parts: bool = False) -> None:
    """One line of the table."""
    seconds = measured(array, parts=parts)
    milliseconds = statistics.median(cpu for cpu, _ in seconds["all"]) * 1e3
    pairs = [(name, unit) for name in (["all", "some"] if parts else ["all"]) for unit in ("read", "sum")]
    columns = ["{:6.2f} ({:5.2f})".format(*ratio(seconds, *pair)) for pair in pairs]
    print(f"{title:34}{milliseconds:8.2f} ms  " + "  ".join(columns))


def report_small(dtype: type, size: int) -> None:
    """The fixed cost, for scalars and small layers."""
    array = np.linspace(-1, 1, size).astype(dtype)
    calls = 1_000
    microseconds = []
    for _ in range(ROUNDS):
        cpu = time.thread_time()
        for _ in range(calls):
            host.reduce(array)
        microseconds.append((time.thread_time() - cpu) / calls * 1e6)
    print(f"{np.dtype(dtype)!s:>10} {size:6} elements {statistics.median(microseconds):9.2f} µs a call")


def figures(sizes: tuple[int, ...] = (1_000_000, 31_000_000)) -> list[dict[str, Any]]:
    """What the goals are about, as JSON: CPU time of float32, in reads and in `np.sum`s."""
    host.warm_up()
    rng = np.random.default_rng(0)
    found = []
    for size in sizes:
        x = rng.standard_normal(size, np.float32)
        for title, array in ((f"{size:,} float32", x), (f"{size:,} float32, after ReLU", np.maximum(x, 0))):
            seconds = measured(array, parts=True)
            ratios = {
                f"{name}_{unit}": ratio(seconds, name, unit)[0]
                for name in ("all", "some")
                for unit in ("read", "sum")
            }
            read_ms = 1e3 * statistics.median(cpu for cpu, _ in seconds["read"])
            found.append({"title": title, "size": size, "read_ms": read_ms, **ratios})
    return found


def main() -> None:
    global ROUNDS
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="only what `bench/run.py` puts into its results")
    options = parser.parse_args()
    ROUNDS = options.rounds
    if options.json:
        answer(lambda: {"kernel": figures()})
    else:
        everything()


def everything() -> None:
    started = time.perf_counter()
    host.warm_up()
    print(f"warm_up: {time.perf_counter() - started:.2f} s; medians of {ROUNDS} rounds, CPU (wall)\n")

    rng = np.random.default_rng(0)
    print(
        f"{'':34}{'all stats':>11}  {'reads':>14}  {'np.sums':>14}  {'no hist: reads':>14}  {'np.sums':>14}"
    )
    for size in (1_000_000, 31_000_000):
        x = rng.standard_normal(size, np.float32)
        report(f"float32, {size:,}", x, parts=True)
        report(f"float32, {size:,}, after ReLU", np.maximum(x, 0), parts=True)
    x = x[:4_000_000]
    print("\n4,000,000 elements of other kinds")
    report("float32", x)
    report("float32, all zero", np.zeros_like(x))
    report("float32, over 60 octaves", x * np.exp2(rng.integers(-30, 30, x.size)).astype(np.float32))
    report("float32, one NaN in a thousand", np.where(rng.random(x.size) < 1e-3, np.float32(np.nan), x))
    report("float32, all NaN", np.full_like(x, np.nan))
    report("float32, transposed", x.reshape(2_000, 2_000).T)
    report("float32, every second column", np.repeat(x, 2).reshape(2_000, -1)[:, ::2])
    report("float64", x.astype(np.float64))
    report("float16", x.astype(np.float16))
    report("bfloat16", x.astype(ml_dtypes.bfloat16))
    report("int32", (x * 1000).astype(np.int32))
    report("uint8", (x * 50).astype(np.int32).astype(np.uint8))
    print("\nfixed cost")
    for dtype in (np.float32, np.float64, np.float16, np.int32):
        for size in (1, 10, 1_000, 10_000):
            report_small(dtype, size)


if __name__ == "__main__":
    main()
