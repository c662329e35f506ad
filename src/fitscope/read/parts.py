"""One part of a table, read only as far as needed.

A part never changes, so what was read stays in memory until it is freed. If the footer of a large part says where the rows of each site
are, only those row groups are read. Every page is checked against its checksum, so damage raises an error and never gives a wrong number.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fitscope.sites import TRAIN
from fitscope.store._base import Objects
from fitscope.store.places import is_local
from fitscope.store.tables import facts
from fitscope.store.tail import SITES, sort

_REPETITIVE = ("site", "kind", "layer", "weight", "pass", "dtype", "output")

FACTS = {"kind", "layer", "weight", "pass"}  #: columns that say what a site is

#: Where rows are: in which row group, None for all together, and there one stretch or the number of each.
RowSpan = tuple[int | None, slice | np.ndarray[Any, Any]]


def _repetitive(form: pa.Schema) -> list[str]:
    """The columns with few distinct names, kept as dictionaries. A sample's `weight` is a number."""
    return [name for name in _REPETITIVE if name in form.names and pa.types.is_string(form.field(name).type)]


class Source(ABC):
    """The source of the rows of a part."""

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """The number of bytes that `let_go` would free."""

    @abstractmethod
    def let_go(self) -> None:
        """Frees everything that can be read again."""

    @abstractmethod
    def read(self, columns: Sequence[str] | None) -> pa.Table:
        """Reads columns, or all of them, for all rows. Missing columns are omitted."""

    @abstractmethod
    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        """Reads columns of one row group, numbered as in `sites`."""

    @abstractmethod
    def sites(self, before: int | None) -> Mapping[str, list[RowSpan]] | None:
        """The position of the rows of each site; None if that requires reading them, or if all are `before`."""


class Stored(Source):
    """A Parquet file in a store."""

    def __init__(self, objects: Objects, key: str, form: pa.Schema, *, older: bool = False) -> None:
        self._older = older  # it may lack the facts of sites
        self._objects = objects
        self._key = key
        self._form = form
        self._footer: pq.FileMetaData | None = None
        self._data: bytes | None = None  # of a part elsewhere, which is cheaper to keep than to fetch again

    @property
    def kept_bytes(self) -> int:
        return len(self._data or b"")

    def read(self, columns: Sequence[str] | None) -> pa.Table:
        with self._open() as file:
            # Arrow's own threads only get in the way of something so small.
            return file.read(columns=columns, use_threads=False)

    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        with self._open() as file:
            return file.read_row_group(group, columns=columns, use_threads=False)

    def sites(self, before: int | None) -> Mapping[str, list[RowSpan]] | None:
        if self._footer is None:
            self._open().close()
        assert self._footer is not None
        said = (self._footer.metadata or {}).get(SITES)
        if said is None:
            return None
        groups = [self._footer.row_group(n) for n in range(self._footer.num_row_groups)]
        if before is not None and not all(_last_step(group) < before for group in groups):
            return None
        return _Stretches(json.loads(said), [group.num_rows for group in groups])

    def let_go(self) -> None:
        self._data = None

    def fetch(self) -> pa.Buffer:
        """The whole file, kept in memory."""
        if self._data is None:
            self._data = self._objects.get(self._key)
        return pa.py_buffer(self._data)

    def _open(self) -> pq.ParquetFile:
        local = is_local(self._objects) is not None
        file = pq.ParquetFile(
            pa.OSFile(self._objects.describe(self._key)) if local else pa.BufferReader(self.fetch()),
            metadata=self._footer,
            page_checksum_verification=True,
            read_dictionary=[name for name in _repetitive(self._form) if not (self._older and name in FACTS)],
        )
        self._footer = file.metadata
        return file


class _Stretches(Mapping[str, list[RowSpan]]):
    """The position of each site's rows in a part sorted by site. It is computed per site on request, because a reader mostly
    wants one site of many parts.
    """

    def __init__(self, rows: Sequence[tuple[str, int]], groups: Sequence[int]) -> None:
        self._edges = [0, *accumulate(groups)]
        ends = accumulate(count for _, count in rows)
        self._rows = {site: (end - count, end) for (site, count), end in zip(rows, ends, strict=True)}

    def __getitem__(self, site: str) -> list[RowSpan]:
        edges, (start, end) = self._edges, self._rows[site]
        return [
            (n, slice(max(edges[n], start) - edges[n], min(edges[n + 1], end) - edges[n]))
            for n in range(bisect_right(edges, start) - 1, bisect_left(edges, end))
        ]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Whole(Source):
    """A source that is only read as a whole, and keeps nothing that could be read again."""

    kept_bytes = 0

    def let_go(self) -> None:
        pass

    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        raise NotImplementedError("there are no row groups")

    def sites(self, before: int | None) -> None:  # noqa: ARG002
        return None


class TailRows(Whole):
    """Rows of a tail, sorted as in the later part."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches).replace_schema_metadata()
        repetitive = _repetitive(table.schema)
        for place, name in enumerate(table.column_names):
            if name in repetitive:
                table = table.set_column(place, name, table[name].combine_chunks().dictionary_encode())
        self.table = sort(table, "site") if "site" in table.column_names else table

    def counted(self) -> Counter[str]:
        """The number of rows of each site."""
        names = self.table["site"].value_counts()
        return Counter({item["values"]: item["counts"] for item in names.to_pylist()})

    def read(self, columns: Sequence[str] | None) -> pa.Table:
        there = self.table.column_names
        return self.table if columns is None else self.table.select([c for c in columns if c in there])


class Rest(Whole):
    """The rows of a part without the first ones of each site."""

    def __init__(self, whole: Source, taken: Counter[str]) -> None:
        self._whole = whole
        self._taken = taken

    def read(self, columns: Sequence[str] | None) -> pa.Table:
        table = self._whole.read(None if columns is None else [*{*columns, "site"}])
        number = np.arange(table.num_rows)
        keep = np.ones(table.num_rows, bool)
        for site, places in _rows_by_site(table["site"].combine_chunks()).items():
            for _, rows in places:
                keep[number[rows][: self._taken[site]]] = False
        table = table.filter(pa.array(keep))
        return table if columns is None else table.select([c for c in columns if c in table.column_names])


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
        self._columns: dict[tuple[int | None, str], pa.Array] = {}  # of a row group, or of all together
        self._where: Mapping[str, list[RowSpan]] | None = None if "site" in form.names else {}

    def without(self, taken: Counter[str]) -> Part:
        """The same part without the first rows of each site, which were taken before."""
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
        return self._formed(self.source.read(self._asked(columns)), columns or ())

    def _read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        return self._formed(self.source.read_group(self._asked(columns) or (), group), columns)

    def _asked(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        """The columns to read from the file: in format 1 the facts of a site are in its name, and `pass` is called `phase`."""
        if not self._older or columns is None or not FACTS & {*columns}:
            return columns
        return [*{*columns, "site" if "site" in self._form.names else "phase"}]

    def _formed(self, table: pa.Table, columns: Iterable[str]) -> pa.Table:
        for name in columns:
            if name not in table.column_names:
                table = table.append_column(name, self._derived(table, name))
            elif self._older and name in FACTS:  # as those that are derived
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
            self._where = _rows_by_site(table["site"].combine_chunks())
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


def _last_step(group: Any) -> float:
    """The last step of a row group; infinite if unknown."""
    column = group.column(0)
    return column.statistics.max if column.path_in_schema == "step" and column.is_stats_set else math.inf


def _picked(array: pa.Array, rows: slice | np.ndarray[Any, Any]) -> pa.Array:
    if isinstance(rows, slice):
        return array.slice(rows.start, rows.stop - rows.start)
    return array.take(pa.array(rows))


def _rows_by_site(column: Any) -> dict[str, list[RowSpan]]:
    codes = column.indices.to_numpy(zero_copy_only=False)
    if not len(codes):
        return {}
    names = column.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    stops = np.append(starts[1:], len(codes))
    found = codes[starts].tolist()
    if len(set(found)) == len(found):  # sorted by site, as our writer leaves it: one stretch each
        stretches = zip(found, starts.tolist(), stops.tolist(), strict=True)
        return {names[code]: [(None, slice(start, stop))] for code, start, stop in stretches}
    return {names[code]: [(None, np.flatnonzero(codes == code))] for code in set(found)}
