"""Fills the matrices of measures from parts of the stats table: column by column, never row by row.

A `PartColumns` holds the columns of one part, for the survey and any number of measures. `Filled` is the matrix of one measure,
with the parts that it contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from fitscope.read.parts import Part
from fitscope.show.data.matrix import INF, NAN, VALUE, Array, Matrix
from fitscope.show.data.measures import NOTES, Groups, Measure
from fitscope.show.data.rows import Row


class PartColumns:
    """The columns of one part, as arrays."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.count: int = table.num_rows
        column = table["site"].unify_dictionaries().combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        self.names: list[str] = column.dictionary.to_pylist()
        self.codes: Array = column.indices.to_numpy(
            zero_copy_only=False
        )  #: for each row, the index of its site in `names`
        self._columns: dict[str, Array] = {}

    @property
    def columns(self) -> list[str]:
        """The columns that were read."""
        return list(self._table.column_names)

    def __getitem__(self, column: str) -> Array:
        known = self._columns.get(column)
        if known is None:
            known = self._columns[column] = self._table[column].to_numpy()
        return known

    def of(self, site: str) -> Array:
        """The rows of one site."""
        return (
            np.flatnonzero(self.codes == self.names.index(site)) if site in self.names else np.empty(0, int)
        )

    def largest(self, column: str) -> Array:
        """The largest value in a column for each name; -1 without a row."""
        found = np.full(len(self.names), -1, np.int64)
        np.maximum.at(found, self.codes, self[column])
        return found

    def stretches(self, among: Array | None = None) -> Iterator[tuple[str, Array]]:
        """The rows of each site, for all sites or for these."""
        codes = self.codes if among is None else self.codes[among]
        order = np.argsort(codes, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            if len(rows):
                yield self.names[codes[rows[0]]], rows if among is None else among[rows]


class Filled:
    """The matrix of a measure, and the parts that it contains."""

    def __init__(self, measure: Measure, rows: Sequence[Row]) -> None:
        self.measure = measure
        self.matrix = Matrix(len(rows), measure.scale)
        self.parts: set[Part] = set()
        self._place(rows)

    def _place(self, rows: Sequence[Row]) -> None:
        self._rows = [row.name for row in rows]
        self._of = {
            site: (i, kind)
            for i, row in enumerate(rows)
            for kind, name in enumerate(self.measure.kinds)
            for site in row.sites.get(name, ())
        }
        self._single = len(self._of) == len({row for row, _ in self._of.values()})

    @property
    def columns(self) -> tuple[str, ...]:
        """The table columns that it needs."""
        return tuple(dict.fromkeys(("site", "step", *NOTES, *self.measure.columns)))

    def refit(self, rows: Sequence[Row]) -> bool:
        """Changes the rows, because new sites appeared that no taken part has.

        Returns False if the matrix is no longer valid, because a site moved to another row.
        """
        before, old = self._of, self._rows
        self._place(rows)
        places = {name: i for i, name in enumerate(self._rows)}
        if any(self._of.get(site) != (places.get(old[row]), kind) for site, (row, kind) in before.items()):
            return False
        self.matrix = self.matrix.moved(np.array([places.get(name, -1) for name in old], np.int64), len(rows))
        return True

    def take(self, part: Part, piece: PartColumns | None) -> None:
        """Takes the columns of a part, if it was readable."""
        self.parts.add(part)
        if piece is None or not piece.count:
            return
        rows, kinds = np.array([self._of.get(name, (-1, 0)) for name in piece.names], np.int32).T.copy()
        row = rows[piece.codes]
        inside = _places(row >= 0)
        wanted = dict.fromkeys(("step", *NOTES, *self.measure.columns))
        c = {name: piece[name][inside] for name in wanted}
        row, c["kind"] = row[inside], kinds[piece.codes[inside]]
        if not len(row):
            return
        starts = np.arange(len(row))
        if not self._single:
            order = np.lexsort((c["step"], row))
            c = {name: values[order] for name, values in c.items()}
            row = row[order]
            starts = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(c["step"], prepend=-1) != 0))
        groups = Groups(starts, len(row))
        number = self.measure.value(c, groups)
        flags = np.where(np.isfinite(number), VALUE, 0).astype(np.uint8)
        for name, flag in (("infs", INF), ("nans", NAN)):
            if c[name].any():
                flags[groups.sum(c[name]) > 0] |= flag
        if not groups.single:
            row, c["step"] = row[starts], c["step"][starts]
        self.matrix.add(row, c["step"], number, flags)


def _places(inside: Array) -> Array | slice:
    """The indices where a condition holds; as a slice if they are consecutive, which needs no copy."""
    found = np.flatnonzero(inside)
    if len(found) and found[-1] - found[0] + 1 == len(found):
        return slice(int(found[0]), int(found[-1]) + 1)
    return found


def columns_of(filled: Iterable[Filled]) -> list[str]:
    """The columns that all of these matrices need."""
    return list(dict.fromkeys(column for f in filled for column in f.columns))
