"""Writes the stats table as one Parquet file, with the columns of `store/schema.py`, and the samples table as a second one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from fitscope.export.place import beside, new_file
from fitscope.export.rows import SAMPLES, columns, rows, samples
from fitscope.store.schema import SAMPLES_SCHEMA, STATS_SCHEMA

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run

GROUP_ROWS = 50_000  #: rows collected before a write: parts may be small, but row groups should not be


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    form = pa.schema([STATS_SCHEMA.field(name) for name in columns(stats)])
    written = [_write(run, out, form, rows(run, sites, form.names, progress), force)]
    if SAMPLES in sites:
        written.append(_write(run, beside(out, SAMPLES), SAMPLES_SCHEMA, samples(run), force))
    return written


def _write(run: Run, out: Path, form: pa.Schema, tables: Iterator[pa.Table], force: bool) -> Path:
    form = form.with_metadata({"fitscope.run": run.id})
    with new_file(out, force) as path, pq.ParquetWriter(path, form, compression="zstd") as writer:
        for group in _groups(tables):
            writer.write_table(group.cast(form), row_group_size=GROUP_ROWS)
    return out


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if sum(one.num_rows for one in gathered) >= GROUP_ROWS:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)
