"""`loss_spike`: single batches whose loss stands out.

Sees a loss far above the ones before it, measured by their noise *and* by how far the loss has fallen in the whole training: 0.0006
after 0.0001 is no event when training began at 2.3. It names the first and the largest, and what was odd in that batch. It begins at the
first batch that was odd in the same way, though the loss was too high at that time to show it.

False alarms: rare hard batches. A spike is a note unless it is as high as the whole training is deep, or its data is odd. A note must stand
clear of the rises around it: the losses of small batches have a long tail.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from fitscope.diagnose.curves import highest, lowest, median, recent, spread
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series, Severity
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, ignorance, only_head

MOST_STEPS = 64  #: spikes in the evidence


class Spike(NamedTuple):
    step: int
    value: float
    usual: float


@rule("loss_spike", sees="single batches whose loss stands out")
def loss_spike(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    loss = evidence.loss
    loss = loss.before(evidence.end) if loss is not None else None
    if loss is None or len(loss) < 8:
        yield NotJudged("fewer than 8 recorded losses" if loss is not None else "no loss was recorded")
        return
    spikes, scale = _spikes(loss.steps, loss.max.astype(np.float64), loss.value.astype(np.float64), limit)
    if not spikes:
        return
    first, largest = spikes[0], max(spikes, key=lambda s: s.value - s.usual)
    odd, alike = _odd(evidence, largest.step)
    height = (largest.value - largest.usual) / max(scale, _guessing(evidence))
    several = (
        f" It is the largest of {len(spikes)} spikes; the first was at step {first.step:,}."
        if len(spikes) > 1
        else ""
    )
    # Losses with a long tail, as those of single samples, have many; a bad batch comes once in an epoch.
    often = len(spikes) > max(limit.often * len(loss), 3) and not _once_in_an_epoch(evidence, spikes)
    severe: Severity = "warning" if odd or (height >= limit.warning and not often) else "note"
    if severe == "note" and not _clear(loss.steps, loss.value.astype(np.float64), spikes, largest, limit):
        return
    begins = min([first.step, *alike])
    strange = f" In that batch {odd}." if odd else ""
    if begins < first.step:
        strange += f" So it was in that of step {begins:,}, when the loss was higher."
    yield Finding(
        "loss_spike",
        severe,
        site="loss",
        first_step=begins,
        last_step=spikes[-1].step,
        message=f"The loss of step {largest.step:,} is {largest.value:.4g}, where {largest.usual:.4g} was usual.{several}{strange}",
        evidence={
            "step": largest.step,
            "loss": largest.value,
            "usual": largest.usual,
            "spikes": len(spikes),
            "steps": [spike.step for spike in spikes[:MOST_STEPS]],
            "odd": odd,
        },
        cure=(
            "Look at the samples of that batch (fs.loss(per_sample=True) names them) for values or labels that are wrong; "
            "clip gradients so that one batch cannot undo many steps."
        ),
        confidence=0.9 if odd else 0.7,
        series=Series.from_history(loss, "max"),
    )


def _guessing(evidence: Evidence) -> float:
    """The loss of a model that knows nothing, 0 if unknown. A trained model has little left to fall."""
    head = only_head(evidence)
    guess = ignorance(evidence, head)[0] if head is not None else None
    return guess or 0.0


def _spikes(
    steps: np.ndarray, high: np.ndarray, value: np.ndarray, limit: SimpleNamespace
) -> tuple[list[Spike], float]:
    # A fast learner is through before a twentieth of its steps: the first few count as well.
    start = max(median(value[:3]), median(value[: max(3, len(value) // 20)]))
    scale = max(start - lowest(value), 1e-3 * abs(start), 1e-12)
    usual, noise = recent(value, int(limit.window))
    rise = high - usual
    with np.errstate(invalid="ignore"):
        noise = np.maximum(noise, np.maximum(0.02 * np.abs(usual), 1e-12))
        odd = (rise > limit.noise * noise) & (rise > limit.scale * scale) & (rise > 0.5 * np.abs(usual))
    odd[:5] = False
    found = [Spike(int(steps[i]), float(high[i]), float(usual[i])) for i in np.flatnonzero(odd)]
    lasting = [s for s in found if _comes_back(s, steps, value)]
    return lasting, scale


def _clear(
    steps: np.ndarray, value: np.ndarray, spikes: list[Spike], largest: Spike, limit: SimpleNamespace
) -> bool:
    """Whether the largest spike is far above all rises around it that are none."""
    usual, _ = recent(value, int(limit.window))
    near = np.abs(np.arange(len(steps)) - np.searchsorted(steps, largest.step)) <= 4 * int(limit.window)
    near[:5] = False
    rises = (value - usual)[near & ~np.isin(steps, [spike.step for spike in spikes])]
    most = highest(rises)
    return not most * limit.clear > largest.value - largest.usual


def _once_in_an_epoch(evidence: Evidence, spikes: list[Spike]) -> bool:
    """Whether it is always the same batch, or a few of them."""
    batches = evidence.setting("fit", "steps_per_epoch")
    if not isinstance(batches, int) or batches < 2:
        return False
    return len({spike.step % batches for spike in spikes}) <= max(len(spikes) // 3, 1)


def _comes_back(spike: Spike, steps: np.ndarray, value: np.ndarray) -> bool:
    """Whether the loss is below half the height soon after: a loss that stays up is diverging."""
    after = value[steps > spike.step][:25]
    return not len(after) or lowest(after) < (spike.usual + spike.value) / 2


def _odd(evidence: Evidence, step: int) -> tuple[str, list[int]]:
    """The outliers in the data of that batch, and the batches that have the same ones.

    The mean of labels says nothing: a batch may have some of a rare class.
    """
    head = only_head(evidence)
    labels = head is not None and head.loss in CATEGORICAL | BINARY
    for kind, stats in (
        ("inputs", ("max", "min", "peak", "mean")),
        ("targets", () if labels else ("max", "min", "mean")),
    ):
        for history in evidence.of(kind):
            at = np.flatnonzero(history.steps <= step)
            if not len(at) or len(history) < 5 or (len(at) == len(history) and history.steps[-1] != step):
                continue
            i = int(at[-1])
            for stat in stats:
                values = getattr(history, stat).astype(np.float64)
                others = np.delete(values, i)
                wide = max(spread(others), 0.05 * abs(median(others)), 1e-9)
                away = values - median(others)
                if abs(away[i]) > 20 * wide and history.steps[i] == step:
                    name = "rms" if stat == "peak" else stat
                    alike = (np.abs(away) > 20 * wide) & (away / away[i] > 0.5)
                    said = f"the {name} of the {kind} is {values[i]:.4g}, where {median(others):.4g} is usual"
                    return said, history.steps[alike].tolist()
    return "", []
