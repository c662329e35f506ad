"""The stats table as one CSV file. Lists (shape, buckets, counts) are JSON; what is not there is empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from fitscope.export.place import new_file
from fitscope.export.rows import columns, rows
from fitscope.store.schema import STATS_SCHEMA

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    names = columns(stats)
    form = with_texts(pa.table([[]] * len(names), schema=_form(names))).schema
    with new_file(out, force) as path, pa.csv.CSVWriter(path, form) as writer:
        for table in rows(run, sites, names, progress):
            writer.write_table(with_texts(table))
    return [out]


def with_texts(table: pa.Table) -> pa.Table:
    """The table with its lists as JSON text."""
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if items is None else json.dumps(items) for items in table[place].to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table


def _form(names: Sequence[str]) -> pa.Schema:
    return pa.schema([STATS_SCHEMA.field(name) for name in names])
