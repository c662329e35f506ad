"""Reads the Parquet tables of a run part by part.

A part never changes, so its data is kept and not read again; following a live run costs only the new parts. The kept data is bounded
(`KEEP_BYTES`): beyond that, the least recently used parts are freed and read again when needed. A damaged part is skipped and reported.

Rows of the tail (see `store/tail.py`) are parts as well, one for each look that found some. They stay in memory until the part with their
rows exists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from fitscope.read.damage import DamageReport
from fitscope.read.parts import Part
from fitscope.read.sources import Stored, TailRows, fits
from fitscope.read.untrusted import UNREADABLE
from fitscope.read.untrusted import key as is_key
from fitscope.store import decoded, schema, tail
from fitscope.store._base import Objects
from fitscope.store.places import in_utf8, is_local

if TYPE_CHECKING:
    import pyarrow.dataset as ds

KEEP_BYTES = 512 << 20  #: bytes of decoded columns that are kept
READERS = 16  #: parts fetched at once from an object store; local files are read one by one, which is faster


@dataclass(slots=True)
class _Tail:
    """The tail of one rank, as far as it was read."""

    tail: tail.Tail
    end: int | None
    parts: list[Part] = field(default_factory=list)


class Table:
    """All parts of one table (`stats`, `samples`) of a run."""

    def __init__(self, name: str, run: Objects, damaged: DamageReport, *, older: bool = False) -> None:
        self.name = name
        self._older = older  # the run was begun in an older format: parts may lack columns
        self.form = schema.TABLES[name]
        self._run = run
        self._damaged = damaged
        self._parts: dict[str, Part] = {}
        self._tails: dict[str, _Tail] = {}  # tails by folder
        self._said: dict[str, object] = {}  # for each folder, the rank's status when its tail was read
        # parts with kept columns, the least recently used first
        self._used: OrderedDict[str, Part] = OrderedDict()
        self._sites: set[str] = set()
        self._surveyed: set[str] = set()  # keys of the parts whose sites are known

    def follow(self, folder: str, end: int | None, said: object = None) -> None:
        """Finds new rows in a rank's folder. `end` is the step where its attempt stops counting.

        `said` is the rank's status document: while it is the same object, the tail has not grown.
        """
        base = f"{folder}/{self.name}"
        # Read the tail before listing the parts: rows that become a part in between then appear only in that part.
        if said is None or said is not self._said.get(folder):
            self._take_tail(folder, end)
            self._said[folder] = said
        try:
            names = [name.rstrip("/") for name in self._run.list(base)]
        except OSError as problem:
            self._damaged.add(base, problem)
            return
        for name in names:
            key = f"{base}/{name}"
            known = self._parts.get(key)
            if name.endswith(".parquet") and (known is None or known.end != end):
                self._parts[key] = Part(
                    Stored(self._run, key, self.form, older=self._older),
                    key,
                    end,
                    self.form,
                    older=self._older,
                )
                if known is not None:  # some rows no longer count, so some sites may not either
                    self._sites, self._surveyed = set(), set()
        waiting = self._tails.get(folder)
        if waiting is not None and waiting.tail.part in names:
            self._drop_tail(folder)
        elif waiting is not None and waiting.end != end:
            self._drop_tail(folder)
            self._take_tail(folder, end)

    def _take_tail(self, folder: str, end: int | None) -> None:
        """Takes the new rows of the tail in a rank's folder."""
        key = f"{folder}/{schema.tail_key(self.name)}"
        known = self._tails.get(folder)
        try:
            data = self._run.get(key, decoded.MOST_FILE)
            part = tail.part_of(data)
            if not is_key(part):
                raise ValueError("the part that it names for its rows is not a key")
            if known is None or known.tail.part != part:
                self._drop_tail(folder)
                known = self._tails[folder] = _Tail(tail.Tail(part), end)
            batches = known.tail.take(data)
            if batches:
                fits(batches[0].schema, self.form)
                # these names sort after all parts
                whole = f"{folder}/{self.name}/{part}"
                name = f"{whole}+{len(known.parts):04d}"
                held = TailRows(batches)
                known.parts.append(Part(held, name, end, self.form, becomes=whole, older=self._older))
        except FileNotFoundError:
            self._drop_tail(folder)
        except UNREADABLE as problem:
            self._damaged.add(key, problem)

    def _drop_tail(self, folder: str) -> None:
        known = self._tails.pop(folder, None)
        for part in known.parts if known is not None else ():
            self._used.pop(part.key, None)
            self._surveyed.discard(part.key)

    @property
    def parts(self) -> list[Part]:
        """The readable parts found so far."""
        waiting = {part.key: part for known in self._tails.values() for part in known.parts}
        return [part for key, part in sorted({**self._parts, **waiting}.items()) if key not in self._damaged]

    @property
    def readers(self) -> int:
        """The number of parts to read in parallel: many from a remote store."""
        return 1 if is_local(self._run) else READERS

    def sites(self) -> set[str]:
        """The sites with rows."""
        new = [part for part in self.parts if part.key not in self._surveyed]
        self._load(new, [])
        for part in new:
            self._sites.update(part.sites)
            self._surveyed.add(part.key)
        return set(self._sites)

    def read(self, columns: Sequence[str], site: str | None = None) -> pa.Table | None:
        """The rows of all parts, or of one site in them. None if there are no parts."""
        self._load(self.parts, columns, site)
        parts = self.parts
        pieces = [piece for part in parts for piece in part.rows(columns, site)]
        self._keep_within_bounds()
        if not parts:
            return None
        if not pieces:
            return pa.schema([self.form.field(name) for name in columns]).empty_table()
        arrays = [pa.chunked_array(chunks) for chunks in zip(*pieces, strict=True)]
        return pa.table(arrays, list(columns)).unify_dictionaries()

    def take(self, part: Part, columns: Sequence[str], sites: Sequence[str] | None = None) -> pa.Table | None:
        """The rows of one part that count, without keeping them. None if it cannot be read.

        With `sites`, the result may omit other sites.
        """
        found: list[pa.Table] = []
        self._each([part], lambda part: found.append(part.owned(columns, sites)))
        if part.key not in self._used:
            part.let_go()
        return found[0].select(list(columns)) if found else None

    def verify(self) -> None:
        """Reads every part once, so that all damage is found."""
        self._each(self.parts, lambda part: part.read())

    def dataset(self) -> ds.Dataset | None:
        """All parts as one Arrow dataset for DuckDB, which reads only the columns and rows that a query needs.

        Remote parts are fetched first. Otherwise Arrow's threads would call a Python file system and wait for the interpreter,
        while DuckDB holds the interpreter and waits for them.
        """
        import pyarrow.dataset as ds  # imports pandas

        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        form = ds.ParquetFileFormat(default_fragment_scan_options=options)
        stored = {part: part.source for part in self.parts if isinstance(part.source, Stored)}
        if not stored:
            return None
        self._each(list(stored), lambda part: stored[part].check())
        stored = {part: source for part, source in stored.items() if part.key not in self._damaged}
        if not stored:
            return None
        if self._older:
            tables = (self.take(part, self.form.names) for part in stored)
            return ds.dataset(
                pa.concat_tables([table.cast(self.form) for table in tables if table is not None])
            )
        if is_local(self._run) and self._run.describe() == in_utf8(self._run.describe()):
            return ds.dataset([self._run.describe(part.key) for part in stored], self.form, format=form)
        self._each(list(stored), lambda part: stored[part].fetch())
        fragments = [
            form.make_fragment(source.fetch())
            for part, source in stored.items()
            if part.key not in self._damaged
        ]
        for part in stored:
            if part.key not in self._used:
                part.let_go()
        return ds.FileSystemDataset(fragments, self.form, form)

    def waiting(self) -> pa.Table:
        """The rows that are in no part yet."""
        tables = [part.read(self.form.names) for part in self.parts if isinstance(part.source, TailRows)]
        return pa.concat_tables([self.form.empty_table(), *(table.cast(self.form) for table in tables)])

    def _load(self, parts: Iterable[Part], columns: Sequence[str], site: str | None = None) -> None:
        lacking = [part for part in parts if part.lacks(columns, site)]
        self._each(lacking, lambda part: part.load(columns, site))
        for part in parts:
            self._used[part.key] = part
            self._used.move_to_end(part.key)

    def _each(self, parts: Sequence[Part], action: Callable[[Part], object]) -> None:
        """Calls a function with each part, and reports parts that cannot be read."""

        def attempt(part: Part) -> None:
            try:
                action(part)
            except UNREADABLE as problem:
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
