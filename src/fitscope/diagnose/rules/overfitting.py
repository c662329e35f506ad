"""`overfitting`: a validation loss that rises while the training loss falls.

Sees the losses that Keras logs at the end of each epoch. The validation loss must have risen from its best epoch for several
epochs, the training loss must have gone on falling, and the two must be far apart.

False alarms: a validation set so small that its loss is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import shared
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule

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
        yield NotJudged(f"{len(unseen)} epochs with a validation loss: too few to judge")
        return
    best = int(np.argmin(unseen))
    last = float(np.median(unseen[-2:]))
    if (
        len(unseen) - 1 - best >= limit.epochs
        and last > limit.rise * unseen[best] > 0
        and seen[-1] < limit.fall * seen[best]
        and last > limit.gap * seen[-1]
    ):
        step = int(held_out.steps[best])
        apart = unseen[0] > limit.apart * max(seen[0], 1e-12)
        yield Finding(
            "overfitting",
            "warning",
            site="logs/val_loss",
            first_step=step,
            last_step=int(held_out.steps[-1]),
            message=(
                f"The validation loss was best in epoch {best + 1} ({unseen[best]:.4g}) and is {last:.4g} now, while the training loss "
                f"fell from {seen[best]:.4g} to {seen[-1]:.4g}."
                + (
                    f" In the first epoch it was already {unseen[0] / max(seen[0], 1e-12):.3g} times the training loss."
                    if apart
                    else ""
                )
            ),
            evidence={
                "best_epoch": best + 1,
                "best": float(unseen[best]),
                "end": last,
                "train": float(seen[-1]),
            },
            cure=DATA if apart else CURE,
            confidence=0.85,
            series=Series.from_history(held_out, "value"),
        )
