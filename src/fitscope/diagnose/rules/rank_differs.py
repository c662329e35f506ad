"""`rank_differs`: a process of the training that differs from the others.

Looks at the pulses of all ranks, at the steps that they share. Three things may differ. **Weights**: replicas get the same gradients, so
their weights are equal to the last bit; a replica that differs was built or updated differently, and will not come back. **Loss**: each
rank sees other rows of the same data, so at most steps no rank is far above all the others; one that is has other data. **Pace**: the
time of a step; in a synchronous training all ranks wait for the slowest, so the CPU time of a process is looked at too.

False alarms: processes that train different models on purpose, or hold shards of one that fitscope takes for replicas; a rank that also
writes checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.pulses import Array, Pulses, medians
from fitscope.diagnose.rule import rule

NAMED = 4  #: ranks in a message


@rule("rank_differs", sees="a process whose weights, loss or pace differ from those of the others")
def rank_differs(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    pulses = evidence.pulses
    if pulses is None:  # one process alone
        return
    if not len(pulses.steps):
        yield NotJudged("its ranks recorded no step together")
        return
    found = [_weights(pulses, limit), _loss(pulses, limit), *_pace(pulses, limit)]
    yield from (one for one in found if one is not None)


def _weights(pulses: Pulses, limit: SimpleNamespace) -> Finding | None:
    """Replicas that do not hold the same weights at the newest step that they share."""
    usual = medians(pulses.weights, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(pulses.weights - usual) > limit.weights * np.abs(usual)
    several = np.flatnonzero(np.isfinite(pulses.weights).sum(axis=0) >= 2)
    if not len(several) or not apart[:, several[-1]].any():
        return None
    last = int(several[-1])
    odd = np.flatnonzero(apart[:, last])
    first = int(np.flatnonzero(apart[odd].any(axis=0))[0])
    there = int(np.isfinite(pulses.weights[:, last]).sum())
    row = int(odd[np.argmax(np.abs(pulses.weights[odd, last] - usual[0, last]))])
    numbers = (
        f"rms {pulses.weights[row, last]:.6g} against {usual[0, last]:.6g} at step {pulses.steps[last]:,}"
    )
    if 2 * len(odd) >= there:
        message = f"The {there} ranks do not hold the same weights: rank {pulses.ranks[row]} has {numbers}."
    else:
        message = f"The weights of {_named(pulses, odd)} differ from those of the other {there - len(odd)} ranks: {numbers}."
    return _finding(
        pulses,
        row,
        "weights",
        pulses.weights,
        (first, last),
        severity="error",
        message=message,
        cure=(
            "Give all processes the same first weights (one seed, or broadcast those of rank 0), and let every update use the reduced "
            "gradients: call the DistributedDataParallel module, not the model inside it. run.pulse has the numbers."
        ),
        confidence=0.95,
    )


def _loss(pulses: Pulses, limit: SimpleNamespace) -> Finding | None:
    """A rank whose loss is far above that of every other rank at most steps."""
    table = pulses.loss
    enough = (np.isfinite(table).sum(axis=0) >= 2) & (np.arange(table.shape[1]) >= table.shape[1] // 4)
    columns = np.flatnonzero(enough)
    if len(columns) < limit.captures:
        return None
    some = np.where(np.isfinite(table[:, columns]), table[:, columns], -np.inf)
    ordered = np.sort(some, axis=0)
    highest = np.arange(len(some))[:, None] == some.argmax(axis=0)
    all_others = np.where(
        highest, ordered[-2], ordered[-1]
    )  # the highest of the others, for each rank and step
    all_above = (some > (1 + limit.loss) * all_others) & (all_others > 0)
    for row in np.flatnonzero(all_above.mean(axis=1) >= limit.share).tolist()[:1]:
        above, others = all_above[row], all_others[row]
        times = float(np.median(some[row] / others))
        return _finding(
            pulses,
            row,
            "loss",
            table,
            (int(columns[np.argmax(above)]), int(columns[-1])),
            severity="warning",
            message=(
                f"The loss of rank {pulses.ranks[row]} is {times:.3g} times that of the next highest rank, at "
                f"{int(above.sum())} of {len(above)} compared steps."
            ),
            cure=(
                f"Look at the data of this rank: its shard has other samples or labels, or misses a step of preprocessing. "
                f"run.rank({pulses.ranks[row]}) has what it recorded."
            ),
            confidence=0.85,
        )
    return None


def _pace(pulses: Pulses, limit: SimpleNamespace) -> Iterator[Finding | None]:
    """Ranks that take longer for a step than the median of all, by the clock or in CPU time."""
    for name, table, times, severity in (
        ("time", pulses.step_seconds, limit.slow, "warning"),
        ("CPU time", pulses.step_cpu, limit.cpu, "note"),
    ):
        late = table[:, table.shape[1] // 2 :]
        if np.isfinite(late).all(axis=0).sum() < limit.captures // 2:
            continue
        usual = medians(late, axis=1)[:, 0]
        ratio = _ratios(usual)
        row = int(np.nanargmax(ratio)) if np.isfinite(ratio).any() else -1
        if row < 0 or not ratio[row] >= times:
            continue
        what = " of CPU time" if severity == "note" else ""
        yield _finding(
            pulses,
            row,
            name,
            table,
            (table.shape[1] // 2, table.shape[1] - 1),
            severity=severity,
            message=(
                f"A step of rank {pulses.ranks[row]} takes {_seconds(usual[row])}{what}, {ratio[row]:.3g} times as much as on the "
                "other ranks."
            ),
            cure="Look at its host: other processes on it, a slower device, a slower disk or network for its data. run.ranks names it.",
            confidence=0.8,
        )
        return


def _ratios(usual: Array) -> Array:
    """Each number by the median of the others; NaN where that is unknown or not above zero."""
    there = np.flatnonzero(np.isfinite(usual))
    found = np.full(len(usual), np.nan)
    if len(there) < 2:
        return found
    order = there[np.argsort(usual[there], kind="stable")]
    place, ordered, rest = np.arange(len(order)), usual[order], len(order) - 1
    # Without one number, those after it move up by one place.
    low, high = (ordered[at + (place <= at)] for at in ((rest - 1) // 2, rest // 2))
    others = (low + high) / 2
    found[order] = np.divide(ordered, others, out=np.full(len(order), np.nan), where=others > 0)
    return found


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _named(pulses: Pulses, odd: Array) -> str:
    names = ", ".join(str(rank) for rank in pulses.ranks[odd[:NAMED]])
    return f"rank {names}" if len(odd) == 1 else f"ranks {names}{', …' if len(odd) > NAMED else ''}"


def _finding(
    pulses: Pulses, row: int, what: str, table: Array, span: tuple[int, int], **said: Any
) -> Finding:
    first, last = span
    rank = int(pulses.ranks[row])
    return Finding(
        "rank_differs",
        first_step=int(pulses.steps[first]),
        last_step=int(pulses.steps[last]),
        evidence={"rank": rank, "what": what},
        series=Series.of(f"{what} of rank {rank}", pulses.steps, table[row]),
        **said,
    )
