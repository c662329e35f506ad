"""`label_problem`: targets that cannot be right.

Looks at targets that are all the same, targets that the loss does not accept (labels beyond the last class, -1 and 1 for a binary
cross-entropy), targets that are no labels (two values that both mean no, as after a second division by 255; fractions where class
numbers are wanted), and classes that are far from balanced. In the loss of each sample of a recorded batch it sees samples
that keep a high loss when all others are learned: their labels look wrong. `fs.loss(per_sample=True)` names them.

False alarms: a batch of one class is not all of the data, so constant targets are reported only when every recorded batch has
the same ones. Data that are hard by nature have losses of every size; only a few high ones above many low ones are reported, and only
if the net is about as sure as wrong labels make it: of samples that lie between two classes it knows that they might be either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import highest, lowest, mean, median, variance
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, REGRESSION, OutputHead, only_head

FAR = 0.55  #: share of the usual high loss from which on a loss counts as high


@rule("label_problem", sees="targets that are constant, outside of what the loss takes, or far from balanced")
def label_problem(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    targets = next(evidence.of("targets"), None)
    if targets is None or len(targets) < limit.captures:
        yield NotJudged(
            "targets were not recorded" if targets is None else f"too few recorded steps ({len(targets)})"
        )
        return
    head = only_head(evidence)
    # A custom loss may ignore the targets: then they can be anything.
    ours = head is not None and head.loss in CATEGORICAL | BINARY | REGRESSION
    found = _outside(targets, head) or (
        _constant(targets, evidence) if ours or not evidence.configuration else None
    )
    found = found or _no_labels(targets, head, limit)
    found = found or _mislabelled(evidence, head, limit)
    if found is not None:
        yield found
        return
    classes = evidence.history("classes/targets")
    if classes is not None and len(classes) and classes.count[-1] > 1:
        share = median(classes.max)
        if share >= limit.imbalance and _pooled(targets, classes):
            yield _finding(
                classes, "note", f"{100 * share:.3g} % of the targets are of one class", "max",
                "Use class_weight or balanced batches, and a metric that is not accuracy.", 0.6, share=share,
            )  # fmt: skip


def _outside(targets: History, head: OutputHead | None) -> Finding | None:
    """Finds targets that the loss does not accept."""
    if head is None:
        return None
    low, high = lowest(targets.min), highest(targets.max)
    if head.loss in BINARY and (low < -1e-6 or high > 1 + 1e-6):
        text = f"The targets run from {low:g} to {high:g}, but {head.loss} takes numbers from 0 to 1"
        cure = "Map the two classes to 0 and 1, or use a hinge loss for -1 and 1."
        return _finding(targets, "error", text, "max", cure, 0.97, layer=head.layer, lowest=low, highest=high)
    if head.loss == "SparseCategoricalCrossentropy" and head.units:
        left_out = head.ignored  # an ignored label hides the lowest or highest of the others
        if (high > head.units - 1 and high != left_out) or (low < 0 and low != left_out):
            text = f"The labels run from {low:g} to {high:g}, but the output has {head.units} classes: 0 to {head.units - 1}"
            cure = "Count labels from 0, or give the output one more unit; on some backends such labels are ignored in silence."
            return _finding(
                targets, "error", text, "max", cure, 0.97, layer=head.layer, lowest=low, highest=high
            )
        if low > 0 and high == head.units - 1 and len(targets) >= 5 and head.units > 2:
            text = f"The labels run from {low:g} to {high:g}: class 0 of {head.units} never occurs"
            cure = "Count labels from 0; the output has a unit that is never wanted."
            # With tokens, 0 is often padding or a start.
            tokens = any(extent != 1 for extent in targets.shape[1:])
            severity = "note" if tokens else "warning"
            return _finding(
                targets, severity, text, "min", cure, 0.7, layer=head.layer, lowest=low, highest=high
            )
    return None


def _no_labels(targets: History, head: OutputHead | None, limit: SimpleNamespace) -> Finding | None:
    """Finds targets in the range that the loss accepts that still are no labels."""
    if head is None or not len(targets):
        return None
    low, high = lowest(targets.min), highest(targets.max)
    said = ""
    if head.loss == "SparseCategoricalCrossentropy":
        ends = np.concatenate([targets.min, targets.max]).astype(np.float64)
        if highest(np.abs(ends - np.round(ends))) > 1e-3:
            said = f"The labels run from {low:g} to {high:g} and are not whole numbers, but {head.loss} takes the number of a class"
    elif head.loss in BINARY and (0 <= low <= high < 0.5 or 0.5 < low <= high <= 1) and low < high:
        if _two_values(targets, low, high) or high <= limit.tiny:
            side = "no larger than" if high < 0.5 else "no smaller than"
            said = f"The targets are {side} {high if high < 0.5 else low:g}, but {head.loss} takes 0 for one class and 1 for the other"
    elif head.loss in CATEGORICAL and head.units and 0 <= low < high < 0.5:
        total = head.units * highest(targets.mean)
        if total < 0.5:
            said = f"The targets of a sample add up to {total:.3g}, but {head.loss} takes a share for each class, in all 1"
    if not said:
        return None
    cure = "Look at the targets as fit gets them: labels may have been divided by 255 or scaled like inputs."
    return _finding(targets, "warning", said, "max", cure, 0.9, layer=head.layer, lowest=low, highest=high)


def _two_values(targets: History, low: float, high: float) -> bool:
    """Whether there are only these two values: then the variance of each batch follows from its mean."""
    middle, spread = targets.mean.astype(np.float64), targets.std.astype(np.float64)
    expected = (middle - low) * (high - middle)
    return bool(highest(np.abs(spread**2 - expected)) <= 0.02 * max(highest(expected), 1e-30))


def _constant(targets: History, evidence: Evidence) -> Finding | None:
    """Finds targets that are the same for every sample of every batch."""
    classes = evidence.history("classes/targets")
    one_class = classes is not None and len(classes) >= 3 and lowest(classes.max) >= 0.9999
    same_mean = highest(targets.mean) - lowest(targets.mean) <= 1e-6 * max(abs(float(targets.mean[0])), 1e-6)
    constant = highest(targets.std) <= 1e-6 * max(abs(float(targets.mean[0])), 1e-6)
    if not same_mean or not (constant or (one_class and len(targets.shape) == 2)):
        return None
    if not constant and not (one_class and _same_class(evidence)):
        return None
    text = f"All targets are the same ({float(targets.mean[0]):.4g}) in all {targets.seen:,} recorded batches"
    return _finding(
        targets,
        "error",
        text,
        "mean",
        "Check where the labels are read; a column may be mixed up or never filled.",
        0.95,
    )


def _mislabelled(evidence: Evidence, head: OutputHead | None, limit: SimpleNamespace) -> Finding | None:
    """Finds a few samples with a high loss among many learned ones, in the last third of the training.

    If a share q of a batch has the loss H and the rest a small loss o, the mean is o + q(H - o) and the variance q(1 - q)(H - o)²; so q and
    H are known from mean and standard deviation. Batches without such a sample have o. Rare classes that were not learned look the
    same, so nothing is judged where one class has nearly all samples.
    """
    samples = evidence.history("sample_loss") or evidence.history("classes/log_loss")
    if samples is None or head is None or head.loss not in CATEGORICAL | BINARY:
        return None
    late = samples.at(samples.steps >= samples.steps[0] + 2 * (samples.steps[-1] - samples.steps[0]) / 3)
    classes = evidence.history("classes/targets")
    if len(late) < 10 or (classes is not None and mean(classes.max) > limit.common):
        return None
    if not np.isfinite(late.mean).all():
        return None
    highs = late.max.astype(np.float64)
    quiet = highs < FAR * _usual_high(highs)
    base = min(median(late.mean[quiet]), limit.learned) if quiet.any() else 0.0
    usual = np.maximum(late.mean.astype(np.float64), 1e-12)
    above = np.maximum(usual - base, 1e-12)
    height = np.fmin(usual + late.std.astype(np.float64) ** 2 / above, highs)
    part = above / np.maximum(height - base, 1e-12)
    torn = ~quiet & (height >= limit.wrong) & (part <= 0.25)
    share = float(np.where(torn, part, 0).mean())
    calm = highs < FAR * median(height[torn])  # batches without such a sample
    # If each batch has such samples, the loss of the others is unknown.
    known = bool((calm | ~torn).any())
    others = median(usual[calm if calm.any() else ~torn]) if known else 0.0
    high = median(height[torn])
    if share < limit.share or others > limit.learned or not _apart(late, high):
        return None
    # Batches that are not torn enough to be sure have such samples as well.
    everything = max((mean(usual) - others) / high, share)
    if high < _of_wrong_labels(everything) - limit.doubt:
        return None
    said = f" ({others:.2g})" if known else ""
    many = _many_in_a_sample(late, evidence)
    why = "wrong, or nothing in the inputs tells them" if many else "wrong"
    text = (
        f"About {100 * share:.2g} % of the samples keep a loss near {high:.2g} while the others are learned{said}: "
        f"their labels look {why}"
    )
    cure = (
        "Record fs.loss(per_sample=True), sort `run.samples` of the last epoch by loss and look at the labels of the worst; "
        "`run.plot.worst_samples()` shows them."
    )
    numbers = {"share": share, "loss": high, "others": others}
    return _finding(late, "note" if many else "warning", text, "max", cure, 0.7, layer=None, **numbers)


def _usual_high(highs: np.ndarray) -> float:
    """The highest loss of a batch that has a sample with a high loss, also if only one batch in ten has; NaN if unknown."""
    return float(np.quantile(highs, 0.9)) if np.isfinite(highs).all() else math.nan


def _of_wrong_labels(share: float) -> float:
    """The loss of labels of which this share is wrong, by a net that knows no more than that.

    It is higher if a wrong label can be any other class, and lower if the net learns some by heart. Samples that lie between two classes
    have less: the net knows of each that it might be either.
    """
    return -math.log(share)


def _many_in_a_sample(samples: History, evidence: Evidence) -> bool:
    """Whether there is a label for each word or pixel: some of those can never be told."""
    targets = next(evidence.of("targets"), None)
    return bool(
        targets is not None and targets.shape and samples.shape and samples.shape[0] > targets.shape[0]
    )


def _apart(samples: History, high: float) -> bool:
    """Whether the highest loss of a batch is either near the high one or far below. A net that still learns has some of every size."""
    highs = samples.max.astype(np.float64)
    if not np.isfinite(highs).any():
        return True  # the extremes were not recorded
    between = np.count_nonzero((highs >= 0.25 * high) & (highs < FAR * high))
    return bool(between <= 0.25 * np.count_nonzero(highs >= FAR * high))


def _same_class(evidence: Evidence) -> bool:
    """Whether all predictions are of one class. One-hot targets have the same statistics for every class, so they cannot show a change."""
    predicted = evidence.history("classes/predictions")
    return predicted is not None and len(predicted) > 0 and float(predicted.max[-1]) >= 0.9999


def _pooled(targets: History, classes: History) -> bool:
    """Whether batches resemble one another: with sorted data each batch has a different class."""
    del classes
    if len(targets.shape) == 1 or targets.shape[-1] == 1:
        return bool(variance(targets.mean) ** 0.5 <= 0.5 * max(median(targets.std), 1e-9))
    return False


def _finding(
    history: History,
    severity: str,
    text: str,
    stat: str,
    cure: str,
    sure: float,
    layer: str | None = None,
    **numbers: float,
) -> Finding:
    return Finding(
        "label_problem",
        severity,  # type: ignore[arg-type]
        site=str(history.site),
        layer=layer,
        first_step=int(history.steps[0]),
        last_step=int(history.steps[-1]),
        message=text + ".",
        evidence=numbers,
        cure=cure,
        confidence=sure,
        series=Series.from_history(history, stat),
    )
