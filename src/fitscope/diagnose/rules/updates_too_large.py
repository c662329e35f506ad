"""`updates_too_large`: steps that change the weights by a large part of themselves.

Looks at the rms of the update ÷ the rms of the weight, of matrices and filters (biases start at zero, so any step is large). About 0.001
is usual. A large ratio alone is not a fault: small networks learn well with 0.05. It is reported when the loss suffers, or when
a step replaces the weights altogether. A few such steps are enough if the loss never falls by a fifth of what it was before them: a
net that they ruin has no gradient left, so later updates are small.

False alarms: weights that start close to zero on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course, highest, median, ratio, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import Array
from fitscope.diagnose.rule import rule


@rule("updates_too_large", sees="updates that replace a large part of the weights in one step")
def updates_too_large(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    ratios = list(update_ratios(evidence))
    broke = evidence.end is not None
    if not ratios or (max(len(r) for _, _, r in ratios) < limit.captures and not broke):
        yield NotJudged("too few recorded steps with updates and weights")
        return
    suffers = _suffers(evidence)
    found = []
    for site, steps, times in ratios:
        usual = median(times[1:]) if len(times) > limit.captures else median(times)
        if broke and len(times) <= 2 * limit.captures and np.isfinite(times).any():
            usual = highest(times)  # after a few steps, the largest of them counts
        if usual >= limit.alone or (usual >= limit.ratio and suffers):
            found.append((usual, site, steps, times))
        elif _had_size(evidence, site) and (ruined := _ruined(evidence, steps, times, limit)) is not None:
            found.append((ruined, site, steps, times))
    if not found:
        return
    usual, site, steps, times = max(found, key=lambda f: f[0])
    layer = evidence.history(site).site.layer  # type: ignore[union-attr]
    rate = evidence.learning_rate
    several = f"; {len(found)} of {len(ratios)} weights are concerned" if len(found) > 1 else ""
    yield Finding(
        "updates_too_large",
        "warning",
        site=site.replace("weights/", "updates/", 1),
        layer=layer,
        first_step=int(steps[np.argmax(times >= min(limit.ratio, usual))]),
        last_step=int(steps[-1]),
        message=f"A step changes the weights of {layer} by {100 * usual:.3g} % of their size (0.1 % is usual){several}.",
        evidence={"ratio": usual, "learning_rate": rate, "weights": [f[1] for f in found][:8]},
        cure=f"Lower the learning rate{f' from {rate:g}' if rate else ''} ten- to a hundredfold, warm it up, or clip gradients.",
        confidence=0.85,
        series=Series.of(f"update by weight of {layer}", steps, times),
    )


def update_ratios(evidence: Evidence) -> Iterator[tuple[str, Array, Array]]:
    """Yields for each weight its site, the steps, and the ratio of update to weight at each step."""
    for weight in evidence.main_weights("weights"):
        update = evidence.history(f"updates/{weight.site.path}")
        if update is None:
            continue
        mine, moved = shared(weight.before(evidence.end), update.before(evidence.end))
        if len(mine) and np.any(mine.rms > 1e-12):
            yield str(weight.site), mine.steps, ratio(moved.rms, mine.rms)


def _had_size(evidence: Evidence, site: str) -> bool:
    """Whether the weights did not start near zero, where any step is large."""
    weights = evidence.history(site)
    return weights is not None and bool(weights.rms[0] >= 1e-2)


def _ruined(evidence: Evidence, steps: Array, times: Array, limit: SimpleNamespace) -> float | None:
    """The largest of the updates that replaced the weights, if the loss never fell below what it was before the first of them."""
    replaced, loss, went = np.flatnonzero(times >= limit.alone), evidence.loss, course(evidence.loss)
    if not len(replaced) or loss is None or went is None or evidence.end is not None:
        return None
    first = int(steps[replaced[0]])
    before, after = loss.value[loss.steps <= first], loss.value[loss.steps > first]
    if not len(before) or len(after) < 10 or not median(before) > 0:
        return None
    usual = median(before[-10:])
    stays = min(went.end, median(after)) > limit.ruined * usual
    return highest(times) if stays else None


def _suffers(evidence: Evidence) -> bool:
    """Whether the loss rose, has not fallen by a fifth, or broke after it rose: a NaN out of the blue has another cause."""
    if evidence.end is not None:
        loss = evidence.loss
        before = loss.before(evidence.end).value if loss is not None else np.zeros(0)
        before = before[np.isfinite(before)]
        return len(before) < 3 or float(np.abs(before[-3:]).max()) > 2 * float(np.abs(before[:3]).max())
    went = course(evidence.loss, least=5)
    return went is not None and went.end > went.start - 0.2 * abs(went.start)
