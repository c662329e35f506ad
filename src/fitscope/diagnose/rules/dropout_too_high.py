"""`dropout_too_high`: layers that drop nearly all of their input.

Looks at the rate of each dropout layer, and of the dropout inside recurrent layers. Keras's rate is the share that is dropped, so 0.9
keeps a tenth; users who think of the share that is kept pass the opposite.

False alarms: dropout on very wide, redundant inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged
from fitscope.diagnose.rule import rule
from fitscope.diagnose.setup import number


@rule("dropout_too_high", sees="a dropout layer that drops nearly everything")
def dropout_too_high(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    network = evidence.network
    rates = {n: _rate(evidence, n) for n in network.order}
    if not any(rate is not None for rate in rates.values()):
        if not evidence.configuration:
            yield NotJudged("the configuration was not recorded")
        return
    for layer, rate in rates.items():
        if rate is not None and rate >= limit.note:
            yield Finding(
                "dropout_too_high",
                "warning" if rate >= limit.rate else "note",
                site=f"activations/{layer}",
                layer=layer,
                last_step=evidence.last_step or 0,
                message=f"{layer} drops {100 * rate:.3g} % of its input: {100 * (1 - rate):.3g} % of the units are left in each step.",
                evidence={"rate": rate},
                cure="Use a rate of 0.1 to 0.5. In Keras the rate is the share that is dropped, not the one that is kept.",
                confidence=0.85,
            )


def _rate(evidence: Evidence, layer: str) -> float | None:
    """The largest share that the layer drops; None if it has no such setting."""
    network = evidence.network
    names = ("rate",) if "Dropout" in network.kind(layer) else ("dropout", "recurrent_dropout")
    given = [rate for name in names if (rate := number(network.get(layer, name))) is not None]
    return max(given, default=None)
