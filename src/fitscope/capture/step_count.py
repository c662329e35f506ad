"""The step number of a batch: from the optimizer if it counts, else from the announced steps.

The optimizer's count comes first, so that a resumed training continues its numbers. It does not change in a custom step that does
not use it; then the announced steps count. These alone would be too many: Keras also announces the step at which a generator
ends, and every step of a joint execution. Loss scaling does not count a batch that overflowed, so a step number is never used
twice.
"""

from __future__ import annotations

from typing import Any

from fitscope.capture.backends import Adapter
from fitscope.plan.anatomy import Anatomy


class StepCount:
    """The count of the steps of one recording."""

    def __init__(self, adapter: Adapter, optimizer: Any) -> None:
        self.next: int | None = None  #: the step after the last one announced
        self.captured: int | None = None  #: the last captured step
        self._adapter = adapter
        self._optimizer = optimizer
        self._counted: int | None = None  # the optimizer's count when the newest epoch began
        self._offset = 0  # steps before this optimizer began to count

    @classmethod
    def of(cls, anatomy: Anatomy, adapter: Adapter, before: StepCount | None) -> StepCount:
        """The count for a model, continued from the previous recording."""
        own = getattr(anatomy.model, "optimizer", None)
        count = cls(adapter, own if own is not None else next(iter(anatomy.optimizers), None))
        if before is None:
            return count
        if before._optimizer is count._optimizer:
            count.next, count._counted, count._offset = before.next, before._counted, before._offset
        else:  # a new compile() counts from 0; a restored optimizer may know better
            count._offset = max(before.done() - count._iterations(), 0)
        return count

    def epoch_start(self, batch: int) -> int:
        """The step of batch 0 of this epoch (also if called in the middle of an epoch)."""
        known = self._iterations()
        moved, self._counted = known != self._counted, known
        announced = 0 if moved or self.next is None else self.next
        return max(known - batch, announced, self._after_captured)

    def done(self) -> int:
        """The number of steps so far: the step that starts from the current weights."""
        known = self._iterations()
        if known == self._counted and self.next is not None:  # the optimizer does not count
            return self.next
        return max(known, self._after_captured)

    @property
    def _after_captured(self) -> int:
        return 0 if self.captured is None else self.captured + 1

    def _iterations(self) -> int:
        """The steps by the optimizer's count; the previous count if a stateless loop carries its state elsewhere."""
        try:
            counted = self._adapter.iterations(self._optimizer) if self._optimizer is not None else 0
            return self._offset + counted
        except RuntimeError:  # JAX raises this for a donated array
            return self._counted or 0
