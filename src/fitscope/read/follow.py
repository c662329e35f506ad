"""Reads the stats table of a growing run part by part, for a reader that keeps a picture up to date.

A part never changes, so a reader takes it once. A part can disappear for two reasons. The newest rows of a long run are separate
parts until one part replaces them: `exchanged` says what to take from the new part. If a later attempt takes over, the parts of the
earlier one change, and a reader that has taken one must start again. This module keeps nothing that it reads.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NamedTuple

import pyarrow as pa

from fitscope.diagnose.pulses import Pulses
from fitscope.read.evidence import StoredEvidence
from fitscope.read.parts import Part
from fitscope.read.run import Run
from fitscope.read.sources import TailRows


class Exchange(NamedTuple):
    """A part that replaces others."""

    whole: Part
    pieces: list[Part]  #: the parts that the reader has taken
    rest: Part  #: the rows of the new part that it has not taken


class Follow:
    """The parts of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def hush(self) -> None:
        """Stops warnings about damage, because the caller shows the run's list of it."""
        self._run._state.damaged.quiet = True

    def held(self) -> AbstractContextManager[None]:
        """Keeps the run as of the last look inside the block."""
        return self._run._state.held()

    def pulses(self) -> tuple[Pulses | None, dict[int, str]]:
        """The pulses of the ranks, and the status of each, as of the last look."""
        state = self._run._state
        said = {rank.number: rank.status().get("status", "not started") for _, rank in state.newest_ranks()}
        return self._run._pulses(), said

    def parts(self) -> list[Part]:
        """The readable parts so far, in the order they were written."""
        self._run._state.look()
        return self._run._state.stats.parts

    def evidence(self) -> StoredEvidence:
        """The evidence of the run for the rules; nothing is read before its `update`."""
        return StoredEvidence(self._run, self._run._state.stats)

    def exchanged(self, taken: Iterable[Part]) -> list[Exchange] | None:
        """The replacements of taken parts that are no longer listed. None if the reader must start again."""
        pieces: dict[str, list[Part]] = {}
        for part in taken:
            pieces.setdefault(part.becomes or "", []).append(part)
        now = {part.key: part for part in self._run._state.stats.parts}
        found = []
        for key, some in pieces.items():
            whole = now.get(key)
            if whole is None or any(part.end != whole.end for part in some):
                return None
            # The rows of each site are in the order in which they came, so the taken ones come first.
            counts: Counter[str] = Counter()
            for part in some:
                assert isinstance(part.source, TailRows)
                counts += part.source.counted()
            rest = whole.without(counts)
            found.append(Exchange(whole, some, rest))
        return found

    @property
    def has_samples(self) -> bool:
        """Whether samples were recorded."""
        return bool(self._run._state.samples.parts)

    def rows(self, part: Part, columns: Sequence[str], sites: Sequence[str] | None = None) -> pa.Table | None:
        """The rows of a part that count. None if it is damaged, which the run then reports.

        With `sites`, the result may omit other sites.
        """
        return self._run._state.stats.take(part, columns, sites)

    @property
    def kept(self) -> set[str]:
        """The sites with kept tensors."""
        return {site for rank in self._run._state.ranks for site in rank.arrays()}

    def each(self, parts: Sequence[Part], columns: Sequence[str]) -> Iterator[tuple[Part, pa.Table | None]]:
        """`rows` of one part after another. The next parts are read while the caller works on this one."""
        table = self._run._state.stats
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
