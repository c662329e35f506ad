"""`overfitting`: a validation loss that rises while the training loss falls.

Looks at the losses that Keras logs at the end of each epoch. The validation loss must have risen from its best epoch for several
epochs, the training loss must have gone on falling, and the two must be far apart. Validation uses the moving statistics of batch
normalisations, which are near their initial values in the first 3 / (1 - momentum) steps: epochs that end before that do not count,
unless the model was trained before.

False alarms: a validation set so small that its loss is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import highest, shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import number

CURE = (
    "Stop at the best epoch (EarlyStopping with restore_best_weights), add data, augmentation, dropout or weight decay, or use a "
    "smaller model."
)
DATA = "So large a gap at the start is seldom overfitting: check that validation data is read, scaled and labelled like the training data."


@rule("overfitting", sees="a validation loss that rises while the training loss falls")
def overfitting(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    train, held_out = evidence.logs("loss"), evidence.logs("val_loss")
    if train is None or held_out is None:
        yield NotJudged("fit() had no validation data")
        return
    train, held_out = shared(train, held_out)
    seen, unseen = train.value.astype(np.float64), held_out.value.astype(np.float64)
    if len(unseen) < limit.epochs + 2 or not np.isfinite(unseen).all() or not np.isfinite(seen).all():
        yield NotJudged(f"too few epochs with a validation loss ({len(unseen)})")
        return
    layer, needed = settled(evidence)
    young = int((held_out.steps < needed).sum())
    if len(unseen) - young < limit.epochs + 2:
        yield NotJudged(
            f"the moving statistics of {layer} need about {needed:,} steps, and validation uses them: "
            f"too few epochs after that to judge ({len(unseen) - young})"
        )
        return
    seen, unseen = seen[young:], unseen[young:]
    best = int(np.argmin(unseen))
    last = float(np.median(unseen[-2:]))
    if (
        len(unseen) - 1 - best >= limit.epochs
        and last > limit.rise * unseen[best] > 0
        and seen[-1] < limit.fall * seen[best]
        and last > limit.gap * seen[-1]
    ):
        yield _found(train, held_out, young, best, limit)


def _found(train: History, held_out: History, young: int, best: int, limit: SimpleNamespace) -> Finding:
    """`best` counts from the first epoch that is not too young."""
    seen, unseen = train.value[young:].astype(np.float64), held_out.value[young:].astype(np.float64)
    last, times = float(np.median(unseen[-2:])), unseen[0] / max(seen[0], 1e-12)
    which = f"epoch {young + 1}" if young else "the first epoch"
    early = f" In {which} it was already {times:.3g} times the training loss." if times > limit.apart else ""
    return Finding(
        "overfitting",
        "warning",
        site="logs/val_loss",
        first_step=int(held_out.steps[young + best]),
        last_step=int(held_out.steps[-1]),
        message=(
            f"The validation loss was best in epoch {young + best + 1} ({unseen[best]:.4g}) and is {last:.4g} now, while the "
            f"training loss fell from {seen[best]:.4g} to {seen[-1]:.4g}.{early}"
        ),
        evidence={
            "best_epoch": young + best + 1,
            "best": float(unseen[best]),
            "end": last,
            "train": float(seen[-1]),
        },
        cure=DATA if early else CURE,
        confidence=0.85,
        series=Series.from_history(held_out, "value"),
    )


def settled(evidence: Evidence) -> tuple[str, int]:
    """The batch normalisation whose moving statistics settle last, and the step from which on they have; 0 without any."""
    network = evidence.network
    latest = ("", 0)
    for layer in network.order:
        momentum = number(network.get(layer, "momentum"))
        if network.kind(layer) != "BatchNormalization" or momentum is None:
            continue
        if network.get(layer, "trainable", True) and not _trained_before(evidence, layer):
            latest = max(latest, (layer, round(3 / max(1 - momentum, 1e-9))), key=lambda one: one[1])
    return latest


def _trained_before(evidence: Evidence, layer: str) -> bool:
    """Whether the moving mean, which starts at zero, was already as large as later when the training began."""
    moving = evidence.history(f"weights/{layer}/moving_mean")
    if moving is None or len(moving) < 5 or moving.steps[0] > 2:
        return False
    return bool(float(moving.rms[0]) > 0.5 * highest(moving.rms))
