"""Collects the facts for the page: the run, its rows and measures, its progress, and its findings.

`head` is everything, for a page that opens; `now` is the part that changes while a run grows. Numbers come from `payload`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fitscope.show.data.cost import cadence
from fitscope.show.data.facts import lanes, missed, placed
from fitscope.show.data.gather import Gathered
from fitscope.show.data.modes import MODES
from fitscope.show.data.ranks import lane as ranks_lane

CLOCK = 16  #: the number of points that relate steps to time


def head(g: Gathered) -> dict[str, Any]:
    """Everything but the numbers: the run, its rows, its measures and its findings."""
    run = g.run
    model = run.model if isinstance(run.model, dict) else {}
    return {
        "id": run.id,
        "model": model.get("name"),
        "backend": run.info.get("backend"),
        "rows": [
            {"name": r.name, "type": r.type, "block": r.block, "shape": r.shape, "after": list(r.after)}
            for r in g.rows
        ],
        "measures": [{"key": m.key, "title": m.title, "kind": m.kinds[0]} for m in g.measures],
        "modes": [[key, title] for key, title in MODES.items()],
        "samples": g.has_samples,
        "rate": _set_rate(run.configuration),
        "epoch_steps": _epoch_steps(run.configuration),
        **now(g),
    }


def now(g: Gathered) -> dict[str, Any]:
    """The facts that change during a run. Their size does not grow with the run."""
    run = g.run
    last = g.survey.last_step
    diagnosis = g.diagnosis
    found = placed(diagnosis, g.rows)
    return {
        "generation": g.generation,
        "layers": len(g.rows),
        "empty": last is None,
        "damaged": len(run.damaged),
        "status": run.status,
        "step": last if last is not None else run.last_step,
        "epoch": g.survey.epoch_of(last) if last is not None else None,
        "epochs": _thinned(sorted(g.survey.epochs.items()), 64),  # epochs, with their first steps
        "clock": [
            (step, round(at - g.survey.clock[0][1], 3)) for step, at in _thinned(g.survey.clock, CLOCK)
        ],
        "speed": g.survey.speed,
        "cost": run.overhead.get("cpu_share"),
        "compiled": run.overhead.get("compile_seconds"),  # seconds
        "cadence": cadence(run.overhead),
        "identity": run.identity.short,
        "findings": [f.as_dict() for f in found[:16]],
        "checked": diagnosis.summary,
        "lanes": [
            *({**lane, "spans": _thinned(lane["spans"], 120)} for lane in lanes(g.survey.facts, found)),
            {"name": "learning rate", "severity": "note", "spans": [], "curve": rates(g)},
        ],
        "births": births(g),
        "ranks": ranks_lane(*g.follow.pulses()),
        "problems": problems(g),
    }


def _set_rate(configuration: dict[str, Any]) -> float | None:
    """The configured learning rate, if it is one number. It is for runs without recorded rates."""
    optimizer = configuration.get("optimizer")
    rate = optimizer.get("learning_rate") if isinstance(optimizer, dict) else None
    return float(rate) if isinstance(rate, int | float) and math.isfinite(rate) else None


def _epoch_steps(configuration: dict[str, Any]) -> int | None:
    """The number of steps in an epoch, as passed to `fit`."""
    fit = configuration.get("fit")
    steps = fit.get("steps_per_epoch") if isinstance(fit, dict) else None
    return steps if isinstance(steps, int) and steps > 0 else None


def rates(g: Gathered) -> list[tuple[int, float]]:
    """The learning rate where it changed, and at the end: (step, rate), few enough for a lane."""
    held = g.survey.scalar("learning_rate")
    if held is None:
        return []
    finite = np.isfinite(held.values)
    steps, values = held.steps[finite], held.values[finite]
    level = 0
    while -(-len(steps) >> level) > 120:
        level += 1
    steps, values = (np.append(a[:: 1 << level], a[-1:]) for a in (steps, values))
    # Only the ends of a stretch in which the rate stays the same.
    inner = np.zeros(len(values), bool)
    inner[1:-1] = (values[1:-1] == values[:-2]) & (values[1:-1] == values[2:])
    return [
        (int(step), float(f"{rate:.4g}")) for step, rate in zip(steps[~inner], values[~inner], strict=True)
    ]


def births(g: Gathered) -> dict[str, dict[str, int]]:
    """The exact first step with a NaN or Inf, by row and kind."""
    found: dict[str, dict[str, int]] = {}
    broken = {**g.survey.facts.first["infs"]}
    for site, step in g.survey.facts.first["nans"].items():
        broken[site] = min(step, broken.get(site, step))
    if broken:
        for row in g.rows:
            for kind, sites in row.sites.items():
                steps = [broken[site] for site in sites if site in broken]
                if steps:
                    found.setdefault(row.name, {})[kind] = min(steps)
    return found


def problems(g: Gathered) -> list[str]:
    """Missing data of the run, in words."""
    run = g.run
    said = [f"error while recording: {error}" for error in run.errors[:3]]
    if run.identity.known and run.identity == "not provable":
        said.append(run.identity.sentence)
    if run.limit_reached_at is not None:
        said.append(f"recording stopped at step {run.limit_reached_at:,}: the run reached its limit")
    for word, counts in (("dropped, because the queue was full", run.dropped), ("lost", run.lost)):
        if counts:
            said.append(f"{sum(counts.values()):,} records {word}")
    unseen = missed(run.unseen)
    if unseen:
        site, why = next(iter(unseen.items()))
        others = f", and {len(unseen) - 1} more sites: run.unseen" if len(unseen) > 1 else ""
        said.append(f"could not be seen: {site}: {why}{others}")
    if g.left_out:
        said.append(f"{g.left_out:,} more layers are not drawn")
    if run.damaged:
        said.append(f"{len(run.damaged)} damaged objects were left out")
    return said


def _thinned(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the items, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).astype(int)]
