"""`optimizer_misconfigured`: settings of the optimizer that defeat it.

Looks at the configuration before the first step: a learning rate of zero or below, one far too large, an epsilon that swallows the
gradient, a momentum of almost 1, a weight decay or penalty that eats the weights. And the learning rate in use: a schedule that is at
zero long before the end, or that jumps far above all it had before.

False alarms: a large learning rate may be right for a tiny model; without harm it is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import numpy as np

from fitscope.diagnose.curves import course, highest, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series, Severity
from fitscope.diagnose.rule import rule
from fitscope.diagnose.rules.batchnorm import planned_steps
from fitscope.diagnose.setup import ADAPTIVE, number, optimizer

Found = tuple[Severity, str, str, dict[str, float]]


@rule(
    "optimizer_misconfigured", sees="a learning rate, epsilon, momentum or decay that defeats the optimizer"
)
def optimizer_misconfigured(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    given = optimizer(evidence)
    if not given and "learning_rate" not in evidence.histories:
        yield NotJudged("the optimizer is not known")
        return
    kind = str(given.get("class") or "")
    rates = evidence.history("learning_rate")
    for severity, text, cure, numbers in (
        *_rate(evidence, kind, limit),
        *_rest(given, kind, limit),
        *_penalty(evidence, given, limit),
        *_schedule(evidence),
        *_jump(evidence, limit),
    ):
        yield Finding(
            "optimizer_misconfigured",
            severity,
            site="learning_rate" if "learning_rate" in numbers else None,
            first_step=int(numbers.get("step", 0)),
            last_step=evidence.last_step or 0,
            message=text + ".",
            evidence=numbers,
            cure=cure,
            confidence=0.9 if severity != "note" else 0.5,
            series=Series.from_history(rates, "value")
            if rates is not None and "learning_rate" in numbers
            else None,
        )


def _rate(evidence: Evidence, kind: str, limit: SimpleNamespace) -> Iterator[Found]:
    rate = number(evidence.setting("optimizer", "learning_rate"))
    used = evidence.history("learning_rate")
    if rate is None and used is not None and len(used):
        rate = median(used.value)  # the usual rate of a schedule: a peak shows in the updates
        if abs(rate) <= 1e-6 * abs(highest(used.value)):
            return  # a schedule ends at zero, or a little below it by rounding (see _schedule)
    if rate is None:
        return
    numbers = {"learning_rate": rate}
    learns = _learns(evidence)
    if rate <= 0:
        what = "is zero: nothing is learned" if rate == 0 else f"is {rate:g}: the optimizer climbs the loss"
        yield "error", f"The learning rate {what}", "Use 1e-3 for Adam, 1e-2 for SGD as a start.", numbers
    elif kind in ADAPTIVE and rate >= limit.adaptive_rate:
        harms = rate >= limit.adaptive_rate_warning or _worse(evidence)
        severe: Severity = "warning" if harms and not learns else "note"
        yield (
            severe,
            f"The learning rate of {kind} is {rate:g}: each step moves each weight by about as much",
            "Use 1e-3 as a start.",
            numbers,
        )
    elif kind == "SGD" and rate >= limit.rate:
        yield (
            "note" if learns else "warning",
            f"The learning rate of SGD is {rate:g}",
            "Use 1e-2 to 1e-1 as a start.",
            numbers,
        )


def _learns(evidence: Evidence) -> bool:
    """Whether the loss ends below half of its very first value: then the rate fits the size of the gradients, however large it is."""
    loss, went = evidence.loss, course(evidence.loss)
    return loss is not None and went is not None and evidence.end is None and went.end < 0.5 * loss.value[0]


def _worse(evidence: Evidence) -> bool:
    """Whether the loss ends above its very first value."""
    loss, went = evidence.loss, course(evidence.loss)
    return loss is not None and went is not None and bool(went.end > 1.2 * loss.value[0] > 0)


def _rest(given: dict[str, object] | object, kind: str, limit: SimpleNamespace) -> Iterator[Found]:
    get = given.get if hasattr(given, "get") else (lambda _: None)
    epsilon, momentum, decay = number(get("epsilon")), number(get("momentum")), number(get("weight_decay"))
    beta_1, beta_2 = number(get("beta_1")), number(get("beta_2"))
    if kind in ADAPTIVE and epsilon is not None and epsilon >= limit.epsilon:
        severe: Severity = "warning" if epsilon >= 10 * limit.epsilon else "note"
        yield (
            severe,
            f"The epsilon of {kind} is {epsilon:g}, larger than most gradients: it divides the steps away",
            "Use epsilon=1e-7, the default.",
            {"epsilon": epsilon},
        )
    if kind in ADAPTIVE and epsilon == 0:
        yield (
            "warning",
            f"The epsilon of {kind} is 0: a gradient of zero is divided by zero",
            "Use epsilon=1e-7, the default.",
            {"epsilon": 0.0},
        )
    for name, value in (("momentum", momentum), ("beta_1", beta_1)):
        if value is not None and (value >= limit.momentum or value < 0):
            yield (
                "warning",
                f"{name} is {value:g}: a step remembers {1 / max(1 - value, 1e-9):,.0f} steps",
                "Use 0.9.",
                {name: value},
            )
    if beta_2 is not None and 0 < beta_2 < 0.5 and kind != "Lion":
        yield (
            "warning",
            f"beta_2 is {beta_2:g}: the size of gradients is taken from the last step or two",
            "Use 0.999.",
            {"beta_2": beta_2},
        )
    if decay is not None and (decay >= limit.decay or decay < 0):
        yield (
            "warning",
            f"The weight decay is {decay:g}: {'weights grow by themselves' if decay < 0 else 'it takes more than the gradient gives'}",
            "Use 1e-4 to 1e-2.",
            {"weight_decay": decay},
        )


def _penalty(evidence: Evidence, given: Mapping[str, object], limit: SimpleNamespace) -> Iterator[Found]:
    """Penalties on weights, of the optimizer or of layers, that outweigh any gradient. A note as long as the net learns."""
    severe: Severity = "note" if _learns(evidence) else "warning"
    for name in (
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
    ):
        value = number(given.get(name))
        if value is not None and value >= limit.penalty:
            text = f"{name} is {value:g}: it holds weights at zero unless their gradients add up to more"
            yield severe, text, "Use 1e-3 to 1.", {name: value}
    found = []
    for layer, about in evidence.network.layers.items():
        for name in ("kernel_regularizer", "recurrent_regularizer", "embeddings_regularizer"):
            of = about.get(name)
            sizes = [number(of.get(key)) or 0.0 for key in ("l1", "l2")] if isinstance(of, Mapping) else [0.0]
            if max(sizes) >= limit.regularizer:
                found.append((max(sizes), layer, name))
    if found:
        value, layer, name = max(found)
        several = f", and of {len(found) - 1} more weights" if len(found) > 1 else ""
        text = f"The {name} of {layer}{several} has a factor of {value:g}: it pulls the weights to zero, whatever the data says"
        yield severe, text, "Use 1e-5 to 1e-3.", {name: value}


def _schedule(evidence: Evidence) -> Iterator[Found]:
    """Finds a schedule that is nearly zero for most of the training."""
    rates, steps = evidence.history("learning_rate"), planned_steps(evidence)
    if rates is None or len(rates) < 5 or steps is None:
        return
    values = rates.value.astype(np.float64)
    top = highest(values)
    if top <= 0 or not np.isfinite(top):
        return
    low = values < 1e-4 * top
    last = len(low) - int(np.argmin(low[::-1])) if not low.all() else 0  # the rate is low from here on
    if last < len(low) - 1 and rates.steps[last] < 0.5 * steps:
        step = int(rates.steps[last])
        yield (
            "warning",
            f"The learning rate falls from {top:g} to {max(values[last], 0.0):.2g} by step {step:,}, long before the end",
            "Let the schedule last as long as the training.",
            {"learning_rate": top, "step": step},
        )


def _jump(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Found]:
    """Finds a schedule that was steady and leaps far above all earlier rates. A warm-up rises too, but it is not steady first."""
    rates = evidence.history("learning_rate")
    if rates is None or len(rates) < 6:
        return
    values = rates.value.astype(np.float64)
    highest = np.maximum.accumulate(values)[4:-1]  # the highest rate before each value from the sixth on
    steady = np.array([values[i - 4 : i + 1].min() > 0.5 * highest[i - 4] for i in range(4, len(values) - 1)])
    leaps = np.flatnonzero(steady & (values[5:] >= limit.jump * highest))
    if len(leaps):
        before, after, step = highest[leaps[0]], values[leaps[0] + 5], int(rates.steps[leaps[0] + 5])
        yield (
            "warning",
            f"The learning rate jumps from {before:.3g} to {after:.3g} at step {step:,}",
            "Repair the schedule; clipnorm=1.0 limits what a single step can destroy.",
            {"learning_rate": float(after), "before": float(before), "step": step},
        )
