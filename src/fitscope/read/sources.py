"""Where the rows of a part of a table come from: a Parquet file in a store, or a tail.

Every page is checked against its checksum, so damage is an error here, never a wrong number. No file is trusted: its columns must
be those of the table, and its data must fit into memory (`store/decoded.py`) before it is read.
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

#: Where rows are: in which row group, None for all together, and there one stretch or the number of each.
RowSpan = tuple[int | None, slice | np.ndarray[Any, Any]]


def repetitive_in(form: pa.Schema) -> list[str]:
    """The columns of few names, which are kept as dictionaries. A sample's `weight` is a number."""
    return [name for name in _REPETITIVE if name in form.names and pa.types.is_string(form.field(name).type)]


class Source(ABC):
    """Where the rows of a part come from."""

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
        self._older = older  # it may lack the facts of sites
        self._objects = objects
        self._key = key
        self._form = form
        self._footer: pq.FileMetaData | None = None
        self._columns: list[str] = []  # of the file, in order, as soon as its footer is known
        self._checked = False
        self._data: bytes | None = None  # of a part elsewhere, which is cheaper to keep than to fetch again

    @property
    def kept_bytes(self) -> int:
        return len(self._data or b"")

    def read(self, columns: Sequence[str] | None) -> pa.Table:
        with self._open() as file:
            decoded.pages_fit(self._source(), file, self._places(columns), range(file.num_row_groups))
            # Arrow's own threads only get in the way of something so small.
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
        """The whole file, which is kept."""
        if self._data is None:
            self._data = self._objects.get(self._key, decoded.MOST_FILE)
        return pa.py_buffer(self._data)

    def _source(self) -> pa.NativeFile:
        if is_local(self._objects) is None:
            return pa.BufferReader(self.fetch())
        self._objects.size(self._key)  # which says so if it is no regular file: opening a pipe would wait
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
                raise ValueError("it has a column of several")
            self._columns = found.names
            if file.num_row_groups > decoded.MOST_GROUPS:
                raise decoded.TooLargeError(f"it has {file.num_row_groups:,} row groups")
            self._footer = file.metadata
        return file

    def _places(self, columns: Sequence[str] | None) -> list[int]:
        """Where columns are in the file; None: all."""
        return [place for place, name in enumerate(self._columns) if columns is None or name in columns]

    @property
    def _names(self) -> list[str]:
        """The columns of names, read as dictionaries, so that a repeated name is read once."""
        strings = [name for name in self._form.names if pa.types.is_string(self._form.field(name).type)]
        if self._older:  # it has `phase` instead of `pass`, and no facts of sites
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
        raise ValueError("it has two columns of one name")
    for field in found:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        wanted = form.field(field.name).type if field.name in form.names else pa.string()
        if kind != wanted and not _same_list(kind, wanted):
            raise ValueError(f"its column {field.name!r} is {kind}, not {wanted}")
        if pa.types.is_string(kind) and names and field.name not in names and field.name not in FACTS:
            raise ValueError(f"it has a column {field.name!r}, which is not one of the table")


def _same_list(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether both types are lists of the same type. The names of their items do not matter."""
    return bool(pa.types.is_list(one) and pa.types.is_list(other) and one.value_type == other.value_type)


def _counted(said: bytes) -> list[tuple[str, int]]:
    """The sites of a part and their rows, as its footer has them."""
    found = untrusted.loads(said)
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and untrusted.count(pair[1])
        for pair in found
    ):
        raise ValueError("its footer does not list its sites")
    return [(name, rows) for name, rows in found]


class _Stretches(Mapping[str, list[RowSpan]]):
    """Where the rows of each site are in a part sorted by site. Computed for one site on request, because a reader of many parts
    usually asks for one site.
    """

    def __init__(self, rows: Sequence[tuple[str, int]], groups: Sequence[int]) -> None:
        self._edges = [0, *accumulate(groups)]
        if sum(count for _, count in rows) != self._edges[-1]:
            raise ValueError("its footer has a wrong number of rows")
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
    """A source that is only read as a whole, and keeps nothing that it can read again."""

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
    if len(set(found)) == len(found):  # sorted by site, as our writer leaves it: one stretch each
        stretches = zip(found, starts.tolist(), stops.tolist(), strict=True)
        return {names[code]: [(None, slice(start, stop))] for code, start, stop in stretches}
    order = np.argsort(codes, kind="stable")
    split = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return {names[codes[rows[0]]]: [(None, rows)] for rows in split}


#: Columns that have something in every row.
_NEEDED = ("step", "epoch", "batch", "attempt", "rank", "site", "sample", "batched", "kind", "pass")


def sound(table: pa.Table) -> pa.Table:
    """The rows, unless they hold values that fitscope's writer never writes and readers cannot use."""
    for name in table.column_names:
        if name in _NEEDED and table[name].null_count:
            raise ValueError(f"its column {name!r} has gaps")
    if "step" in table.column_names and table.num_rows:
        ends = pc.min_max(table["step"]).as_py()
        if not untrusted.LARGEST >= ends["max"] >= ends["min"] >= -untrusted.LARGEST:
            raise ValueError(f"it has steps from {ends['min']} to {ends['max']}")
    if "buckets" in table.column_names and table.num_rows:
        used = pc.list_flatten(table["buckets"])
        ends = pc.min_max(used).as_py()
        if used.null_count or (len(used) and not -ZERO_BUCKET <= ends["min"] <= ends["max"] <= ZERO_BUCKET):
            raise ValueError(f"it has histograms with buckets from {ends['min']} to {ends['max']}")
        if "counts" in table.column_names:
            lengths = (pc.list_value_length(table[name]) for name in ("buckets", "counts"))
            if not pc.all(pc.equal(*lengths)).as_py():
                raise ValueError("its histograms have more or fewer buckets than counts")
    return table
