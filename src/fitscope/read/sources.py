"""Reads the rows of a part of a table, from a Parquet file in a store or from a tail.

Every page is checked against its checksum, so damage is an error here, never a wrong number. It trusts no file: the columns must
be those of the table, and the data must fit into memory (`store/decoded.py`) before it is read.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fitscope.read import untrusted
from fitscope.reduce.stats import ZERO_BUCKET
from fitscope.store import decoded
from fitscope.store._base import Objects
from fitscope.store.places import is_local
from fitscope.store.tail import SITES, sort

_REPETITIVE = ("site", "kind", "layer", "weight", "pass", "dtype", "output")

FACTS = {"kind", "layer", "weight", "pass"}  #: columns with the facts about a site

#: The place of rows: their row group, or None for the whole part, and in it a slice or the number of each row.
RowSpan = tuple[int | None, slice | np.ndarray[Any, Any]]


def repetitive_in(form: pa.Schema) -> list[str]:
    """The columns that repeat few names, which stay dictionaries. The `weight` of a sample is a number."""
    return [name for name in _REPETITIVE if name in form.names and pa.types.is_string(form.field(name).type)]


class Source(ABC):
    """The origin of the rows of a part."""

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """The bytes that `let_go` would free."""

    @abstractmethod
    def let_go(self) -> None:
        """Frees everything that can be read again."""

    @abstractmethod
    def read(self, columns: Sequence[str] | None) -> pa.Table:
        """Columns, or all of them, of all rows. Missing columns are left out."""

    @abstractmethod
    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        """Columns of one row group, numbered as in `sites`."""

    @abstractmethod
    def sites(self, before: int | None) -> Mapping[str, list[RowSpan]] | None:
        """The position of each site's rows; None if that is unknown without reading them, or if all are `before`."""


class Stored(Source):
    """A Parquet file in a store."""

    def __init__(self, objects: Objects, key: str, form: pa.Schema, *, older: bool = False) -> None:
        self._older = older  # an older file may lack the facts of sites
        self._objects = objects
        self._key = key
        self._form = form
        self._footer: pq.FileMetaData | None = None
        self._columns: list[str] = []  # the columns of the file, in order, once its footer is known
        self._checked = False
        # The bytes of a remote part, which are cheaper to keep than to fetch again.
        self._data: bytes | None = None

    @property
    def kept_bytes(self) -> int:
        return len(self._data or b"")

    def read(self, columns: Sequence[str] | None) -> pa.Table:
        with self._open() as file:
            decoded.pages_fit(self._source(), file, self._places(columns), range(file.num_row_groups))
            # Arrow's own threads only slow down something so small.
            return self._written_out(file.read(columns=columns, use_threads=False))

    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        with self._open() as file:
            decoded.pages_fit(self._source(), file, self._places(columns), [group])
            return self._written_out(file.read_row_group(group, columns=columns, use_threads=False))

    def check(self) -> None:
        """Raises an error if a tool that reads one row group at a time, with its names written out, would run out of memory."""
        if self._checked:
            return
        with self._open() as file:
            source = self._source()
            for group in range(file.num_row_groups):
                decoded.pages_fit(source, file, self._places(None), [group])
                decoded.strings_fit(file.read_row_group(group, columns=self._names, use_threads=False))
        self._checked = True

    def sites(self, before: int | None) -> Mapping[str, list[RowSpan]] | None:
        if self._footer is None:
            self._open().close()
        assert self._footer is not None
        said = (self._footer.metadata or {}).get(SITES)
        if said is None:
            return None
        groups = range(self._footer.num_row_groups)
        if before is not None:
            with self._open() as file:
                if not all(_last_step(file, group) < before for group in groups):
                    return None
        return _Stretches(_counted(said), [self._footer.row_group(n).num_rows for n in groups])

    def let_go(self) -> None:
        self._data = None

    def fetch(self) -> pa.Buffer:
        """Fetches the whole file, and keeps it."""
        if self._data is None:
            self._data = self._objects.get(self._key, decoded.MOST_FILE)
        return pa.py_buffer(self._data)

    def _source(self) -> pa.NativeFile:
        if is_local(self._objects) is None:
            return pa.BufferReader(self.fetch())
        self._objects.size(self._key)  # this raises if it is no regular file: opening a pipe would wait
        # As bytes: Arrow encodes a text as UTF-8, which not every name is.
        return pa.OSFile(os.fsencode(self._objects.describe(self._key)))

    def _open(self) -> pq.ParquetFile:
        source = self._source()
        if self._footer is None:
            decoded.footer_fits(source)
        file = pq.ParquetFile(
            source,
            metadata=self._footer,
            page_checksum_verification=True,
            read_dictionary=self._names,
            thrift_container_size_limit=100_000,
        )
        if self._footer is None:
            found = file.schema_arrow
            fits(found, self._form, self._names)
            if len(found.names) != file.metadata.num_columns:
                raise ValueError("it has a nested column, with several columns in it")
            self._columns = found.names
            if file.num_row_groups > decoded.MOST_GROUPS:
                raise decoded.TooLargeError(
                    f"it has {file.num_row_groups:,} row groups, more than the {decoded.MOST_GROUPS:,} that fitscope reads"
                )
            self._footer = file.metadata
        return file

    def _places(self, columns: Sequence[str] | None) -> list[int]:
        """The places of columns in the file; all if `columns` is None."""
        return [place for place, name in enumerate(self._columns) if columns is None or name in columns]

    @property
    def _names(self) -> list[str]:
        """The text columns. pyarrow reads them as dictionaries, so it decodes a repeated text once."""
        strings = [name for name in self._form.names if pa.types.is_string(self._form.field(name).type)]
        if self._older:  # format 1 has `phase` instead of `pass`, and no facts of sites
            strings = [name for name in strings if name not in FACTS]
            strings += [] if "site" in self._form.names else ["phase"]
        return strings

    def _written_out(self, table: pa.Table) -> pa.Table:
        """Decodes columns of names that rarely repeat, and keeps the others as dictionaries."""
        decoded.strings_fit(table)
        repetitive = repetitive_in(self._form)
        for place, name in enumerate(table.column_names):
            if name not in repetitive and pa.types.is_dictionary(table.schema.field(name).type):
                table = table.set_column(place, name, table[name].cast(pa.string()))
        return table


def fits(found: pa.Schema, form: pa.Schema, names: Sequence[str] = ()) -> None:
    """Refuses columns whose type is not the one that the table has under their names."""
    for name in ("step", "site"):
        if name in form.names and name not in found.names:
            raise ValueError(f"it has no column {name!r}")
    if len(set(found.names)) != len(found.names):
        raise ValueError(f"it has two columns {Counter(found.names).most_common(1)[0][0]!r}")
    for field in found:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        wanted = form.field(field.name).type if field.name in form.names else pa.string()
        if kind != wanted and not _same_list(kind, wanted):
            raise ValueError(f"its column {field.name!r} is {kind}, not {wanted}")
        if pa.types.is_string(kind) and names and field.name not in names and field.name not in FACTS:
            raise ValueError(f"it has a text column {field.name!r}, which this table does not have")


def _same_list(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether both types are lists of the same type. The names of their items do not matter."""
    return bool(pa.types.is_list(one) and pa.types.is_list(other) and one.value_type == other.value_type)


def _counted(said: bytes) -> list[tuple[str, int]]:
    """The sites of a part and their numbers of rows, from its footer."""
    found = untrusted.loads(said)
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and untrusted.count(pair[1])
        for pair in found
    ):
        raise ValueError("its footer does not list each site with its number of rows")
    return [(name, rows) for name, rows in found]


class _Stretches(Mapping[str, list[RowSpan]]):
    """The places of the rows of each site in a part sorted by site. Computed for one site on request, because a reader of many parts
    usually asks for one site.
    """

    def __init__(self, rows: Sequence[tuple[str, int]], groups: Sequence[int]) -> None:
        self._edges = [0, *accumulate(groups)]
        if sum(count for _, count in rows) != self._edges[-1]:
            raise ValueError(
                f"the rows of its sites in the footer do not add up to its {self._edges[-1]:,} rows"
            )
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
    """A source that can only be read as a whole, and keeps nothing that it can read again."""

    kept_bytes = 0

    def let_go(self) -> None:
        pass

    def read_group(self, columns: Sequence[str], group: int) -> pa.Table:
        raise NotImplementedError("there are no row groups")

    def sites(self, before: int | None) -> None:  # noqa: ARG002
        return None


class TailRows(Whole):
    """Rows of a tail, sorted as they will be in a part."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches).replace_schema_metadata()
        repetitive = repetitive_in(table.schema)
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
        for site, places in rows_by_site(table["site"].combine_chunks()).items():
            for _, rows in places:
                keep[number[rows][: self._taken[site]]] = False
        table = table.filter(pa.array(keep))
        return table if columns is None else table.select([c for c in columns if c in table.column_names])


def _last_step(file: pq.ParquetFile, group: int) -> float:
    """The last step of a row group; infinite if the footer does not have it."""
    column = decoded.column_chunk(file, group, 0)
    return column.statistics.max if column.path_in_schema == "step" and column.is_stats_set else math.inf


def rows_by_site(column: Any) -> dict[str, list[RowSpan]]:
    codes = column.indices.to_numpy(zero_copy_only=False)
    if not len(codes):
        return {}
    names = column.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    stops = np.append(starts[1:], len(codes))
    found = codes[starts].tolist()
    if len(set(found)) == len(found):  # sorted by site, as fitscope writes it: one stretch each
        stretches = zip(found, starts.tolist(), stops.tolist(), strict=True)
        return {names[code]: [(None, slice(start, stop))] for code, start, stop in stretches}
    order = np.argsort(codes, kind="stable")
    split = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return {names[codes[rows[0]]]: [(None, rows)] for rows in split}


#: Columns that have a value in every row.
_NEEDED = ("step", "epoch", "batch", "attempt", "rank", "site", "sample", "batched", "kind", "pass")


def sound(table: pa.Table) -> pa.Table:
    """The rows, unless they hold values that fitscope's writer never writes and readers cannot use."""
    for name in table.column_names:
        if name in _NEEDED and table[name].null_count:
            raise ValueError(f"its column {name!r} has {table[name].null_count:,} rows without a value")
    if "step" in table.column_names and table.num_rows:
        ends = pc.min_max(table["step"]).as_py()
        if not untrusted.LARGEST >= ends["max"] >= ends["min"] >= -untrusted.LARGEST:
            raise ValueError(f"its steps go from {ends['min']} to {ends['max']}, beyond ±{untrusted.LARGEST}")
    if "buckets" in table.column_names and table.num_rows:
        used = pc.list_flatten(table["buckets"])
        ends = pc.min_max(used).as_py()
        if used.null_count or (len(used) and not -ZERO_BUCKET <= ends["min"] <= ends["max"] <= ZERO_BUCKET):
            raise ValueError(
                f"the buckets of its histograms go from {ends['min']} to {ends['max']}, beyond ±{ZERO_BUCKET}"
            )
        if "counts" in table.column_names:
            lengths = (pc.list_value_length(table[name]) for name in ("buckets", "counts"))
            if not pc.all(pc.equal(*lengths)).as_py():
                raise ValueError("its columns `buckets` and `counts` differ in length in some row")
    return table
