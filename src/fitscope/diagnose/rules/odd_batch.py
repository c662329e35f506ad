"""`odd_batch`: single batches whose inputs or targets are far larger than those of all the others.

Looks at the rms of the inputs, and of targets of floating point, in each captured batch. A batch counts if it is many times the usual
one *and* far above every batch that is not odd. So data with a long tail, whose batches lie close behind one another, is not reported.
Several such batches in a row are a change of the data, so they do not count. The loss need not show it: a normalisation after the first
layer hides an unscaled batch, and still learns from it.

False alarms: rare samples that really are this large.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import Array, History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.input_not_normalised import first_layers

TOGETHER = 3  #: captured batches in a row that still count as single ones
NAMED = 4  #: the most steps in the message


@rule("odd_batch", sees="single batches whose inputs or targets are far larger than all others")
def odd_batch(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    histories = [h for kind in ("inputs", "targets") for h in evidence.of(kind) if "float" in h.dtype]
    enough = [h for h in histories if len(h) >= limit.captures]
    if not enough:
        few = f"fewer than {limit.captures:g} batches of inputs were recorded"
        yield NotJudged(few if histories else "no inputs of floating point were recorded")
        return
    for history in enough:
        odd = _odd(history.peak.astype(np.float64), limit)
        if len(odd):
            yield _found(evidence, history, odd)
            return


def _odd(size: Array, limit: SimpleNamespace) -> Array:
    """The places of the odd batches among these sizes; none if there are many, or if they follow each other."""
    usual = median(size)
    if not usual > 0:
        return np.empty(0, np.int64)
    above = size >= limit.times * usual
    if not above.any() or size[above].min() < limit.gap * np.nanmax(size[~above]):
        return np.empty(0, np.int64)
    odd = np.flatnonzero(above)
    longest = max(map(len, np.split(odd, np.flatnonzero(np.diff(odd) > 1) + 1)))
    return odd if len(odd) <= max(limit.share * len(size), 1) and longest <= TOGETHER else odd[:0]


def _found(evidence: Evidence, history: History, odd: Array) -> Finding:
    kind, size = history.site.base, history.peak.astype(np.float64)
    steps = history.steps[odd].tolist()
    worst = int(odd[np.argmax(size[odd])])
    usual = median(np.delete(size, odd))
    layer = next(iter(first_layers(evidence)), None) if kind == "inputs" else None
    about = "about " if history.seen > len(history) else ""  # a point stands for several captured steps
    of = f" of {layer}" if layer else ""
    message = (
        f"The {kind}{of} have an rms of {size[worst]:.4g} in the batch of {about}step {int(history.steps[worst]):,}, "
        f"{size[worst] / usual:.3g} times the usual {usual:.4g}."
    )
    if len(steps) > 1:
        listed = ", ".join(f"{step:,}" for step in steps[:NAMED]) + (", …" if len(steps) > NAMED else "")
        message += f" It is one of {len(steps)} such batches (steps {listed}){_same_batch(evidence, steps)}."
    return Finding(
        "odd_batch",
        "warning",
        site=str(history.site),
        layer=layer,
        first_step=steps[0],
        last_step=steps[-1],
        message=message,
        evidence={"steps": steps[:64], "rms": float(size[worst]), "usual": usual},
        cure=(
            f"Look at how these samples are read: they were probably not scaled like the others. "
            f'fs.{kind}(keep="tensor", every=fs.steps({steps[0]})) keeps them.'
        ),
        confidence=0.9,
        series=Series.from_history(history, "peak"),
    )


def _same_batch(evidence: Evidence, steps: list[int]) -> str:
    """Whether it is the same batch of each epoch, which data in a fixed order has."""
    batches = evidence.setting("fit", "steps_per_epoch")
    if not isinstance(batches, int) or batches < 2 or len({step % batches for step in steps}) > 1:
        return ""
    return f": batch {steps[0] % batches:,} of each epoch"
