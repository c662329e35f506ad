"""What the figures should be, and whether they are: each target judged by the results as they were measured.

A target is reached if every figure on JAX and TensorFlow is within its limit. torch runs eagerly, so that what is captured costs
Python as well; its figures stand beside the others and are marked where they miss the limit, but do not decide. What was not
measured is not reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from names import AGAIN, ALTERNATIVES, BUDGET, SAMPLED, TRAINSCOPE, UNCAPTURED, WHOLE

Results = dict[str, Any]
DECIDING = ("jax", "tensorflow")
FROM_MEMORY = 10_000_000  #: values that no cache holds
ROOM = 0.01  #: beyond the plain trainings' own spread that is still called noise


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement, and whether it is within the limit."""

    where: str  #: the backend, or nothing
    what: str
    text: str
    within: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What should be, and the figures that say whether it is."""

    text: str
    limit: str
    figures: tuple[Figure, ...]
    deciding: tuple[str, ...] = DECIDING  #: backends

    @property
    def verdict(self) -> str:
        deciding = [figure for figure in self.figures if figure.where in (*self.deciding, "")]
        if not deciding:
            return "not measured"
        missed = [" ".join(filter(None, (f.where, f.what))) for f in deciding if not f.within]
        return f"**no**: {', '.join(missed)}" if missed else "yes"


def judged(results: Results) -> list[Target]:
    """All targets, in the order in which they were set."""
    return [
        Target("uncaptured step", "1.00 within noise", tuple(_uncaptured(results))),
        Target("default budget, CPU time", "≤ 1.03", tuple(_row(results, BUDGET, 1.03))),
        Target(
            "default watches, all layers, every step, sampled: CPU time on the CNN and the ResNet",
            "≤ 1.08",
            tuple(_row(results, SAMPLED, 1.08, ("cnn", "resnet"))),
        ),
        Target("exact: moments, extremes and counts", "≤ 1.6 reads", tuple(_kernel(results, "some", 1.6))),
        Target("exact: with the full histogram", "≤ 3 reads", tuple(_kernel(results, "all", 3.0))),
        Target(
            "whole tensors of all layers, every 10th step, to disk: CPU time",
            "≤ 1.10",
            tuple(_row(results, WHOLE, 1.10)),
        ),
        *_alternatives(results),
        Target("tiny layers: training thread, per captured site and step", "≤ 5 µs", tuple(_thread(results))),
        Target(
            "statistics of ten layers on disk, histograms included", "≤ 5 kB a step", tuple(_disk(results))
        ),
        Target(
            "one series of 10⁶ steps read; a run of 10⁶ steps opened",
            "≤ 0.5 s; ≤ 0.3 s",
            tuple(_reading(results)),
        ),
    ]


def rows(results: Results, models: tuple[str, ...] = ()) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each table of `fit`: backend, model (and how it was compiled, if there are several ways), and rows."""
    for key, table in results.get("tables", {}).items():
        backend, jit, model = key.split("/")
        if jit != "session" and (not models or model in models):
            yield backend, model if jit == "auto" else f"{model} (XLA)", table.get("rows", {})


def _row(results: Results, name: str, limit: float, models: tuple[str, ...] = ()) -> Iterator[Figure]:
    for backend, model, found in rows(results, models):
        row = found.get(name)
        if row is not None:
            yield _figure(backend, model, row, 0, limit)


def _uncaptured(results: Results) -> Iterator[Figure]:
    for backend, model, found in rows(results):
        row, again = found.get(UNCAPTURED), found.get(AGAIN, {})
        if row is not None and "cpu_spread" in again:
            low, high = again["cpu_spread"]
            figure = _figure(backend, model, row, 0, max(high, 1) + ROOM)  # faster than plain is noise too
            yield replace(figure, text=f"{figure.text} (noise {low:.2f}–{high:.2f})")


def _figure(backend: str, model: str, row: dict[str, Any], least: float, most: float) -> Figure:
    if "failed" in row:
        return Figure(backend, model, "failed", within=False)
    return Figure(backend, model, f"{row['cpu']:.2f}", least <= round(row["cpu"], 2) <= most)


def _alternatives(results: Results) -> Iterator[Target]:
    """Each alternative beside the row of ours that delivers more than it does. One that is torch's own is judged there."""
    for other, ours in ALTERNATIVES.items():
        figures = []
        for backend, model, found in rows(results):
            if "cpu" in found.get(other, {}) and ours in found:
                own, its = found[ours].get("cpu"), found[other]["cpu"]
                text = "failed" if own is None else f"{own:.2f} against {its:.2f}"
                figures.append(Figure(backend, model, text, own is not None and own < its))
        deciding = ("torch",) if other == TRAINSCOPE else DECIDING
        yield Target(f"{ours}: cheaper than {other}", "CPU time", tuple(figures), deciding)


def _kernel(results: Results, which: str, limit: float) -> Iterator[Figure]:
    host = results.get("kernel", {}).get("host", {})
    for found in host.get("kernel", []):
        # One read is what `np.sum` takes, of what lies in memory and in no cache. A loop that does nothing but read is faster by a
        # half; its figures stand beside the others.
        for unit, where in (("sum", ""), ("read", "against a bare loop")):
            if found["size"] >= FROM_MEMORY:
                ratio = found[f"{which}_{unit}"]
                yield Figure(where, found["title"], f"{ratio:.2f}", round(ratio, 2) <= limit)


def _thread(results: Results) -> Iterator[Figure]:
    for backend, found in results.get("fixed", {}).items():
        if "thread" in found:
            us = found["thread"]["us"]
            yield Figure(backend, "", f"{us:.1f} µs", us <= 5)


def _disk(results: Results) -> Iterator[Figure]:
    for backend, found in results.get("fixed", {}).items():
        if "disk" in found:
            size = found["disk"]["bytes"]
            yield Figure(backend, "", f"{size / 1e3:.1f} kB", size <= 5_000)


def _reading(results: Results) -> Iterator[Figure]:
    """Of the longest run there was, if it was as long as that: `{"points": [{"steps": …, "series_seconds": …, "open_seconds": …}]}`."""
    for point in results.get("store", {}).get("points", []):
        if point["steps"] == 10**6:
            series, opened = point["series_seconds"], point["open_seconds"]
            yield Figure("", "series", f"{series:.2f} s", series <= 0.5)
            yield Figure("", "opened", f"{opened:.2f} s", opened <= 0.3)
