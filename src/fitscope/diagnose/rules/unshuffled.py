"""`unshuffled`: batches that differ far more than chance allows, as with sorted data.

Looks at how much of the variance of the targets lies between batches. In shuffled data it is about one part in the batch size; in sorted
data most of it.

False alarms: time series that are read in their order on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import highest, mean, median, variance
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule


@rule("unshuffled", sees="batches of one class or one range each, as with sorted data")
def unshuffled(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    targets = next(evidence.of("targets"), None)
    if targets is None or len(targets) < limit.batches or not targets.shape:
        yield NotJudged(
            "targets were not recorded"
            if targets is None
            else f"{len(targets)} recorded batches: too few to judge"
        )
        return
    size = int(targets.shape[0])
    if size < 4:
        yield NotJudged("batches of fewer than 4 samples differ anyway")
        return
    one_hot = len(targets.shape) == 2 and targets.shape[1] > 1
    classes = evidence.history("classes/targets")
    if one_hot:
        if classes is None or len(classes) < limit.batches or not classes.count[-1] > 1:
            yield NotJudged("classes of the targets were not recorded")
            return
        share, wide = median(classes.max), _many(evidence, classes)
        found = share >= 0.95 and wide
    else:
        between, within = (
            variance(targets.mean),
            mean(targets.std.astype(np.float64) ** 2),
        )
        share = between / (between + within) if between + within > 0 else 0.0
        found = share >= limit.share and share > 5 / size
    if not found:
        return
    told = evidence.setting("fit", "shuffle")
    text = f"{100 * share:.3g} % of the variance of the targets lies between batches"
    if one_hot:
        text = f"Batches consist of one class each (median share {100 * share:.3g} %), and the class changes between batches"
    yield Finding(
        "unshuffled",
        "warning",
        site=str(targets.site),
        first_step=int(targets.steps[0]),
        last_step=int(targets.steps[-1]),
        message=f"{text}: the data seems to be sorted{', and fit() was told shuffle=False' if told is False else ''}.",
        evidence={"share_between": share, "batch_size": size, "shuffle": told},
        cure="Shuffle: fit(shuffle=True) for arrays, .shuffle(buffer as large as the data) before .batch() for tf.data.",
        confidence=0.9 if told is False else 0.75,
        series=Series.from_history(targets, "mean"),
    )


def _many(evidence: Evidence, classes: object) -> bool:
    """Whether the classes of one-hot targets change: the loss must jump when a new one begins, or predictions name several."""
    del classes
    predicted = evidence.history("classes/predictions")
    if predicted is None or evidence.loss is None:
        return False
    values = evidence.loss.value[np.isfinite(evidence.loss.value)]
    return len(values) > 5 and highest(values) > 2 * median(values)
