"""The Parquet tables of a run, read part by part.

A part never changes, so what was read of it is kept and never read again; following a live run costs only
the new parts. What is kept is bounded (`KEEP_BYTES`): beyond that the parts longest unused are let go and
read again when needed. Every page is checked against its checksum, so damage is an error here, never a
wrong number; a damaged part is left out and reported.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fitscope.read.damage import DamageReport
from fitscope.read.filesystem import filesystem
from fitscope.record import PASSES
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.places import is_local

if TYPE_CHECKING:
    import pyarrow.dataset as ds

KEEP_BYTES = 512 << 20  #: of decoded columns
READERS = 16  #: parts fetched at once from an object store; local files are read one by one, which is faster

_REPETITIVE = ("site", "dtype", "phase", "output")  # columns of few names: kept as dictionaries
_UNREADABLE = (pa.ArrowException, OSError)


class Part:
    """One immutable part of a table; `end` is the step at which a later attempt took over."""

    def __init__(self, objects: Objects, key: str, end: int | None, form: pa.Schema) -> None:
        self.objects = objects
        self.key = key
        self.end = end
        self._form = form
        self.kept_bytes = 0
        self._columns: dict[str, pa.Array] = {}
        self._footer: pq.FileMetaData | None = None
        self._data: bytes | None = None  # of a part elsewhere, which is cheaper to keep than to fetch again
        self._rows: dict[str, slice | np.ndarray[Any, Any]] | None = None  # where each site's rows are

    @property
    def sites(self) -> Iterable[str]:
        return self._rows or ()

    def lacks(self, columns: Sequence[str]) -> bool:
        unknown = self._rows is None and "site" in self._form.names
        return unknown or any(name not in self._columns for name in columns)

    def load(self, columns: Sequence[str]) -> None:
        """Reads the columns that are not there yet."""
        missing = [name for name in columns if name not in self._columns]
        survey = self._rows is None and "site" in self._form.names
        table = self.owned([*missing, *(["site"] if survey else [])])
        if survey:
            self._rows = _rows_by_site(table["site"].combine_chunks())
        for name in missing:
            self._columns[name] = column = table[name].combine_chunks()
            self.kept_bytes += column.nbytes

    def let_go(self) -> None:
        self._columns, self._data, self.kept_bytes = {}, None, 0

    def rows(self, columns: Sequence[str], site: str | None) -> list[pa.Array]:
        """Loaded columns, all rows or those of one site."""
        arrays = [self._columns[name] for name in columns]
        if site is None:
            return arrays
        assert self._rows is not None
        rows = self._rows.get(site, slice(0, 0))
        if isinstance(rows, slice):
            return [array.slice(rows.start, rows.stop - rows.start) for array in arrays]
        return [array.take(pa.array(rows)) for array in arrays]

    def owned(self, columns: Iterable[str]) -> pa.Table:
        """Reads columns of the rows that count: those of steps that no later attempt did again.

        A pass at the very step where the next attempt started belongs to both, so it counts.
        """
        if self.end is None:
            return self.read(sorted({*columns}))
        table = self.read(sorted({*columns, "step"}))
        shared = pc.equal(table["step"], self.end)
        counts = pc.less(table["step"], self.end)
        if pc.any(shared).as_py():
            whose = "site" if "site" in self._form.names else "phase"
            counts = pc.or_(counts, pc.and_(shared, _of_passes(self.read([whose])[whose])))
        return table.filter(counts)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads columns from the store, all by default. One that an older part does not have is null."""
        data = self._data
        if data is None:
            data = self.objects.get(self.key)
            if is_local(self.objects) is None:
                self._data = data
                self.kept_bytes += len(data)
        file = pq.ParquetFile(
            pa.BufferReader(data),
            metadata=self._footer,
            page_checksum_verification=True,
            read_dictionary=[name for name in _REPETITIVE if name in self._form.names],
        )
        self._footer = file.metadata
        # Arrow's own threads only get in the way of something so small.
        table = file.read(columns=columns, use_threads=False)
        for name in columns or ():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, self._form.field(name).type))
        return table


class Table:
    """All parts of one table (`stats`, `samples`) of a run."""

    def __init__(self, name: str, run: Objects, damaged: DamageReport) -> None:
        self.name = name
        self.form = schema.TABLES[name]
        self._run = run
        self._damaged = damaged
        self._parts: dict[str, Part] = {}
        # parts with kept columns, the longest unused first
        self._used: OrderedDict[str, Part] = OrderedDict()
        self._sites: set[str] = set()
        self._surveyed: set[str] = set()  # keys of the parts whose sites are known

    def follow(self, folder: str, end: int | None) -> None:
        """Takes notice of the parts in a rank's folder. `end`: the step where its attempt stops to count."""
        base = f"{folder}/{self.name}"
        for name in self._run.list(base):
            key = f"{base}/{name}"
            known = self._parts.get(key)
            if name.endswith(".parquet") and (known is None or known.end != end):
                self._parts[key] = Part(self._run, key, end, self.form)
                if known is not None:  # rows of it count no more: so may not the sites
                    self._sites, self._surveyed = set(), set()

    @property
    def parts(self) -> list[Part]:
        """The parts that can be read, as far as is known."""
        return [part for key, part in sorted(self._parts.items()) if key not in self._damaged]

    @property
    def readers(self) -> int:
        """How many parts are worth reading at once while something else is done: many from afar."""
        return 1 if is_local(self._run) else READERS

    def sites(self) -> set[str]:
        """The sites there are rows of."""
        new = [part for part in self.parts if part.key not in self._surveyed]
        self._load(new, [])
        for part in new:
            self._sites.update(part.sites)
            self._surveyed.add(part.key)
        return set(self._sites)

    def read(self, columns: Sequence[str], site: str | None = None) -> pa.Table | None:
        """The rows of all parts, or of one site in them. None if there are no parts."""
        self._load(self.parts, columns)
        pieces = [part.rows(columns, site) for part in self.parts]
        self._keep_within_bounds()
        if not pieces:
            return None
        arrays = [pa.chunked_array(chunks) for chunks in zip(*pieces, strict=True)]
        return pa.table(arrays, list(columns)).unify_dictionaries()

    def take(self, part: Part, columns: Sequence[str]) -> pa.Table | None:
        """The rows of one part that count, of which nothing is kept. None if it cannot be read."""
        found: list[pa.Table] = []
        self._each([part], lambda part: found.append(part.owned(columns)))
        if part.key not in self._used:
            part.let_go()
        return found[0].select(list(columns)) if found else None

    def verify(self) -> None:
        """Reads every part once, so that all damage is known."""
        self._each(self.parts, lambda part: part.read())

    def dataset(self) -> ds.Dataset:
        """All parts as one Arrow dataset, for DuckDB: it reads only the columns and rows a query needs."""
        import pyarrow.dataset as ds  # brings in pandas

        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        form = ds.ParquetFileFormat(default_fragment_scan_options=options)
        keys = [part.key for part in self.parts]
        if is_local(self._run):
            return ds.dataset([self._run.describe(key) for key in keys], self.form, format=form)
        return ds.dataset(keys, self.form, format=form, filesystem=filesystem(self._run))

    def _load(self, parts: Iterable[Part], columns: Sequence[str]) -> None:
        self._each([part for part in parts if part.lacks(columns)], lambda part: part.load(columns))
        for part in parts:
            self._used[part.key] = part
            self._used.move_to_end(part.key)

    def _each(self, parts: Sequence[Part], action: Callable[[Part], object]) -> None:
        """Does something with each part; those that cannot be read are reported."""

        def attempt(part: Part) -> None:
            try:
                action(part)
            except _UNREADABLE as problem:
                self._damaged.add(part.key, problem)

        if len(parts) > 1 and is_local(self._run) is None:
            with ThreadPoolExecutor(READERS) as pool:
                list(pool.map(attempt, parts))
        else:
            for part in parts:
                attempt(part)

    def _keep_within_bounds(self) -> None:
        kept = sum(part.kept_bytes for part in self._used.values())
        while kept > KEEP_BYTES and self._used:
            _, oldest = self._used.popitem(last=False)
            kept -= oldest.kept_bytes
            oldest.let_go()


def _of_passes(column: Any) -> Any:
    """Which rows are of a pass, told by their sites or by their phases."""
    heads = f"^({'|'.join(PASSES)})(/|$)"
    return pc.match_substring_regex(column.cast(pa.string()), heads)


def _rows_by_site(column: Any) -> dict[str, slice | np.ndarray[Any, Any]]:
    codes = column.indices.to_numpy(zero_copy_only=False)
    if not len(codes):
        return {}
    names = column.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    stops = np.append(starts[1:], len(codes))
    found = codes[starts].tolist()
    if len(set(found)) == len(found):  # sorted by site, as our writer leaves it: one stretch each
        stretches = zip(found, starts.tolist(), stops.tolist(), strict=True)
        return {names[code]: slice(start, stop) for code, start, stop in stretches}
    return {names[code]: np.flatnonzero(codes == code) for code in set(found)}
