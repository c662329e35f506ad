"""Gathered: the numbers of one run for its pictures, read part by part and updated.

`update` takes new rows for everything requested so far; a measure is read on first request. If a new row appears or an attempt
takes over, everything starts again (`generation` grows). Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from fitscope.diagnose import Findings, diagnose
from fitscope.errors import RunError, one_of
from fitscope.read import Run
from fitscope.read.evidence import noted
from fitscope.read.follow import Exchange, Follow
from fitscope.read.parts import Part
from fitscope.show.data import survey
from fitscope.show.data.facts import PlacedFinding, placed
from fitscope.show.data.fill import Filled, PartColumns, columns_of
from fitscope.show.data.matrix import Matrix
from fitscope.show.data.measures import MEASURES, Measure, offered
from fitscope.show.data.modes import MODES, Against, Mode
from fitscope.show.data.rows import Row, rows_of
from fitscope.show.data.survey import Survey
from fitscope.store import schema

MOST_ROWS = 20_000  #: the most rows of the picture; a forged run may name any number of layers
KEEP_BYTES = 1 << 30  #: bytes of matrices; beyond that, the least recently used one is dropped
_ALWAYS = ("activations.zeros", "activations.rms")  #: measures that the first look reads
_KNOWN = {measure.key: measure for measure in MEASURES}

_NOTHING = (0, -1)  # the first and last step of a part without steps

Progress = Callable[[int, int], None]


class Gathered:
    """The numbers of one run."""

    def __init__(self, run: Run, *, quiet: bool = False) -> None:
        """With `quiet` there are no warnings about damage, because the picture shows it."""
        self.run = run
        self.generation = 0
        self.behind = False  #: whether the last update left parts for the next one
        self.follow = Follow(run)
        if quiet:
            self.follow.hush()
        self._begin()

    def _begin(self) -> None:
        self.survey = Survey()
        self._evidence = self.follow.evidence()  # read when it is first needed
        self._diagnosis: Findings | None = None
        self.rows: list[Row] = []
        self.left_out = 0  #: the number of rows beyond `MOST_ROWS`
        self.parts: dict[Part, tuple[int, int]] = {}  #: the parts taken, with their first and last step
        self._filled: dict[str, Filled] = {}
        self._modes: dict[tuple[str, str, int], Mode] = {}
        self._changed = False  # whether the rows changed since the last request

    # ---- reading ----------------------------------------------------------------------------------

    def update(self, progress: Progress | None = None, *, most: int | None = None) -> bool:
        """Takes new rows, reading each part once. Returns whether there were any.

        With `most`, it takes roughly that many parts, those of the first ranks, and leaves the rest to the next update.
        """
        parts = self.follow.parts()
        exchanged = self.follow.exchanged(set(self.parts).difference(parts))
        if exchanged is None:
            self.generation += 1
            self._begin()
        rest = {exchange.whole: exchange.rest for exchange in exchanged or ()}
        known = [part for part in parts if part in rest]
        unknown = [part for part in parts if part not in self.parts and part not in rest]
        new = [*(rest[part] for part in known), *unknown[:most]]
        self.behind = len(unknown[:most]) < len(unknown)
        shown = len(self.rows)
        columns = dict.fromkeys((*survey.COLUMNS, *_columns_first(), *columns_of(self._filled.values())))
        for i, (part, piece) in enumerate(self._pieces(new, list(columns))):
            self._take(part, piece)
            for filled in self._filled.values():
                if piece is None or set(filled.columns) <= set(piece.columns):
                    filled.take(part, piece)
            if progress is not None:
                progress(i + 1, len(new))
        if new:
            self._settle(shown=shown > 0)
        for exchange in exchanged or ():
            self._exchange(exchange)
        return bool(new)

    def _exchange(self, exchange: Exchange) -> None:
        """Replaces several taken parts by one."""
        pieces = [*exchange.pieces, exchange.rest]
        spans = [span for span in map(self.parts.pop, pieces) if span != _NOTHING] or [_NOTHING]
        self.parts[exchange.whole] = (min(first for first, _ in spans), max(last for _, last in spans))
        self.parts = dict(sorted(self.parts.items(), key=lambda item: item[0].key))
        for filled in self._filled.values():
            filled.parts.difference_update(pieces)
            filled.parts.add(exchange.whole)

    def _pieces(
        self, parts: Sequence[Part], columns: Sequence[str]
    ) -> Iterator[tuple[Part, PartColumns | None]]:
        for part, table in self.follow.each(parts, columns):
            yield part, PartColumns(table) if table is not None and table.num_rows else None

    def _take(self, part: Part, piece: PartColumns | None) -> None:
        """Surveys a part, and updates the rows if it has new sites."""
        if piece is None:
            self.parts[part] = _NOTHING
            return
        self.parts[part] = (int(piece["step"].min()), int(piece["step"].max()))
        known = len(self.survey.sites)
        self.survey.take(piece)
        if len(self.survey.sites) > known:
            self._fit()

    def _fit(self) -> None:
        """Updates the rows. Data taken before moves to its new row."""
        rows = rows_of(self.run.model, self.survey.sites, self.run.configuration)
        self.left_out = max(len(rows) - MOST_ROWS, 0)
        rows = rows[:MOST_ROWS]
        if [(r.name, r.sites) for r in rows] == [(r.name, r.sites) for r in self.rows]:
            return
        self.rows = rows
        self._changed = True
        self._modes = {}
        self._filled = {key: filled for key, filled in self._filled.items() if filled.refit(rows)}
        for key in self._first_wanted():
            if key not in self._filled:
                self._filled[key] = Filled(_KNOWN[key], rows)

    def _first_wanted(self) -> list[str]:
        """The measures that the page shows first, and those of the terminal."""
        offered_now = [measure.key for measure in self.measures]
        return [key for key in dict.fromkeys((*_ALWAYS, *offered_now[:1])) if key in offered_now]

    def _settle(self, *, shown: bool) -> None:
        """Updates everything derived from the taken rows. `shown`: whether rows were shown before."""
        if self._changed:
            self._changed = False
            self.generation += shown
        self._fill(list(self._filled))

    def _fill(self, keys: Sequence[str], progress: Progress | None = None) -> None:
        """Updates these measures, reading each part once for all of them."""
        for key in keys:
            if key not in self._filled:
                self._filled[key] = Filled(_KNOWN[key], self.rows)
        filled = [self._filled[key] for key in keys]
        todo = [part for part in self.parts if any(part not in f.parts for f in filled)]
        for i, (part, piece) in enumerate(self._pieces(todo, columns_of(filled))):
            for f in filled:
                if part not in f.parts:
                    f.take(part, piece)
            if progress is not None:
                progress(i + 1, len(todo))

    def held(self) -> AbstractContextManager[None]:
        """Keeps the run as of the last update inside the block, so that an answer looks at the store once."""
        return self.follow.held()

    # ---- answers ---------------------------------------------------------------------------------

    @property
    def measures(self) -> list[Measure]:
        """The measures that the run can show."""
        return offered(self.rows, schema.STATS_SCHEMA.names)

    @property
    def has_samples(self) -> bool:
        return self.follow.has_samples

    @property
    def kept(self) -> set[str]:
        """The sites with kept tensors."""
        return self.follow.kept

    @property
    def findings(self) -> list[PlacedFinding]:
        """The findings, the worst first, each with its place among the rows."""
        return placed(self.diagnosis, self.rows)

    @property
    def diagnosis(self) -> Findings:
        """The findings that the recording process stored. Without them, fitscope diagnoses the run here, and again when it grows."""
        found = noted(self.run, live=True)
        if found is not None:
            return found
        new = self._evidence.update()
        if new or self._diagnosis is None:
            self._diagnosis = diagnose(self._evidence.evidence)
        return self._diagnosis

    def row(self, name: str) -> int:
        """The index of a row."""
        names = [row.name for row in self.rows]
        if name not in names:
            raise RunError("the name of a layer", repr(name), one_of(names, name))
        return names.index(name)

    def matrix(
        self,
        measure: str,
        mode: str = "absolute",
        other: Gathered | None = None,
        progress: Progress | None = None,
    ) -> Matrix:
        """One measure over rows and steps in a mode; `other` is the run to compare with."""
        keys = [m.key for m in self.measures]
        if measure not in keys:
            raise RunError("a measure", repr(measure), one_of(keys, measure))
        if mode not in MODES or (mode == "run" and other is None):
            raise RunError("a mode, and a run to compare with for 'run'", repr(mode), one_of(MODES, mode))
        self._fill([measure], progress)
        held = self._filled[measure] = self._filled.pop(measure)  # the most recently used comes last
        self._let_go(measure)
        if mode == "absolute":
            return held.matrix
        key = (measure, mode, id(other))
        known = self._modes.pop(key, None)
        if known is None or known.of is not held.matrix:
            known = Mode(mode, held.matrix)
        self._modes[key] = known
        related = known.follow(self._against(measure, other) if mode == "run" else None)
        self._let_go(measure)
        return related

    def matrices(self, measures: Sequence[str]) -> dict[str, Matrix]:
        """Several measures at once, reading each part once."""
        self._fill(measures)
        return {key: self._filled[key].matrix for key in measures}

    def _against(self, measure: str, other: Gathered | None) -> Against | None:
        """The current matrix of another run, if it has that measure."""
        if other is None or measure not in [m.key for m in other.measures]:
            return None
        theirs = {row.name: i for i, row in enumerate(other.rows)}
        return Against(other.matrix(measure), np.array([theirs.get(row.name, -1) for row in self.rows]))

    def _let_go(self, keep: str) -> None:
        """Limits memory: drops the least recently used modes first, then measures."""
        while self._kept() > KEEP_BYTES and len(self._modes) > 1:
            del self._modes[next(iter(self._modes))]
        while self._kept() > KEEP_BYTES:
            oldest = next((key for key in self._filled if key not in (keep, *_ALWAYS)), None)
            if oldest is None:
                return
            gone = self._filled.pop(oldest)
            self._modes = {key: mode for key, mode in self._modes.items() if mode.of is not gone.matrix}

    def _kept(self) -> int:
        matrices = [f.matrix for f in self._filled.values()] + [mode.matrix for mode in self._modes.values()]
        return sum(matrix.nbytes for matrix in matrices)


def _columns_first() -> tuple[str, ...]:
    """The table columns of the measures that are always needed, before the contents of the run are known."""
    return tuple(column for key in _ALWAYS for column in _KNOWN[key].columns)
