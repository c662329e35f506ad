"""The stats table of a run part by part, for whoever keeps a picture of a growing run up to date.

A part never changes, so whoever has taken one need not look at it again. Where a later attempt takes over,
the parts of the one before are other parts from then on: who has taken one that is no longer listed must
begin anew. Nothing that is read here is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

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

    @property
    def kept(self) -> set[str]:
        """The sites of which whole tensors were kept."""
        return {site for rank in self._run._now.ranks for site, _ in rank.arrays()}

    def each(self, parts: Sequence[Part], columns: Sequence[str]) -> Iterator[tuple[Part, pa.Table | None]]:
        """`rows` of one part after another. The next ones are read while the caller works on this one."""
        table = self._run._now.stats
        ahead = table.readers
        with ThreadPoolExecutor(ahead) as pool:
            reading: deque[tuple[Part, Future[pa.Table | None]]] = deque()
            for part in parts:
                reading.append((part, pool.submit(table.take, part, columns)))
                if len(reading) > ahead:
                    first, rows = reading.popleft()
                    yield first, rows.result()
            for first, rows in reading:
                yield first, rows.result()

    def rows(self, part: Part, columns: Sequence[str]) -> pa.Table | None:
        """The rows of a part that count. None if it is damaged, which the run then reports."""
        table = self._run._now.stats
        return table.take(part, columns)
