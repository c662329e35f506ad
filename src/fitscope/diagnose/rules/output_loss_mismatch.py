"""`output_loss_mismatch`: an output that does not fit its loss.

Looks at the configuration, before the first step: probabilities given as logits and the other way round, one unit for several
classes, a nonlinearity that cuts off values the targets have. The range of the targets is used once it is known.

False alarms: a custom loss or `train_step` may do anything, so those are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from fitscope.diagnose.curves import highest, lowest, mean, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Severity
from fitscope.diagnose.network import SOFTMAX_LIKE
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import BINARY, CATEGORICAL, REGRESSION, OutputHead, heads

#: The lowest and highest value a nonlinearity gives.
_RANGES = {
    "sigmoid": (0, 1), "hard_sigmoid": (0, 1), "softmax": (0, 1), "tanh": (-1, 1), "relu": (0, np.inf),
    "softplus": (0, np.inf), "relu6": (0, 6),
}  # fmt: skip


class Mismatch(NamedTuple):
    """One combination that does not fit. Texts may name `{loss}`, `{output}`, `{activation}` and `{units}`."""

    holds: Callable[[OutputHead], bool]
    severity: Severity
    text: str
    cure: str


#: Nonlinearities known not to return probabilities. A custom function may.
_OTHERS = frozenset((
    "relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "gelu", "silu", "tanh", "softplus", "softsign", "exponential", "mish",
))  # fmt: skip


def _softmax(head: OutputHead) -> bool:
    return head.activation in SOFTMAX_LIKE


#: The first that holds is reported.
MISMATCHES = (
    Mismatch(
        lambda h: h.loss in CATEGORICAL and h.units == 1,
        "error",
        "{loss} compares classes, but {output} has one unit",
        "Use one unit for each class with softmax, or BinaryCrossentropy with one sigmoid unit.",
    ),
    Mismatch(
        lambda h: _softmax(h) and h.units == 1,
        "error",
        "The softmax of {output} over one unit is always 1",
        "Use a sigmoid for a class of two, or no activation for a regression.",
    ),
    Mismatch(
        lambda h: h.loss in CATEGORICAL and _softmax(h) and h.from_logits,
        "error",
        "{loss}(from_logits=True) applies a softmax, but {output} has one already",
        "Remove the softmax, or say from_logits=False.",
    ),
    Mismatch(
        lambda h: h.loss in BINARY and h.activation == "sigmoid" and h.from_logits,
        "error",
        "{loss}(from_logits=True) applies a sigmoid, but {output} has one already",
        "Remove the sigmoid, or say from_logits=False.",
    ),
    Mismatch(
        lambda h: h.loss in CATEGORICAL | BINARY and h.linear and not h.from_logits,
        "error",
        "{loss} takes probabilities, but {output} is linear",
        "Say from_logits=True, or give the output a softmax (several classes) or sigmoid (two).",
    ),
    Mismatch(
        lambda h: h.loss in CATEGORICAL and h.activation == "sigmoid" and not h.from_logits,
        "warning",
        "{loss} takes probabilities that add up to one, but {output} ends in sigmoid",
        "Replace sigmoid by softmax; for labels that do not exclude one another use BinaryCrossentropy.",
    ),
    Mismatch(
        lambda h: (
            h.loss in CATEGORICAL
            and (h.activation in _OTHERS or (h.activation == "sigmoid" and h.from_logits))
        ),
        "error",
        "{loss} takes probabilities or logits, but {output} ends in {activation}",
        "Use softmax, or no activation and from_logits=True.",
    ),
    Mismatch(
        lambda h: h.loss in BINARY and _softmax(h) and (h.units or 0) > 2,
        "note",
        "{output} has a softmax over {units} classes, and {loss} treats each by itself",
        "Use CategoricalCrossentropy for classes that exclude one another, sigmoid for labels that do not.",
    ),
    Mismatch(
        lambda h: h.loss in BINARY and h.activation in _OTHERS,
        "error",
        "{loss} takes probabilities or logits, but {output} ends in {activation}",
        "Use sigmoid, or no activation and from_logits=True.",
    ),
)


@rule("output_loss_mismatch", sees="an output that does not give what its loss takes")
def output_loss_mismatch(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    del limit
    known = [head for head in heads(evidence) if head.known]
    if not known:
        yield NotJudged("outputs and losses are not known from the configuration")
        return
    for head in known:
        found = _overlapping(evidence, head) if len(known) == 1 else None
        found = found or next((one for one in MISMATCHES if one.holds(head)), None)
        found = found or (_unreachable(evidence, head) if len(known) == 1 else None)
        if found is None:
            continue
        text = found.text.format(
            loss=head.loss, output=f"the output {head.layer}", activation=head.activation, units=head.units
        )
        yield Finding(
            "output_loss_mismatch",
            found.severity,
            site=f"activations/{head.layer}" if head.layer else None,
            layer=head.layer,
            last_step=evidence.last_step or 0,
            message=f"{text[0].upper()}{text[1:]}.",
            evidence={
                "activation": head.activation or "linear",
                "loss": head.loss,
                "from_logits": head.from_logits,
                "units": head.units,
            },
            cure=found.cure,
            confidence=0.6 if found.severity == "note" else 0.95,
        )


def _overlapping(evidence: Evidence, head: OutputHead) -> Mismatch | None:
    """Several labels for one sample, where the output or the loss shares one probability among the classes."""
    targets = next(evidence.of("targets"), None)
    shares = head.loss == "CategoricalCrossentropy" or (head.loss in BINARY and _softmax(head))
    if targets is None or not shares or (head.units or 0) < 2 or targets.shape[-1:] != (head.units,):
        return None
    total = mean(targets.mean) * (head.units or 0)
    if not total > 1.1 or lowest(targets.min) < 0:
        return None
    text = f"The targets of a sample add up to {total:.3g} on average, but {{output}} with {{loss}} shares 1 among {{units}} classes"
    return Mismatch(
        lambda _: True,
        "error",
        text,
        "For labels that do not exclude one another use sigmoid and BinaryCrossentropy.",
    )


def _unreachable(evidence: Evidence, head: OutputHead) -> Mismatch | None:
    """Targets that the nonlinearity of the output cannot give."""
    targets = next(evidence.of("targets"), None)
    if targets is None or head.loss not in REGRESSION or head.activation not in _RANGES:
        return None
    low, high = _RANGES[head.activation]
    least, most = lowest(targets.min), highest(targets.max)
    usual = max(median(targets.std), 1e-12)
    if least >= low - 0.2 * usual and most <= high + 0.2 * usual:
        return None
    text = f"The targets run from {least:.4g} to {most:.4g}, but {{output}} ends in {{activation}}, which gives {low:g} to {high:g}"
    return Mismatch(
        lambda _: True, "error", text, "Use a linear output, or scale the targets into that range."
    )
