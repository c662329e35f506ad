"""The evidence of a stored run for the rules of a diagnosis, read part by part, and the findings stored in the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fitscope._version import __version__
from fitscope.diagnose import Findings, diagnose
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.history import COLUMNS
from fitscope.sites import TRAIN, Site

if TYPE_CHECKING:
    from fitscope.read.parts import Part
    from fitscope.read.run import Run
    from fitscope.read.tables import Table

Array = np.ndarray[Any, Any]

_STATS = tuple(name for name in COLUMNS if name not in ("peak", "small"))
AT_ONCE = 150_000  #: the fewest rows taken in together, if there are that many: 13 numbers each in memory
_KEYS = ("site", "step", "rank")
_ABOUT = ("site", "kind", "layer", "weight", "dtype", "shape")
# The number of a site, the site, and dtype and shape of its first tensor.
_About = tuple[int, Site, str, tuple[int, ...]]


class StoredEvidence:
    """The evidence of a run that may still grow: `update` takes in the parts that are new, and reads each once."""

    def __init__(self, run: Run, stats: Table) -> None:
        self._run, self._stats = run, stats
        self._taken: set[str] = set()
        self.evidence = self._begin()

    def _begin(self) -> Evidence:
        with self._run._state.looked():
            evidence = Evidence(self._run.model, self._run.configuration)
            evidence.notes = self._run.info.get("notes")
            evidence.shards = self._run._state.shards and self._run._state.several_ranks
            evidence.unseen = self._run.unseen
        return evidence

    def update(self) -> bool:
        """Takes new rows; returns whether there were any. When the tail becomes a part, its rows are read again from the part."""
        parts = {part.key: part for part in self._stats.parts}
        if not self._taken <= set(parts):
            self._taken, self.evidence = set(), self._begin()
        new = [part for key, part in parts.items() if key not in self._taken]
        feed(self.evidence, self._stats, new)
        self.evidence.pulses = self._run._pulses()
        self.evidence.bad_samples = self._run._bad_samples()
        self._taken.update(parts)
        return bool(new)


def feed(evidence: Evidence, stats: Table, parts: Iterable[Part]) -> None:
    """Takes in parts, in their order. With several ranks, the first rank counts, except for NaN and Inf.

    A site costs as much for one row as for thousands, so small parts are taken in together.
    """
    known: dict[str, _About] = {}
    waiting: list[pa.Table] = []
    for part in parts:
        table = stats.take(part, (*_KEYS, *_STATS))
        if table is None or not table.num_rows or not _learn(known, table, part, stats):
            continue
        waiting.append(table)
        if sum(table.num_rows for table in waiting) >= AT_ONCE:
            _feed(evidence, stats, waiting, known)
            waiting = []
    if waiting:
        _feed(evidence, stats, waiting, known)


def _learn(known: dict[str, _About], table: pa.Table, part: Part, stats: Table) -> bool:
    """Learns the facts of a part's sites, from one row of each. They are the same in every row, so it reads them only for new sites."""
    codes, names = _coded(table["site"])
    if known.keys() >= {names[code] for code in np.unique(codes)}:
        return True
    facts = stats.take(part, _ABOUT)
    if facts is None:
        return False
    codes, names = _coded(facts["site"])
    for code, row in zip(*np.unique(codes, return_index=True), strict=True):
        if names[code] not in known:
            kind, layer, weight, dtype, shape = (facts[column][int(row)].as_py() for column in _ABOUT[1:])
            site = _site(names[code], kind, layer, weight)
            known[names[code]] = (len(known), site, dtype, tuple(int(n) for n in shape or ()))
    return True


def _feed(evidence: Evidence, stats: Table, tables: list[pa.Table], known: dict[str, _About]) -> None:
    codes = np.concatenate([_numbered(table["site"], known) for table in tables])
    steps, ranks = (np.concatenate([_plain(table[name]) for table in tables]) for name in ("step", "rank"))
    columns = _columns(tables, len(codes))
    several = bool(ranks.any())
    order = _order(codes, steps, ranks)
    order = order[columns[COLUMNS.index("count"), order] > 0]  # a loss that could not be derived has no value
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sites = list(known.values())
    for rows in np.split(order, starts[1:]) if len(order) else ():
        _, site, dtype, shape = sites[codes[rows[0]]]
        if site.in_pass != TRAIN:
            continue
        mine = rows[ranks[rows] == 0] if several else rows
        some = columns[:, mine]
        if dtype == "float16":
            some[COLUMNS.index("small")] = _below_normal(stats, site, steps[mine])
        evidence.fill(site, dtype, shape, steps[mine], some)
        if len(mine) < len(rows):
            evidence.note_broken(site, steps[rows], columns[:, rows])


def _columns(tables: Sequence[pa.Table], rows: int) -> Array:
    """The numbers that a history keeps, with a row for each of `COLUMNS`."""
    columns = np.empty((len(COLUMNS), rows))
    for i, name in enumerate(COLUMNS):
        at = 0
        for table in tables:
            to = at + table.num_rows
            columns[i, at:to] = 0 if name == "small" else _plain(table["rms" if name == "peak" else name])
            at = to
    return columns


def _order(codes: Array, steps: Array, ranks: Array) -> Array:
    """The rows by site, step and rank. Parts of one process are already sorted by site and step."""
    order = np.argsort(codes, kind="stable")
    if not ranks.any() and bool(np.all((np.diff(steps[order]) > 0) | (np.diff(codes[order]) != 0))):
        return order
    return np.lexsort((ranks, steps, codes))


def _numbered(sites: pa.ChunkedArray, known: Mapping[str, _About]) -> Array:
    """For each row, the index of its site among the known ones."""
    codes, names = _coded(sites)
    numbers = np.array([known[name][0] if name in known else -1 for name in names], np.int64)
    return numbers[codes]


def _coded(sites: pa.ChunkedArray) -> tuple[Array, list[str]]:
    """A number for the site of each row, and the names by that number."""
    whole = sites.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(whole.type):
        whole = pc.dictionary_encode(whole)
    return _plain(whole.indices), whole.dictionary.to_pylist()


def _plain(column: pa.ChunkedArray | pa.Array) -> Array:
    """A column of numbers, with NaN for null. pyarrow's `to_numpy` imports pandas, which takes longer than everything else here."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    dtype = np.dtype({"double": "float64", "float": "float32"}.get(str(whole.type), str(whole.type)))
    known, data = whole.buffers()
    values = np.frombuffer(data, dtype, len(whole), whole.offset * dtype.itemsize)
    if whole.null_count:  # `fill_null` would import pandas
        bits = np.unpackbits(np.frombuffer(known, np.uint8), bitorder="little")
        values = np.where(bits[whole.offset : whole.offset + len(whole)] == 1, values, np.nan)
    return values


def _site(name: str, kind: str, layer: str | None, weight: str | None) -> Site:
    """The site, with its facts from the columns."""
    parsed = Site.parse(name)
    if not layer or parsed.layer == layer:
        return parsed
    known = "/".join(filter(None, (kind, layer, weight)))
    made = Site(parsed.base, layer, weight or "", suffix=name[len(known) :], moved=parsed.moved)
    return made if made == name else parsed


def _below_normal(stats: Table, site: Site, steps: Array) -> Array:
    """For each step, the count of nonzero numbers below the normal range of float16."""
    table = stats.read(("step", "rank", "buckets", "counts"), str(site))
    found: dict[int, int] = {}
    for row in table.filter(pc.equal(table["rank"], 0)).to_pylist() if table is not None else ():
        found[row["step"]] = Evidence.below_normal(row["buckets"] or (), row["counts"] or ())
    return np.array([found.get(step, 0) for step in steps.tolist()], np.float64)


def noted(run: Run, *, live: bool = False) -> Findings | None:
    """The findings that the recording process stored in the run, if they cover the whole run and come from this version.

    With several ranks, those of the first, as in `feed`, and those from their pulses. With `live`, also those of a growing run, which
    are one or a few flushes old.
    """
    if len(run.attempts) != 1 or (run.status == "running" and not live):
        return None
    ranks = [rank for _, rank in run._state.newest_ranks()]
    mine = (ranks[0].said() or {}).get("findings") if ranks else None
    if not isinstance(mine, dict) or mine.get("version") != __version__:
        return None
    found = Findings.from_dict(mine)
    if len(ranks) == 1:
        return found
    if any(_broken((rank.said() or {}).get("findings")) for rank in ranks) and not _broken(mine):
        return None  # a NaN counts on every rank, so the rows must be read
    evidence = Evidence()
    evidence.pulses = run._pulses()
    return found.joined(diagnose(evidence, rules=["rank_differs"]))


def _broken(found: Any) -> bool:
    """Whether a rank recorded that it had NaN or Inf."""
    return isinstance(found, dict) and any(one.rule == "nonfinite" for one in Findings.from_dict(found))
