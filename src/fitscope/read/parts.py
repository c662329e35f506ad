"""One part of a table, read only as far as needed.

A part never changes, so the rows read from it stay in memory until they are dropped. The footer of a large part has the place of
each site's rows, so a reader reads only the row groups that hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fitscope.read.sources import FACTS, Rest, RowSpan, Source, rows_by_site, sound
from fitscope.sites import TRAIN
from fitscope.store.stats_table import facts


class Part:
    """One immutable part of a table; `end` is the step at which a later attempt took over.

    `becomes` is the key of the part that will contain its rows, if they are not in one yet. `older` means that the run was
    started in an older format, so columns may be missing.
    """

    def __init__(
        self,
        source: Source,
        key: str,
        end: int | None,
        form: pa.Schema,
        becomes: str | None = None,
        *,
        older: bool = False,
    ) -> None:
        self.source = source
        self.key = key
        self.end = end
        self.becomes = becomes
        self._form = form
        self._older = older
        self._columns_bytes = 0
        self._columns: dict[tuple[int | None, str], pa.Array] = {}  # columns of a row group, or of all rows
        self._where: Mapping[str, list[RowSpan]] | None = None if "site" in form.names else {}

    def without(self, taken: Counter[str]) -> Part:
        """This part without the first rows of each site, which the reader has taken before."""
        return Part(Rest(self.source, taken), self.key, self.end, self._form, older=self._older)

    @property
    def kept_bytes(self) -> int:
        return self._columns_bytes + self.source.kept_bytes

    @property
    def sites(self) -> Iterable[str]:
        return self._where or ()

    def lacks(self, columns: Sequence[str], site: str | None = None) -> bool:
        return self._where is None or any(self._missing(columns, group) for group in self._groups(site))

    def load(self, columns: Sequence[str], site: str | None = None) -> None:
        """Reads the missing columns, for one site if its rows can be located."""
        if self._where is None:
            self._survey(columns)
        for group in self._groups(site):
            missing = self._missing(columns, group)
            if missing:
                table = self.owned(missing) if group is None else self._read_group(missing, group)
                self._keep(table, missing, group)

    def let_go(self) -> None:
        self.source.let_go()
        self._columns, self._columns_bytes = {}, 0

    def rows(self, columns: Sequence[str], site: str | None) -> list[list[pa.Array]]:
        """Loaded columns, for all rows or one site, in one or several pieces."""
        if site is None:
            return [[self._columns[None, name] for name in columns]]
        assert self._where is not None
        return [
            [_picked(self._columns[group, name], rows) for name in columns]
            for group, rows in self._where.get(site, ())
        ]

    def owned(self, columns: Iterable[str], sites: Iterable[str] | None = None) -> pa.Table:
        """Reads columns of the rows that count: those of steps that no later attempt repeated.

        A pass at the step where the next attempt started belongs to both, so it counts. With `sites`, the result may omit other
        sites, which is cheaper.
        """
        if sites is not None:
            where = self.source.sites(self.end)
            if where is not None:
                groups = sorted(
                    {group for site in sites for group, _ in where.get(site, ()) if group is not None}
                )
                tables = [self._read_group(sorted({*columns}), group) for group in groups]
                return pa.concat_tables(tables) if tables else self._form.empty_table()
        if self.end is None:
            return self.read(sorted({*columns}))
        table = self.read(sorted({*columns, "step"}))
        shared = pc.equal(table["step"], self.end)
        counts = pc.less(table["step"], self.end)
        if pc.any(shared).as_py():
            of_pass = pc.not_equal(self.read(["pass"])["pass"].cast(pa.string()), TRAIN)
            counts = pc.or_(counts, pc.and_(shared, of_pass))
        return table.filter(counts)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads columns from the store, all by default. A column that an older part lacks is null."""
        return self._formed(sound(self.source.read(self._asked(columns))), columns or ())

    def _read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        return self._formed(sound(self.source.read_group(self._asked(columns) or (), group)), columns)

    def _asked(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        """The columns to read from the file: in format 1 the facts of a site are in its name, and `pass` is called `phase`."""
        if not self._older or columns is None or not FACTS & {*columns}:
            return columns
        return [*{*columns, "site" if "site" in self._form.names else "phase"}]

    def _formed(self, table: pa.Table, columns: Iterable[str]) -> pa.Table:
        for name in columns:
            if name not in table.column_names:
                table = table.append_column(name, self._derived(table, name))
            elif self._older and name in FACTS:  # as for the derived columns
                place = table.column_names.index(name)
                table = table.set_column(place, name, table[name].cast(self._form.field(name).type))
        return table

    def _derived(self, table: pa.Table, name: str) -> pa.Array:
        """Computes a column that an older part lacks."""
        if name in FACTS and "site" in table.column_names:
            sites = table["site"].combine_chunks()
            return facts(sites.dictionary.to_pylist())[name].take(sites.indices).dictionary_decode()
        if name == "pass" and "phase" in table.column_names:
            return table["phase"].combine_chunks()
        return pa.nulls(table.num_rows, self._form.field(name).type)

    def _survey(self, columns: Sequence[str]) -> None:
        """Locates the rows of each site. If that requires reading them, reads `columns` as well."""
        self._where = self.source.sites(self.end)
        if self._where is None:
            missing = self._missing(columns, None)
            table = self.owned([*missing, "site"])
            self._where = rows_by_site(table["site"].combine_chunks())
            self._keep(table, missing, None)

    def _groups(self, site: str | None) -> list[int | None]:
        """The row groups to read for a site."""
        if site is None:
            return [None]
        return list(dict.fromkeys(group for group, _ in (self._where or {}).get(site, ())))

    def _missing(self, columns: Sequence[str], group: int | None) -> list[str]:
        return [name for name in columns if (group, name) not in self._columns]

    def _keep(self, table: pa.Table, names: Iterable[str], group: int | None) -> None:
        for name in names:
            self._columns[group, name] = column = table[name].combine_chunks()
            self._columns_bytes += column.nbytes


def _picked(array: pa.Array, rows: slice | np.ndarray[Any, Any]) -> pa.Array:
    if isinstance(rows, slice):
        return array.slice(rows.start, rows.stop - rows.start)
    return array.take(pa.array(rows))
