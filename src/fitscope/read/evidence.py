"""The evidence of a stored run, part by part, as the rules of a diagnosis take it; and the findings that were noted in it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fitscope._version import __version__
from fitscope.diagnose import Findings
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.history import COLUMNS
from fitscope.sites import TRAIN, Site

if TYPE_CHECKING:
    from fitscope.read.parts import Part
    from fitscope.read.run import Run
    from fitscope.read.tables import Table

Array = np.ndarray[Any, Any]

_STATS = tuple(name for name in COLUMNS if name not in ("peak", "small"))
_ABOUT = ("site", "kind", "layer", "weight", "dtype", "shape", "step", "rank")


class StoredEvidence:
    """The evidence of a run that may still grow: `update` takes in the parts that are new, and reads each once."""

    def __init__(self, run: Run, stats: Table) -> None:
        self._run, self._stats = run, stats
        self._taken: set[str] = set()
        self.evidence = self._begin()

    def _begin(self) -> Evidence:
        evidence = Evidence(self._run.model, self._run.configuration)
        evidence.notes = self._run.info.get("notes")
        evidence.unseen = self._run.unseen
        return evidence

    def update(self) -> bool:
        """Takes new rows; returns whether there were any. When the tail becomes a part, its rows are read again from the part."""
        parts = {part.key: part for part in self._stats.parts}
        if not self._taken <= set(parts):
            self._taken, self.evidence = set(), self._begin()
        new = [part for key, part in parts.items() if key not in self._taken]
        feed(self.evidence, self._stats, new)
        self._taken.update(parts)
        return bool(new)


def feed(evidence: Evidence, stats: Table, parts: Iterable[Part]) -> None:
    """Takes in parts, in their order. With several ranks, the first one counts, except for NaN and Inf."""
    for part in parts:
        table = stats.take(part, (*_ABOUT, *_STATS))
        if table is not None:
            _feed(evidence, stats, table)


def _feed(evidence: Evidence, stats: Table, table: pa.Table) -> None:
    if not table.num_rows:
        return
    codes, names = _coded(table["site"])
    steps, ranks = (_plain(table[name]) for name in ("step", "rank"))
    dtypes, dtype_names = _coded(table["dtype"])
    columns = np.array([_numbers(table, name) for name in COLUMNS])
    several = bool(ranks.any())
    order = _order(codes, steps, ranks)
    order = order[columns[COLUMNS.index("count"), order] > 0]  # a loss that could not be derived has no value
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        first = int(rows[0])
        facts = (table[column][first].as_py() for column in ("kind", "layer", "weight"))
        site, dtype = _site(names[codes[first]], *facts), dtype_names[dtypes[first]]
        if site.in_pass != TRAIN:
            continue
        shape = tuple(int(n) for n in table["shape"][first].as_py() or ())
        mine = rows[ranks[rows] == 0] if several else rows
        some = columns[:, mine]
        if dtype == "float16":
            some[COLUMNS.index("small")] = _below_normal(stats, site, steps[mine])
        evidence.fill(site, dtype, shape, steps[mine], some)
        if len(mine) < len(rows):
            evidence.note_broken(site, steps[rows], columns[:, rows])


def _order(codes: Array, steps: Array, ranks: Array) -> Array:
    """The rows by site, step and rank. The writer leaves the parts of one process sorted by site and step: those need no sorting."""
    change, later = np.diff(codes), np.diff(steps)
    sites = 1 + np.count_nonzero(change)
    if not ranks.any() and sites == len(np.unique(codes)) and bool(np.all((later > 0) | (change != 0))):
        return np.arange(len(codes))
    return np.lexsort((ranks, steps, codes))


def _coded(sites: pa.ChunkedArray) -> tuple[Array, list[str]]:
    """A number for the site of each row, and the names by that number."""
    whole = sites.combine_chunks() if isinstance(sites, pa.ChunkedArray) else sites
    if not pa.types.is_dictionary(whole.type):
        whole = pc.dictionary_encode(whole)
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.unify_dictionaries().chunk(0)
    return _plain(whole.indices), whole.dictionary.to_pylist()


def _plain(column: pa.ChunkedArray | pa.Array) -> Array:
    """A column of numbers, NaN where there is none. Its own `to_numpy` imports pandas, which takes longer than all the rest."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    if whole.null_count:
        whole = pc.fill_null(whole.cast(pa.float64()), float("nan"))
    dtype = np.dtype({"double": "float64", "float": "float32"}.get(str(whole.type), str(whole.type)))
    return np.frombuffer(whole.buffers()[1], dtype, len(whole), whole.offset * dtype.itemsize)


def _numbers(table: pa.Table, name: str) -> Array:
    if name == "small":
        return np.zeros(table.num_rows)
    return np.asarray(_plain(table["rms" if name == "peak" else name]), np.float64)


@functools.lru_cache(maxsize=4096)  # the same few in every part
def _site(name: str, kind: str, layer: str | None, weight: str | None) -> Site:
    """The site with its facts, as the columns have them."""
    parsed = Site.parse(name)
    if not layer or parsed.layer == layer:
        return parsed
    known = "/".join(filter(None, (kind, layer, weight)))
    made = Site(parsed.base, layer, weight or "", suffix=name[len(known) :], moved=parsed.moved)
    return made if made == name else parsed


def _below_normal(stats: Table, site: Site, steps: Array) -> Array:
    """By step: the numbers other than zero that are below the normal range of float16."""
    table = stats.read(("step", "rank", "buckets", "counts"), str(site))
    found: dict[int, int] = {}
    for row in table.filter(pc.equal(table["rank"], 0)).to_pylist() if table is not None else ():
        found[row["step"]] = Evidence.below_normal(row["buckets"] or (), row["counts"] or ())
    return np.array([found.get(step, 0) for step in steps.tolist()], np.float64)


def noted(run: Run, *, live: bool = False) -> Findings | None:
    """The findings that the process which recorded the run noted in it, if they are of all of the run and of this version.

    With `live`, also those of a run that goes on: they are as of the last flush but one, or a little older.
    """
    if len(run.attempts) != 1 or (run.status == "running" and not live):
        return None
    found = [status.get("findings") for status in run._statuses()]
    if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("version") != __version__:
        return None
    return Findings.from_dict(found[0])
