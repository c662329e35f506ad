"""Draws the live picture of a training in a notebook: decides when, and collects the facts that it shows.

The training thread shows the first picture, in the cell that runs. From then on the writer thread draws, from the evidence of the
diagnosis, at most every second, for at most 1 % of the time, and more rarely in a long training. The last picture stays in the
cell and says how the training ended. An error here ends the picture and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fitscope.pipeline.costs import Costs
from fitscope.pipeline.ending import Ending
from fitscope.pipeline.notebook import NotebookCell

if TYPE_CHECKING:
    from fitscope.diagnose import Evidence, Findings
    from fitscope.show.words import Training

LEAST_PAUSE = 1.0  #: the least seconds between two pictures,
MOST_PAUSE = 10.0  #: the most, in a training of half an hour or longer
SHARE = 0.01  #: the share of the time that drawing may take
PATIENCE = 3.0  #: seconds that the end of a cell waits for the last picture of a training that ended with an exception


class LivePicture:
    """The picture of one training."""

    def __init__(self, costs: Costs, cell: Callable[[], NotebookCell], model: str | None) -> None:
        self.path: str | None = None  #: the path of the run
        self.over: Callable[[], bool] = lambda: (
            False
        )  #: whether the training has ended, or ends with an exception
        self.look: Callable[[], None] = lambda: None  #: wakes the writer thread to find out
        self._costs = costs
        self._make_cell = cell
        self._model = model  # the name of the model
        self._cell: NotebookCell | None = None  # the cell, once the picture has begun
        self._stop: Callable[[], None] = lambda: None
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._begun: int | None = None
        self._total: int | None = None
        self._next = 0.0
        self._pace: deque[tuple[float, int]] = deque(maxlen=8)  # times, and the steps reached then
        self._done = False

    # ---- on the training thread ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Shows the picture for the first time, in the cell that runs now."""
        if self._cell is None:
            from fitscope.diagnose import Evidence

            self._cell = self._make_cell()
            self._stop = self._cell.before_its_end(self._cell_ends)
            self._show(Evidence({"name": self._model}), None, self._training(None, None))

    def epoch(self, epoch: int, epochs: int | None) -> None:
        self._epoch, self._epochs = epoch, epochs

    def expect(self, step: int, ahead: int | None) -> None:
        """Begins an epoch at this step, with this many steps ahead if their number is known."""
        self._begun = step if self._begun is None else self._begun
        self._total = None if ahead is None else step + ahead

    def _cell_ends(self, *_: object) -> None:
        """Waits for the last picture if the training is over: after an exception nothing else waits for the writer thread."""
        until = time.monotonic() + PATIENCE
        while self.over() and not self._done and time.monotonic() < until:
            self.look()
            time.sleep(0.02)

    # ---- on the writer's thread ----------------------------------------------------------------------------

    def pause(self) -> float:
        """Seconds until the next picture is due."""
        return max(self._next - time.monotonic(), 0.0)

    def draw(self, evidence: Evidence, found: Findings | None, ending: Ending | None = None) -> None:
        """Draws the current state of the training, or its end."""
        if self._cell is None or self._done:
            return
        began = time.thread_time()
        try:
            self._show(evidence, found, self._training(evidence.last_step, ending))
        finally:
            long = min(self._costs.wall / 180, MOST_PAUSE)
            self._next = time.monotonic() + max(LEAST_PAUSE, long, (time.thread_time() - began) / SHARE)
            if ending is not None:
                self.end()

    def end(self) -> None:
        """Ends the drawing."""
        self._done = True
        self._stop()

    def _show(self, evidence: Evidence, found: Findings | None, training: Training) -> None:
        from fitscope.show.live import drawn  # imported only in a notebook

        assert self._cell is not None
        self._cell.show(drawn(evidence, found, training))

    def _training(self, last: int | None, ending: Ending | None) -> Training:
        from fitscope.show.words import Training

        costs = self._costs
        return Training(
            status="running" if ending is None else ending.status,
            ended_by=None if ending is None else ending.by_what,
            path=self.path,
            begun=self._begun or 0,
            total=self._total,
            epoch=self._epoch,
            epochs=self._epochs,
            seconds=costs.wall,
            left=self._left(last),
            cost=None if last is None else costs.share(),
        )

    def _left(self, last: int | None) -> float | None:
        """Seconds until the training is over, by its newest pace."""
        if last is None:
            return None
        self._pace.append((time.monotonic(), last))
        (begun, first), (ended, newest) = self._pace[0], self._pace[-1]
        if self._total is None or newest <= first:
            return None
        return max(self._total - 1 - last, 0) * (ended - begun) / (newest - first)
