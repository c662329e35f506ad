"""`batchnorm`: batch normalisation whose settings or batches make its statistics useless.

Looks at a momentum too high for the length of the training (the moving statistics never arrive, so the model is bad only in
validation), one so low that they are those of the last batches, a large epsilon, and batches too small to have statistics. A batch
of one sample makes the output constant, so dead units and layers without a gradient that are connected with it are listed under it.
A frozen layer counts only if it never saw data: with its initial mean of 0 and variance of 1 it passes large values on.

False alarms: a frozen layer, whose statistics were learned before.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import number


@rule("batchnorm", sees="batch normalisation whose moving statistics cannot be right")
def batchnorm(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    network = evidence.network
    if not network.order:
        yield NotJudged("the model was not described")
    for layer in (n for n in network.order if network.kind(n) == "BatchNormalization"):
        if network.get(layer, "trainable", True):
            found = (
                _momentum(evidence, layer, limit)
                or _epsilon(evidence, layer, limit)
                or _batch(evidence, layer, limit)
            )
        else:
            found = _frozen(evidence, layer, limit)
        if found is not None:
            text, cure, numbers = found
            moving = evidence.history(f"weights/{layer}/moving_variance")
            yield Finding(
                "batchnorm",
                "warning",
                site=f"weights/{layer}/moving_variance" if moving is not None else f"activations/{layer}",
                layer=layer,
                last_step=evidence.last_step or 0,
                message=text + ".",
                evidence=numbers,
                cure=cure,
                confidence=0.85,
                series=Series.from_history(moving, "mean") if moving is not None else None,
            )
            return  # the other layers are mostly set up alike: one finding is enough


Found = tuple[str, str, dict[str, float]]


def _momentum(evidence: Evidence, layer: str, limit: SimpleNamespace) -> Found | None:
    momentum = number(evidence.network.get(layer, "momentum"))
    if momentum is None:
        return None
    steps = planned_steps(evidence)
    needed = 3 / max(1 - momentum, 1e-9)
    if momentum >= limit.high and steps is not None and steps < needed:
        text = f"The moving statistics of {layer} need about {needed:,.0f} steps with momentum {momentum:g}, but the training has {steps:,}"
        return (
            text,
            "Use momentum=0.9 in short trainings: what validation and prediction use is still near its initial value.",
            {"momentum": momentum, "steps": steps},
        )
    if momentum <= limit.low:
        text = (
            f"The moving statistics of {layer} with momentum {momentum:g} are those of the last batch or two"
        )
        return (
            text,
            "Use momentum 0.9 to 0.99. Keras keeps the old value by that share; PyTorch's momentum of 0.1 is 0.9 here.",
            {"momentum": momentum},
        )
    return None


def _epsilon(evidence: Evidence, layer: str, limit: SimpleNamespace) -> Found | None:
    epsilon = number(evidence.network.get(layer, "epsilon"))
    moving = evidence.history(f"weights/{layer}/moving_variance")
    variance = median(moving.mean) if moving is not None and len(moving) else 1.0
    if epsilon is None or epsilon < limit.epsilon * max(variance, 1e-6) or epsilon <= 1e-2:
        return None
    return (
        f"The epsilon of {layer} is {epsilon:g}, which is no longer small against a variance of {variance:.3g}",
        "Use epsilon=1e-3.",
        {"epsilon": epsilon, "variance": variance},
    )


def _batch(evidence: Evidence, layer: str, limit: SimpleNamespace) -> Found | None:
    size = number(evidence.setting("fit", "batch_size"))
    seen = evidence.history(f"activations/{layer}")
    if seen is not None and seen.shape:
        size = float(seen.shape[0])
        if len(seen.shape) > 2:  # the statistics also cover positions
            return None
    if size is None or size > limit.batch:
        return None
    if size <= 1:
        text = f"{layer} normalises over batches of one sample, which is its own mean: its output is the same for every input"
    else:
        text = f"{layer} normalises over batches of {size:.0f} samples, too few for a mean and a variance"
    return (
        text,
        "Use larger batches, or LayerNormalization.",
        {"batch_size": size},
    )


def _frozen(evidence: Evidence, layer: str, limit: SimpleNamespace) -> Found | None:
    """Finds a frozen layer with its initial statistics, which passes on large values."""
    moving = [evidence.history(f"weights/{layer}/moving_{name}") for name in ("mean", "variance")]
    out = evidence.history(f"activations/{layer}")
    if out is None or not median(out.rms) >= limit.passes:
        return None
    for history, made_with in zip(moving, (0.0, 1.0), strict=True):
        if history is None or not np.all((history.min == made_with) & (history.max == made_with)):
            return None
    size = median(out.rms)
    text = f"{layer} is frozen with the statistics it was made with, mean 0 and variance 1: it normalises nothing"
    return (
        f"{text}, and its output has an rms of {size:.4g}",
        "Set trainable=True until it has seen data, or load the weights that belong to it.",
        {"rms": size, "frozen": True},
    )


def planned_steps(evidence: Evidence) -> int | None:
    """The number of steps of the training: the planned one, or the recorded one so far."""
    per_epoch, epochs = (
        number(evidence.setting("fit", "steps_per_epoch")),
        number(evidence.setting("fit", "epochs")),
    )
    if per_epoch and epochs:
        return int(per_epoch * epochs)
    return None if evidence.last_step is None else evidence.last_step + 1
