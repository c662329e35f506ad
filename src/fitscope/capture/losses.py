"""The losses of one step: what `compute_loss` returned, or what a custom step differentiates, each once and in order.

A custom `test_step` may do neither: then its loss is what the model's own metric called "loss" was updated with.

A step that trains one model has one loss, `loss`. A step that computes several (a GAN, a critic trained three times) has
`loss`, `loss#2` and so on. Where the model has several optimizers, and each loss was followed by one of them, the losses bear the
optimizers' names: `loss/d_optimizer`. Which one follows is known only when the step has run, or was traced, to its end; so names
are settled then.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fitscope.capture.collector import Collector, guarded
from fitscope.plan.plan import LOSS
from fitscope.sites import Site


class Losses:
    """Counts the losses of one step, and shows those that nobody has shown yet."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._shown: list[Any] = []  # as long as we hold them, no other object has their identity
        self._unclaimed = False  # the newest came from compute_loss, and no gradient of it was computed yet
        self._applied: list[str] = []

    @property
    def any(self) -> bool:
        """Whether the step has shown a loss."""
        return bool(self._shown)

    def computed(self, loss: Any) -> None:
        """`compute_loss` returned this, or a custom step tracked it."""
        self._show(loss)
        self._unclaimed = True

    def differentiated(self, target: Any) -> None:
        """The gradient of this with respect to weights is computed: it is a loss, unless it is one that we know.

        What `compute_loss` returned just before is what is meant, also where a loss scale made something else of it.
        """
        if not self._unclaimed and not any(target is known for known in self._shown):
            self._show(target)
        self._unclaimed = False

    def applied(self, optimizer: str) -> None:
        """An optimizer, by its name, is given gradients."""
        self._applied.append(optimizer)

    def _show(self, loss: Any) -> None:
        self._shown.append(loss)
        guarded(self._collector, _numbered("", len(self._shown)), loss)

    def names(self) -> dict[Site, Site]:
        """What the losses are called in the end, where that is not what they were called first."""
        if len(self._applied) != len(self._shown) or "" in self._applied:
            return {}
        times: Counter[str] = Counter()
        found = {}
        for number, optimizer in enumerate(self._applied, 1):
            times[optimizer] += 1
            found[_numbered("", number)] = _numbered(optimizer, times[optimizer])
        return found


def _numbered(optimizer: str, number: int) -> Site:
    return Site.at(LOSS, optimizer, "" if number == 1 else f"#{number}")
