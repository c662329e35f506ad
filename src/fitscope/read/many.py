"""Runs SQL over many runs at once, with DuckDB, and opens only those runs that need it.

The parts of all runs are one Arrow dataset, in which the name of the run is a column that no file has. A run with one attempt and no
tail consists of its parts. fitscope opens any other run, so that rows which a later attempt repeated do not count. Parts in an object
store are fetched once, into a temporary directory that lives as long as the list of runs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from fitscope.errors import RunError
from fitscope.read import untrusted
from fitscope.read.damage import DamageReport
from fitscope.read.sources import Stored
from fitscope.read.sql import refused
from fitscope.read.state import RunState
from fitscope.read.tables import READERS
from fitscope.read.untrusted import UNREADABLE
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.places import alone, in_utf8, is_local

RUN = pa.field("run", pa.string())
LARGE = 9  #: ranks from which on some may be light
NAMES_RUNS = re.compile(r"\b(from|join)\s+runs\b", re.IGNORECASE)


class ManyRuns:
    """The tables of all runs in a directory."""

    def __init__(self, objects: Objects, names: Sequence[str], opened: Callable[[str], RunState]) -> None:
        self._objects = objects
        self._names = names
        self._opened = opened
        self._damaged = {name: DamageReport(name) for name in names}
        self._checked: dict[str, Path | None] = {}  # where each part can be read, by key; None: it cannot
        self._fetched = None if is_local(objects) else tempfile.TemporaryDirectory(prefix="fitscope-parts-")

    def ask(self, query: str, runs: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Runs the query over the tables `stats` and `samples`, and over `runs` if the query reads from it."""
        workers = 1 if is_local(self._objects) else READERS
        with ThreadPoolExecutor(workers) as pool:
            parts = dict(zip(self._names, pool.map(self._parts, self._names), strict=True))
            keys = [key for found in parts.values() for key in found or () if key not in self._checked]
            self._checked.update(zip(keys, pool.map(self._check, keys), strict=True))
        others = [name for name, found in parts.items() if found is None]
        simple = [(name, key) for name, found in parts.items() for key in found or ()]
        try:
            with duckdb.connect() as connection:
                connection.execute("SET python_enable_replacements = false")
                for table in schema.TABLES:
                    connection.register(f"{table}_parts", self._dataset(table, simple))
                    connection.register(f"{table}_others", self._rows(table, others))
                    both = f"SELECT * FROM {table}_parts UNION ALL SELECT * FROM {table}_others"
                    connection.execute(f"CREATE VIEW {table} AS {both}")
                if NAMES_RUNS.search(query):
                    connection.register("runs", runs())
                frame: pd.DataFrame = connection.sql(query).df()
        except (duckdb.Error, OSError, ValueError) as problem:
            raise refused(query, problem, "Each table also has a column run. ") from problem
        for damaged in self._damaged.values():
            damaged.warn()
        return frame

    def _parts(self, name: str) -> list[str] | None:
        """The keys of all parts of a run, or None if its rows are not exactly those of the parts."""
        if in_utf8(self._objects.describe(name)) != self._objects.describe(name):
            return None  # Arrow's datasets take names in UTF-8 only
        try:
            run = alone(self._objects.folder(name))
            if len(run.list(schema.ATTEMPTS)) != 1:
                return None
            found = []
            attempt = schema.attempt_folder(0)
            for rank in self._recording(run, run.list(attempt)):
                there = run.list(f"{attempt}/{rank}".rstrip("/"))
                if f"{schema.TAIL}/" in there:
                    return None
                folders = [f"{attempt}/{rank}{table}" for table in schema.TABLES if f"{table}/" in there]
                found += [f"{name}/{folder}/{part}" for folder in folders for part in run.list(folder)]
        except UNREADABLE:
            return None
        return [key for key in found if key.endswith(".parquet")]

    def _recording(self, run: Objects, ranks: list[str]) -> list[str]:
        """The folders of the ranks that have tables. In a large run the others have only a status."""
        if len(ranks) < LARGE:
            return ranks
        document = untrusted.read(run, schema.attempt_key(0))
        untrusted.cleaned(document, untrusted.ATTEMPT)
        sampled = {schema.rank_folder(0, number) for number in document.get("sampled", ())}
        some = [rank for rank in ranks if f"{schema.attempt_folder(0)}/{rank}".rstrip("/") in sampled]
        return some if "sampled" in document else ranks

    def _check(self, key: str) -> Path | None:
        """Where a part can be read from, once it has been checked."""
        name, _, inside = key.partition("/")
        part = Stored(alone(self._objects.folder(name)), inside, schema.TABLES[_table(key)])
        try:
            part.check()
            root = is_local(self._objects)
            if root is not None:
                return Path(root, key)
            assert self._fetched is not None
            path = Path(self._fetched.name, key.replace("/", "+"))
            path.write_bytes(part.fetch())
            return path
        except UNREADABLE as problem:
            self._damaged[name].add(inside, problem)
            return None
        finally:
            part.let_go()

    def _dataset(self, table: str, parts: Sequence[tuple[str, str]]) -> ds.Dataset:
        """The parts of all simple runs. Arrow checks the checksum of each page."""
        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        form = ds.ParquetFileFormat(default_fragment_scan_options=options)
        fragments = [
            form.make_fragment(str(path), LocalFileSystem(), ds.field(RUN.name) == name)
            for name, key in parts
            if _table(key) == table and (path := self._checked[key]) is not None
        ]
        return ds.FileSystemDataset(fragments, _form(table), form, LocalFileSystem())

    def _rows(self, table: str, names: Sequence[str]) -> pa.Table:
        """The rows of the runs that have to be opened."""
        whole = _form(table)
        return pa.concat_tables([whole.empty_table(), *self._taken(table, whole, names)])

    def _taken(self, table: str, whole: pa.Schema, names: Sequence[str]) -> Iterator[pa.Table]:
        for name in names:
            try:
                state = self._opened(name)
            except FileNotFoundError:  # the folder is no run
                continue
            except (RunError, *UNREADABLE) as problem:
                self._damaged[name].add(schema.RUN, problem)
                continue
            for rows in state.rows(table):
                column = pa.array([in_utf8(name)] * rows.num_rows, pa.string())
                yield rows.add_column(0, RUN, column).cast(whole)


def _table(key: str) -> str:
    """The table that a part belongs to."""
    return key.split("/")[-2]


def _form(table: str) -> pa.Schema:
    return pa.schema([RUN, *schema.TABLES[table]])
