"""The evidence of a stored run, part by part, as the rules of a diagnosis take it; and the findings that were noted in it."""

from __future__ import annotations

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
    steps, ranks = (table[name].to_numpy() for name in ("step", "rank"))
    columns = np.array([_numbers(table, name) for name in COLUMNS])
    order = np.lexsort((ranks, steps, codes))
    order = order[columns[COLUMNS.index("count"), order] > 0]  # a loss that could not be derived has no value
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        first = int(rows[0])
        site, dtype = _site(table, first, names[codes[first]]), str(table["dtype"][first])
        shape = tuple(int(n) for n in table["shape"][first].as_py() or ())
        if site.in_pass != TRAIN:
            continue
        mine = rows[ranks[rows] == 0] if ranks[rows].any() else rows
        some = columns[:, mine]
        if dtype == "float16":
            some[COLUMNS.index("small")] = _below_normal(stats, site, steps[mine])
        evidence.fill(site, dtype, shape, steps[mine], some)
        if len(mine) < len(rows):
            evidence.note_broken(site, steps[rows], columns[:, rows])


def _coded(sites: pa.ChunkedArray) -> tuple[Array, list[str]]:
    """A number for the site of each row, and the names by that number."""
    whole = sites.combine_chunks() if isinstance(sites, pa.ChunkedArray) else sites
    if not pa.types.is_dictionary(whole.type):
        whole = pc.dictionary_encode(whole)
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.unify_dictionaries().chunk(0)
    return whole.indices.to_numpy(zero_copy_only=False), whole.dictionary.to_pylist()


def _numbers(table: pa.Table, name: str) -> Array:
    if name == "small":
        return np.zeros(table.num_rows)
    return np.asarray(table["rms" if name == "peak" else name].to_numpy(), np.float64)


def _site(table: pa.Table, row: int, name: str) -> Site:
    """The site with its facts, as the columns have them."""
    kind, layer, weight = (table[column][row].as_py() for column in ("kind", "layer", "weight"))
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
