"""Counts the losses of one step: the results of `compute_loss`, or the values that a custom step differentiates, each once and in order.

A custom `test_step` may have neither. Then its loss is the value that updates the model's own metric called "loss".

A step that trains one model has one loss, `loss`. A step with several (a GAN, a critic trained three times) has `loss`, `loss#2`
and so on. If the model has several optimizers, and one of them follows each loss, the losses have the optimizers' names:
`loss/d_optimizer`. The follower is known only at the end of the step or its trace, so names are assigned then.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fitscope.capture.collector import Collector, guarded
from fitscope.plan.wants import LOSS
from fitscope.sites import Site


class Losses:
    """Counts the losses of one step, and records the new ones."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._shown: list[Any] = []  # while fitscope holds them, no other object has their id
        self._unclaimed = False  # whether compute_loss returned the newest, and no gradient of it exists yet
        self._applied: list[str] = []
        self.mean = (
            False  #: whether a metric averages the loss; with several replicas, it averages that of all
        )

    @property
    def any(self) -> bool:
        """Whether the step has a loss."""
        return bool(self._shown)

    def computed(self, loss: Any) -> None:
        """Reports a loss that `compute_loss` returned."""
        self._show(loss)
        self._unclaimed = True

    def tracked(self, loss: Any) -> None:
        """Reports the loss that a custom step only gives to its metric."""
        self.mean = True
        self._show(loss)

    def differentiated(self, target: Any) -> None:
        """Reports a value whose gradient with respect to weights is computed: a loss, unless it is a known one.

        It is the last result of `compute_loss`, even if a loss scale changed it.
        """
        if not self._unclaimed and not any(target is known for known in self._shown):
            self._show(target)
        self._unclaimed = False

    def applied(self, optimizer: str) -> None:
        """Reports that the optimizer of this name gets gradients."""
        self._applied.append(optimizer)

    def _show(self, loss: Any) -> None:
        self._shown.append(loss)
        guarded(self._collector, _numbered("", len(self._shown)), loss)

    def names(self) -> dict[Site, Site]:
        """The final names of the losses, if they differ from the first names."""
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
