"""The stats table of a run part by part, for whoever keeps a picture of a growing run up to date.

A part never changes, so whoever has taken one need not look at it again. Where a later attempt takes over,
the parts of the one before are other parts from then on: who has taken one that is no longer listed must
begin anew. Nothing that is read here is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fitscope.read.run import Run
from fitscope.read.tables import Part


class Follow:
    """The parts of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def parts(self) -> list[Part]:
        """The parts there are by now and that can be read, in the order they were written."""
        self._run._now.look()
        return self._run._now.stats.parts

    @property
    def has_samples(self) -> bool:
        """Whether single samples were recorded."""
        return bool(self._run._now.samples.parts)

    def rows(self, part: Part, columns: Sequence[str]) -> pa.Table | None:
        """The rows of a part that count. None if it is damaged, which the run then reports."""
        table = self._run._now.stats
        return table.take(part, columns)
