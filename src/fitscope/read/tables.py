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
from fitscope.store._base import Objects
from fitscope.store.places import is_local

if TYPE_CHECKING:
    import pyarrow.dataset as ds

KEEP_BYTES = 512 << 20  #: of decoded columns
READERS = 8  #: parts read at once: on an object store each is a round trip

_UNREADABLE = (pa.ArrowException, OSError)


class Part:
    """One immutable part; `end` is the step at which a later attempt took over."""

    def __init__(self, objects: Objects, key: str, end: int | None) -> None:
        self.objects = objects
        self.key = key
        self.end = end
        self.kept_bytes = 0
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._rows: dict[str, slice | np.ndarray[Any, Any]] | None = None  # where each site's rows are

    @property
    def sites(self) -> Iterable[str]:
        return self._rows or ()

    def lacks(self, columns: Sequence[str]) -> bool:
        return self._rows is None or any(name not in self._columns for name in columns)

    def load(self, columns: Sequence[str]) -> None:
        """Reads the columns that are not there yet."""
        missing = [name for name in columns if name not in self._columns]
        needed = {
            *missing,
            *(["site"] if self._rows is None else []),
            *(["step"] if self.end is not None else []),
        }
        table = self.open().read(columns=sorted(needed))
        if self.end is not None:
            table = table.filter(pc.less(table["step"], self.end))
        if self._rows is None:
            self._rows = _rows_by_site(table["site"].combine_chunks())
        for name in missing:
            self._columns[name] = table[name]
            self.kept_bytes += table[name].nbytes

    def let_go(self) -> None:
        self._columns, self.kept_bytes = {}, 0

    def rows(self, columns: Sequence[str], site: str | None) -> pa.Table:
        """Loaded columns, all rows or those of one site."""
        table = pa.table([self._columns[name] for name in columns], list(columns))
        if site is None:
            return table
        assert self._rows is not None
        rows = self._rows.get(site, slice(0, 0))
        if isinstance(rows, slice):
            return table.slice(rows.start, rows.stop - rows.start)
        return table.take(pa.array(rows))

    def open(self) -> pq.ParquetFile:
        data = pa.BufferReader(self.objects.get(self.key))
        return pq.ParquetFile(data, page_checksum_verification=True, read_dictionary=["site", "dtype"])


class Table:
    """All parts of one table (`stats`, `samples`) of a run."""

    def __init__(self, name: str, run: Objects, damaged: DamageReport) -> None:
        self.name = name
        self._run = run
        self._damaged = damaged
        self._parts: dict[str, Part] = {}
        self._used: OrderedDict[str, Part] = (
            OrderedDict()
        )  # parts with kept columns, the longest unused first
        self._sites: set[str] = set()
        self._surveyed: set[str] = set()  # keys of the parts whose sites are known

    def follow(self, folder: str, end: int | None) -> None:
        """Takes notice of the parts in a rank's folder. `end`: the step where its attempt stops to count."""
        base = f"{folder}/{self.name}"
        for name in self._run.list(base):
            key = f"{base}/{name}"
            known = self._parts.get(key)
            if name.endswith(".parquet") and (known is None or known.end != end):
                self._parts[key] = Part(self._run, key, end)

    @property
    def parts(self) -> list[Part]:
        """The parts that can be read, as far as is known."""
        return [part for key, part in sorted(self._parts.items()) if key not in self._damaged]

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
        tables = [part.rows(columns, site) for part in self.parts]
        self._keep_within_bounds()
        return pa.concat_tables(tables).unify_dictionaries() if tables else None

    def verify(self) -> None:
        """Reads every part once, so that all damage is known."""
        self._each(self.parts, lambda part: part.open().read())

    def dataset(self) -> ds.Dataset:
        """All parts as one Arrow dataset, for DuckDB: it reads only the columns and rows a query needs."""
        import pyarrow.dataset as ds  # brings in pandas

        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        form = ds.ParquetFileFormat(default_fragment_scan_options=options)
        keys = [part.key for part in self.parts]
        if is_local(self._run):
            return ds.dataset([self._run.describe(key) for key in keys], format=form)
        return ds.dataset(keys, format=form, filesystem=filesystem(self._run))

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

        if len(parts) > READERS:
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
