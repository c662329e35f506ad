"""Passes the ends of batches from Keras to the writer, which derives the loss of each (`batch_loss`).

Keras reports them on any thread and in any order within an epoch. The training thread only appends; the writer thread does
everything else. A captured step already has its loss: the capture is announced before Keras reports the end of its batch, so the
writer knows which steps to wait for. Memory is bounded: if the writer falls far behind, fitscope merges the oldest ends and knows only
the mean of their losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fitscope.pipeline.batch_loss import BatchLoss, End
from fitscope.pipeline.spikes import Spikes
from fitscope.record import Block, Stretch

MOST = 65_536  #: the most ends that wait
OFTEN = (1 << 13) - 1  #: the writer looks at them at batches whose number has none of these bits


class BatchEnds:
    """The ends of the batches of one training."""

    def __init__(self, batch_loss: BatchLoss, odd: Callable[[int], None] = lambda step: None) -> None:  # noqa: ARG005
        self.waiting: deque[tuple[Any, ...]] = deque(maxlen=MOST)  #: each has the fields of an `End`
        self.together = 1  #: steps in an execution
        self._batch_loss = batch_loss
        self._odd, self._spikes = odd, Spikes()  # called with the step of an unusual loss
        self._expected: set[int] = set()  # steps whose captures the writer does not have yet

    # ---- on the training's threads ---------------------------------------------------------------------------

    def expect(self, step: int) -> None:
        """Announces a capture of this step."""
        self._expected.add(step)

    def expect_no_more(self, step: int) -> None:
        """Withdraws the announcement: the writer has the capture, or it will not come."""
        self._expected.discard(step)

    # ---- on the writer's thread --------------------------------------------------------------------------------

    def captured(self, steps: Iterable[int], blocks: Iterable[Block]) -> None:
        """Reports the stats of captured training steps."""
        for block in blocks:
            place = next((i for i, head in enumerate(block.heads) if head.site == "loss"), None)
            if place is not None:
                losses = block.values[place :: len(block.heads)].tolist()
                for at, loss in zip(block.ats, losses, strict=True):
                    self._batch_loss.saw(at.step, loss)
                    if self._spikes.is_one(loss):
                        self._odd(at.step)
        for step in steps:
            self.expect_no_more(step)

    def derive(self, *, last: bool = False) -> Stretch | None:
        """The losses of the batches that ended since the last call, except captured ones. `last` means that no more will come."""
        if last:
            self._expected.clear()
        ends = [End(*self.waiting.popleft()) for _ in range(len(self.waiting))]
        found = self._batch_loss.take(ends, self._expected.__contains__, together=self.together, last=last)
        spike = self._spikes.in_stretch(found) if found is not None else None
        if spike is not None:
            self._odd(spike)
        return found
