"""Writes the stats table as one CSV file, and the samples table as a second one.

Lists (shape, buckets, counts; targets and predictions) become JSON; missing values are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from fitscope.export.place import beside, new_file
from fitscope.export.rows import SAMPLES, columns, rows, samples
from fitscope.store.schema import SAMPLES_SCHEMA, STATS_SCHEMA

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    form = pa.schema([STATS_SCHEMA.field(name) for name in columns(stats)])
    written = [_write(out, form, rows(run, sites, form.names, progress), force)]
    if SAMPLES in sites:
        written.append(_write(beside(out, SAMPLES), SAMPLES_SCHEMA, samples(run), force))
    return written


def _write(out: Path, form: pa.Schema, tables: Iterator[pa.Table], force: bool) -> Path:
    texts = with_texts(form.empty_table()).schema
    with new_file(out, force) as path, pa.csv.CSVWriter(path, texts) as writer:
        for table in tables:
            writer.write_table(with_texts(table))
    return out


def with_texts(table: pa.Table) -> pa.Table:
    """Converts the lists of a table to JSON text."""
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if items is None else json.dumps(items) for items in table[place].to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table
