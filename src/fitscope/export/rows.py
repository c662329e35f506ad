"""Streams the rows of a run's tables, ordered by step, for any number of parts and ranks.

Memory holds about one part per rank. The parts of one rank are in time order. The stream merges several ranks: it always continues with
the rank at the lowest step. A damaged part is skipped and reported (`run.damaged`, one warning), as everywhere on the reading side.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from fitscope.read.frames import plain
from fitscope.read.untrusted import UNREADABLE
from fitscope.store import schema

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run
    from fitscope.read.parts import Part
    from fitscope.read.tables import Table

#: The columns of a row in addition to its stats.
ABOUT = ("step", "epoch", "batch", "time", "attempt", "rank", "site", "dtype", "shape", "batched", "value")
#: The name of the samples table among the sites of an export.
SAMPLES = schema.SAMPLES
#: The columns of the histogram.
HISTOGRAM = ("buckets", "counts")


def sites(run: Run) -> list[str]:
    """The sites with statistics."""
    run._state.look()
    found = run._state.stats.sites()
    run._state.damaged.warn(4)
    return sorted(found)


def has_samples(run: Run) -> bool:
    """Whether the run has samples."""
    run._state.look()
    return bool(run._state.samples.parts)


def columns(stats: Sequence[str]) -> list[str]:
    """The columns of an export with these stats; all columns if `stats` is empty."""
    if not stats:
        return list(schema.STATS_SCHEMA.names)
    wanted = {*ABOUT, *stats, *(HISTOGRAM if "histogram" in stats else ())}
    return [name for name in schema.STATS_SCHEMA.names if name in wanted]


def rows(
    run: Run, sites: Sequence[str], columns: Sequence[str], progress: Progress, before: int | None = None
) -> Iterator[pa.Table]:
    """The rows of these sites, by step and site, without rows flushed after the call.

    With `before`, only the rows of earlier attempts.
    """
    form = pa.schema([schema.STATS_SCHEMA.field(name) for name in columns])
    wanted = pa.array(sites, pa.string())

    def chosen(table: pa.Table) -> pa.Table:
        return table.filter(pc.is_in(table["site"].cast(pa.string()), wanted))

    yield from _stream(run, run._state.stats, form, chosen, ("step", "site", "rank"), progress, before)


def samples(run: Run, before: int | None = None) -> Iterator[pa.Table]:
    """The rows of the samples table, by step, pass, batch and sample."""
    order = ("step", "pass", "batch", "output", "rank", "sample")
    yield from _stream(
        run, run._state.samples, schema.SAMPLES_SCHEMA, lambda table: table, order, lambda *_: None, before
    )


def _stream(
    run: Run, table: Table, form: pa.Schema, chosen: Callable[[pa.Table], pa.Table], order: Sequence[str],
    progress: Progress, before: int | None,
) -> Iterator[pa.Table]:  # fmt: skip
    """The selected rows of all parts of a table, with the columns of `form`."""
    parts = table.parts
    done = 0

    def read(part: Part) -> pa.Table:
        nonlocal done
        done += 1
        progress(done, len(parts))
        try:
            found = part.owned({*order, *form.names})
        except UNREADABLE as problem:
            run._state.damaged.add(part.key, problem)
            return form.empty_table()
        part.let_go()  # a part in an object store would keep its bytes
        return _formed(plain(chosen(found)), form)

    # An attempt ends where the next one starts, so their steps follow one another.
    for document in run.attempts:
        if before is not None and int(document["attempt"]) >= before:
            break
        attempt = f"{schema.attempt_folder(int(document['attempt']))}/"
        folders = [rank.folder for rank in run._state.ranks if rank.folder.startswith(attempt)]
        lanes = [deque(p for p in parts if p.key.startswith(f"{folder}/")) for folder in folders]
        yield from _merged(lanes, read, order)
    run._state.damaged.warn(4)


def _merged(
    lanes: list[deque[Part]], read: Callable[[Part], pa.Table], order: Sequence[str]
) -> Iterator[pa.Table]:
    """Merges the rows of several ranks into one stream."""
    # The step up to which each rank has been read.
    reached = [-math.inf if lane else math.inf for lane in lanes]
    waiting: list[pa.Table] = []
    while any(lanes):
        behind = reached.index(min(reached))
        table = read(lanes[behind].popleft())
        if table.num_rows:
            waiting.append(table)
            reached[behind] = max(reached[behind], pc.max(table["step"]).as_py())
        if not lanes[behind]:
            reached[behind] = math.inf
        if not waiting:
            continue
        ready, waiting = _split(pa.concat_tables(waiting), min(reached))
        if ready.num_rows:
            yield ready.sort_by([(name, "ascending") for name in order if name in ready.column_names])


def _split(table: pa.Table, reached: float) -> tuple[pa.Table, list[pa.Table]]:
    """Splits the rows into those that no rank can precede, and the others."""
    if math.isinf(reached):
        return (table, []) if reached > 0 else (table.slice(0, 0), [table])
    early = pc.less_equal(table["step"], int(reached))
    late = table.filter(pc.invert(early))
    return table.filter(early), [late] if late.num_rows else []


def _formed(table: pa.Table, form: pa.Schema) -> pa.Table:
    """Converts to exactly the columns of `form`; columns that an older run lacks are null."""
    arrays = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in form
    ]
    return pa.table(arrays, schema=form)
