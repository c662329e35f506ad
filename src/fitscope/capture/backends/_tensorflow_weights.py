"""The taps on weights and updates in a step of TensorFlow, which writes to variables.

Weights are read before the step, and updates are the difference that the step makes. On JAX both are arguments and results of a
pure function, so its adapter needs none of this. torch copies all small weights at once (`_torch_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fitscope.capture.backends._base import Ask
from fitscope.capture.collector import Collector, guarded, kept
from fitscope.capture.shield import shield
from fitscope.sites import Site


class Values(NamedTuple):
    """How a backend reads a weight, or the needed part of it."""

    before: Callable[[Ask, Any, Site], Any]  #: a value that the step leaves alone
    now: Callable[[Ask, Any, Site], Any]
    minus: Callable[[Any, Any], Any]


@contextmanager
def taps_on_weights(ask: Ask, collector: Collector, values: Values) -> Iterator[None]:
    """Runs a step inside, and shows the weights before it and the updates that it makes."""
    before = []
    with shield(lambda error: setattr(collector.harvest, "broken", error)):
        for weight, site in _wanted(ask):
            with kept(collector, site):
                before.append((weight, site, values.before(ask, weight, site)))
    yield
    for weight, site, old in before:
        with kept(collector, site):
            moved = site.place[0] == "updates"
            guarded(collector, site, values.minus(values.now(ask, weight, site), old) if moved else old)


def _wanted(ask: Ask) -> Iterator[tuple[Any, Site]]:
    """The weights that are recorded themselves: before the step, and for the step's effect on them."""
    for weight in ask.anatomy.weights:
        for kind in ("weights", "updates"):
            if (kind, weight.path) in ask.wants:
                yield weight, Site.at((kind, weight.path))
