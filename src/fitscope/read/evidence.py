"""The evidence of a stored run: its stats table, site by site, in the form that the rules of a diagnosis take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fitscope._version import __version__
from fitscope.diagnose import Findings
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.history import COLUMNS
from fitscope.sites import TRAIN, Site

if TYPE_CHECKING:
    from fitscope.read.run import Run
    from fitscope.read.tables import Table

Array = np.ndarray[Any, Any]

_STATS = tuple(name for name in COLUMNS if name not in ("peak", "small"))
_ABOUT = ("site", "kind", "layer", "weight", "pass", "dtype", "shape", "step", "rank")


def evidence_of(run: Run, stats: Table) -> Evidence:
    """Everything that a run has recorded so far. With several ranks it uses the first, except for NaN and Inf."""
    evidence = Evidence(run.model, run.configuration)
    evidence.notes = run.info.get("notes")
    evidence.unseen = run.unseen
    table = stats.read((*_ABOUT, *_STATS))
    if table is None or not table.num_rows:
        return evidence
    table = table.filter(pa.compute.equal(table["pass"].cast(pa.string()), TRAIN))
    if not table.num_rows:
        return evidence
    sites = table["site"].combine_chunks()
    if isinstance(sites, pa.ChunkedArray):
        sites = sites.chunk(0)
    codes = sites.indices.to_numpy(zero_copy_only=False)
    steps, ranks = (table[name].to_numpy() for name in ("step", "rank"))
    order = np.lexsort((ranks, steps, codes))
    columns = np.array([_numbers(table, name) for name in COLUMNS])
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        _take(evidence, table, stats, rows, steps, ranks, columns)
    return evidence


def _take(
    evidence: Evidence, table: pa.Table, stats: Table, rows: Array, steps: Array, ranks: Array, columns: Array
) -> None:
    first = int(rows[0])
    site, dtype = _site(table, first), str(table["dtype"][first])
    shape = tuple(int(n) for n in table["shape"][first].as_py() or ())
    rows = rows[columns[COLUMNS.index("count"), rows] > 0]  # a loss that could not be derived has no value
    if not len(rows):
        return
    mine = rows[ranks[rows] == ranks[rows].min()]
    some = columns[:, mine]
    if dtype == "float16":
        some[COLUMNS.index("small")] = _below_normal(stats, site, len(mine))
    evidence.fill(site, dtype, shape, steps[mine], some)
    if len(mine) < len(rows):
        evidence.note_broken(site, steps[rows], columns[:, rows])


def _numbers(table: pa.Table, name: str) -> Array:
    if name == "small":
        return np.zeros(table.num_rows)
    column = table["rms" if name == "peak" else name]
    return np.asarray(
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy(),
        np.float64,
    )


def _site(table: pa.Table, row: int) -> Site:
    """The site with its facts, from the columns."""
    name, kind, layer, weight = (table[column][row].as_py() for column in ("site", "kind", "layer", "weight"))
    parsed = Site.parse(name)
    if not layer or parsed.layer == layer:
        return parsed
    known = "/".join(filter(None, (kind, layer, weight)))
    made = Site(parsed.base, layer, weight or "", suffix=name[len(known) :], moved=parsed.moved)
    return made if made == name else parsed


def _below_normal(stats: Table, site: Site, rows: int) -> Array:
    """By step, the count of nonzero values below the normal range of float16."""
    table = stats.read(("step", "rank", "buckets", "counts"), str(site))
    if table is None or not table.num_rows:
        return np.zeros(rows)
    ranks, steps = table["rank"].to_numpy(), table["step"].to_numpy()
    order = np.lexsort((steps, ranks))[:rows]
    buckets, counts = table["buckets"].to_pylist(), table["counts"].to_pylist()
    return np.array(
        [Evidence.below_normal(buckets[i] or (), counts[i] or ()) for i in order.tolist()], np.float64
    )


def noted(run: Run) -> Findings | None:
    """The findings that the process which recorded the run noted in it, if they are of all of the run and of this version."""
    if len(run.attempts) != 1 or run.status == "running":
        return None
    found = [status.get("findings") for status in run._statuses()]
    if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("version") != __version__:
        return None
    return Findings.from_dict(found[0])
