"""`loss_not_decreasing`: a loss that is where it was at the start.

Sees the level of the loss at the end (median of the last tenth) against that of the start, and the noise between batches; and
whether the last third is any better than guessing, or than always predicting the average target. A loss that begins far above that of
guessing and only comes back to it has fallen, but nothing was learned. It is judged only with one loss and one optimizer: the losses of
a GAN or of reinforcement learning need not fall. A loss of one's own that begins below zero and vanishes, its noise included, is that of
a policy: nothing is left to gain.

False alarms: a model that was trained before; a plateau at the start of a long training; labels that nothing can predict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.baseline import Baseline, baseline
from fitscope.diagnose.curves import Course, course, mean, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series, Severity
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, ignorance, only_head


@rule("loss_not_decreasing", sees="a loss that ends where it began")
def loss_not_decreasing(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    loss = evidence.loss
    if loss is None:
        yield NotJudged("no loss was recorded")
        return
    why = several_losses(evidence)
    if why:
        yield NotJudged(why)
        return
    went = course(loss.before(evidence.end))
    length = int(loss.steps[-1] - loss.steps[0]) if len(loss) else 0
    if went is None or len(went.values) < limit.losses or length < limit.steps:
        yield NotJudged(f"{len(loss)} recorded losses over {length:,} steps: too few to judge")
        return
    if only_head(evidence) is None and _vanishes(went):
        yield NotJudged("the loss began below zero and vanished, as that of a policy does: it need not fall")
        return
    guess = guessing(evidence)
    late = median(went.values[-max(len(went.values) // 3, 10) :])
    least = limit.back if guess is not None and _comes_back(went, guess, limit) else limit.chance
    if guess is not None and length >= limit.chance_steps and guess * 1.2 > late >= least * guess:
        yield _found(
            loss,
            "warning",
            f"The loss is {late:.4g} in the last third of {length:,} steps: guessing gives {guess:.4g}, so nothing was learned.",
            {"end": went.end, "best": went.best, "late": late, "guessing": guess, "losses": len(went.values)},
        )
        return
    average = baseline(evidence) if guess is None and length >= limit.chance_steps else None
    if average is not None and _no_better(average, went, limit):
        yield _found(
            loss,
            "warning",
            f"The loss is {average.loss:.4g} in the last third of {length:,} steps; {average.words} gives {average.average:.4g}, "
            "so nothing was learned from the inputs.",
            {"end": went.end, "best": went.best, "late": average.loss, "average": average.average},
        )
        return
    if _fell(went, limit):
        return
    n = len(went.values)
    yield _found(
        loss,
        "note" if abs(went.start) < 1e-4 or _trained_before(evidence, went.start) else "warning",
        f"The loss is {went.end:.4g} after {length:,} steps; it began at {went.start:.4g} and was never below {went.best:.4g}.",
        {"start": went.start, "end": went.end, "best": went.best, "noise": went.noise, "losses": n},
    )


def _no_better(average: Baseline, went: Course, limit: SimpleNamespace) -> bool:
    """Whether a regression ends at the loss of always predicting the average, or far above it without moving."""
    return average.share >= limit.average and (average.share < limit.far or _stays(went, limit))


def _vanishes(went: Course) -> bool:
    """Whether a loss that began below zero ends at zero, without the noise it had."""
    tenth = max(len(went.values) // 10, 3)
    first, last = (np.abs(part).mean() for part in (went.values[:tenth], went.values[-tenth:]))
    return bool(went.start < 0 and last < 0.05 * first)


def _comes_back(went: Course, guess: float, limit: SimpleNamespace) -> bool:
    """Whether the loss began well above that of guessing, and has stayed about there since: what is a little below it is noise, or
    learned by heart."""
    here = went.levels[len(went.levels) // 3 :]
    return bool(went.start >= limit.above * guess and here.min() >= limit.back * guess)


def _fell(went: Course, limit: SimpleNamespace) -> bool:
    """Whether the loss fell by a good part of its start, and by more than noise explains."""
    fall = went.start - went.best
    far = limit.progress * max(abs(went.start), 1e-12)
    return bool(fall > far and fall > 0.5 * went.noise / max(len(went.values) / 10, 1) ** 0.5)


def _trained_before(evidence: Evidence, start: float) -> bool:
    """Whether the loss begins far below that of a model that knows nothing, so that it can hardly fall."""
    head = only_head(evidence)
    expected = ignorance(evidence, head)[0] if head is not None else None
    return expected is not None and start < 0.1 * expected


def _stays(went: Course, limit: SimpleNamespace) -> bool:
    """Whether the last third of the loss lies where the first did."""
    third = max(len(went.values) // 3, 1)
    first, last = median(went.values[:third]), median(went.values[-third:])
    return bool(first - last < limit.stays * abs(first))


def _found(loss: History, severity: Severity, message: str, numbers: dict[str, float]) -> Finding:
    return Finding(
        "loss_not_decreasing",
        severity,
        site="loss",
        first_step=int(loss.steps[0]),
        last_step=int(loss.steps[-1]),
        message=message,
        evidence=numbers,
        cure=(
            "Check that labels belong to their inputs, that the output fits the loss, and that gradients reach the layers; "
            "then try ten times the learning rate, and a tenth of it. A model must be able to overfit a single batch."
        ),
        confidence=0.7,
        series=Series.from_history(loss, "value"),
    )


def guessing(evidence: Evidence) -> float | None:
    """The loss of a classifier that guesses among classes of equal size; None if the model is not such a classifier."""
    head, classes = only_head(evidence), evidence.history("classes/targets")
    if head is None or classes is None or not len(classes):
        return None
    number = (
        2 if head.loss in BINARY and head.units == 1 else head.units if head.loss in CATEGORICAL else None
    )
    if number is None or number < 2 or mean(classes.max) > 1.6 / number:
        return None
    return math.log(number)


def several_losses(evidence: Evidence) -> str:
    """Why the course of the loss says little, "" if it does not."""
    own = [site for site in evidence.histories if site.base == "loss" and site.label]
    if len(own) > 1:
        return "several optimizers with a loss each, as in a GAN: none of them need fall"
    rates = [site for site in evidence.histories if site.base == "learning_rate" and site.label]
    return "several optimizers, as in a GAN: the loss need not fall" if len(rates) > 1 else ""


def nothing_learned(evidence: Evidence) -> bool:
    """Whether the loss ends at that of guessing, or of always predicting the average, after a training long enough to tell.

    A loss that is flat is not enough: that of a GAN is, and that of a model that was trained before.
    """
    went, guess = course(evidence.loss, 40), guessing(evidence)
    if went is None or several_losses(evidence):
        return False
    if guess is not None:
        return 1.2 * guess > went.end > 0.97 * guess
    average = baseline(evidence)
    return average is not None and 1.2 > average.share > 0.97
