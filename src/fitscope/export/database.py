"""The tables of the databases, the same in DuckDB and SQLite, and the code that fills them.

    runs         one row per run: facts about it at the time of the export
    stats        one row per run, site and step: as in `store/schema.py`, without the histogram
    histograms   one row per run, site, step and non-empty bucket: lower, upper, count
    samples      one row per run, step, batch, sample and output: as in `store/schema.py`

`lower` and `upper` bound the values of a bucket, so for negative values `lower` is farther from zero; bucket 0 is 0 … 0. The
buckets next to zero start at zero, and the outermost end at infinity, because `reduce/stats.py` counts all smaller or larger
values in them.

A `Database` is a file with these tables. Adding a run is atomic.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from fitscope.errors import StoreError
from fitscope.export.rows import HISTOGRAM, SAMPLES, columns, rows, samples
from fitscope.reduce.stats import ZERO_BUCKET, edges
from fitscope.sites import TRAIN
from fitscope.store.places import in_utf8, new_file_at
from fitscope.store.schema import SAMPLES_SCHEMA, STATS_SCHEMA

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run

_RUN = pa.field("run", pa.string())  # the id of the run, a column of every table

_OF_HISTOGRAM = ["site", "pass", "step", "epoch", "batch", "rank"]

TABLES = {
    "runs": pa.schema(
        [
            _RUN,
            ("path", pa.string()),
            ("created", pa.string()),  # ISO 8601, UTC; so is `exported`
            ("exported", pa.string()),
            ("status", pa.string()),  # running, complete, interrupted or failed
            ("last_step", pa.int64()),
            ("bytes", pa.int64()),
            ("model", pa.string()),  # the name of the model
            ("parameters", pa.int64()),
            ("errors", pa.int64()),  # the number of errors while recording
            ("dropped", pa.string()),  # {site: records} as JSON; the columns below are JSON too
            ("lost", pa.string()),
            ("software", pa.string()),  # versions of the software
            ("plan", pa.string()),  # the watches
        ]
    ),
    "stats": pa.schema([_RUN, *(field for field in STATS_SCHEMA if field.name not in HISTOGRAM)]),
    "histograms": pa.schema(
        [
            _RUN,
            *(STATS_SCHEMA.field(name) for name in _OF_HISTOGRAM),
            ("bucket", pa.int16()),  # −256…256
            ("lower", pa.float64()),
            ("upper", pa.float64()),
            ("count", pa.int64()),
        ]
    ),
    "samples": pa.schema([_RUN, *SAMPLES_SCHEMA]),
}


class Database(ABC):
    """An open file with these tables. Use it as a context manager: it commits only if no error occurs."""

    Error: type[Exception]  #: the base class of the database's own errors

    def __init__(self, out: Path) -> None:
        self._out = out
        self._connection: Any = None

    def __enter__(self) -> Self:
        self._connection = self._connect()
        try:
            self._begin()
            for name, form in TABLES.items():
                self._prepare(name, form)
        except BaseException as problem:
            self._connection.close()
            if isinstance(problem, self.Error):  # the file is locked, read-only, or something else
                raise not_ours(self._out, problem) from problem
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            self._connection.close()  # uncommitted rows are lost

    @abstractmethod
    def _connect(self) -> Any:
        """Opens the file."""

    @abstractmethod
    def _begin(self) -> None:
        """Begins the transaction."""

    @abstractmethod
    def _columns(self, name: str, form: pa.Schema) -> tuple[dict[str, str], Collection[str]]:
        """Creates the table if it does not exist. Returns the expected columns with their types, and the existing columns."""

    def _prepare(self, name: str, form: pa.Schema) -> None:
        """Creates the table, or adds the columns that an older version lacks."""
        wanted, there = self._columns(name, form)
        if "run" not in there:
            raise not_ours(self._out, f"its table {name} has no column run")
        for column in wanted.keys() - there:
            self._connection.execute(f'ALTER TABLE {name} ADD COLUMN "{column}" {wanted[column]}')

    def runs(self) -> list[str]:
        """The ids of the runs in the file."""
        return [run for (run,) in self._connection.execute("SELECT run FROM runs").fetchall()]

    def execute(self, statement: str, values: Sequence[Any]) -> None:
        """Executes an SQL statement. `values` fill its `?` placeholders."""
        self._connection.execute(statement, values)

    @abstractmethod
    def insert(self, name: str, table: pa.Table) -> None:
        """Adds rows to one of the `TABLES`; columns that are not in `table` stay null."""

    @classmethod
    @abstractmethod
    def is_busy(cls, problem: BaseException) -> bool:
        """Whether an error means that another process uses the file at the moment."""

    @classmethod
    @abstractmethod
    def is_one(cls, start: bytes) -> bool:
        """Whether a file that starts with these bytes can be such a database."""

    def remove(self, run: str) -> None:
        """Deletes a run from all tables."""
        for name in TABLES:
            self.execute(f"DELETE FROM {name} WHERE run = ?", [run])

    def forget(self, run: str, start: int) -> None:
        """Deletes the rows that no longer count when a run continues from a step.

        A pass at that step stays, because it describes the weights before the step.
        """
        for name in ("stats", "histograms", "samples"):
            self.execute(
                f"DELETE FROM {name} WHERE run = ? AND (step > ? OR (step = ? AND pass = ?))",
                [run, start, start, TRAIN],
            )


def check(database: type[Database], out: Path) -> None:
    """Raises an error unless `out` is such a database or does not exist."""
    if new_file_at(out).exists():
        with out.open("rb") as file:
            start = file.read(64)
        if start and not database.is_one(start):
            raise not_ours(out, "it begins with something else")


def fill(
    database: type[Database], run: Run, out: Path, sites: Sequence[str], stats: Sequence[str], force: bool,
    progress: Progress,
) -> list[Path]:  # fmt: skip
    """Adds a run to the database at `out`, and creates the file if necessary."""
    check(database, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    new = not out.exists()
    try:
        with database(out) as tables:
            _fill(tables, run, sites, stats, force, progress, out)
    except BaseException as problem:
        if new:
            for leftover in (out, out.with_name(f"{out.name}.wal"), out.with_name(f"{out.name}-journal")):
                leftover.unlink(missing_ok=True)
        if isinstance(problem, database.Error):
            raise StoreError(
                "a database that takes the run",
                f"{str(out)!r} ({problem})",
                "Free some space there, or choose another file",
            ) from problem
        raise
    return [out]


def _fill(
    tables: Database, run: Run, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress,
    out: Path,
) -> None:  # fmt: skip
    if run.id in tables.runs():
        if not force:
            raise there_already(run, out, "force=True (--force) to replace the run in it")
        tables.remove(run.id)
    tables.insert("runs", facts(run))
    for table in rows(run, sites, columns(stats), progress):
        insert_stats(tables, run, table)
    if SAMPLES in sites:
        for table in samples(run):
            tables.insert("samples", of(run, table))


def insert_stats(tables: Database, run: Run, table: pa.Table) -> None:
    """Adds rows of the stats table and their histograms."""
    tables.insert("stats", of(run, table.drop_columns([n for n in HISTOGRAM if n in table.column_names])))
    if "buckets" in table.column_names:
        tables.insert("histograms", of(run, histograms(table)))


def there_already(run: Run, out: Path, or_else: str) -> StoreError:
    return StoreError(
        "a database without this run",
        f"{str(out)!r}, which has run {run.id!r}",
        f"Choose another, or {or_else}",
    )


def not_ours(out: Path, why: object) -> StoreError:
    """The error for a file that is not such a database."""
    return StoreError(
        "a database made by `fitscope export`, or a new file", f"{str(out)!r} ({why})", "Choose another name"
    )


def of(run: Run, table: pa.Table) -> pa.Table:
    """Returns the table with the run's id as the first column."""
    return table.add_column(0, _RUN, pa.array([run.id] * table.num_rows, pa.string()))


def facts(run: Run) -> pa.Table:
    """Returns the row of a run in the table `runs`."""
    model = run.model if isinstance(run.model, dict) else {}
    parameters = model.get("parameters")
    row: dict[str, Any] = {
        "run": run.id,
        "path": in_utf8(run.path),
        "created": run.created.isoformat(timespec="seconds"),
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": run.status,
        "last_step": run.last_step,
        "bytes": run.bytes,
        "model": None if model.get("name") is None else str(model["name"]),
        "parameters": parameters if isinstance(parameters, int) else None,
        "errors": run.errors_total,
        "dropped": json.dumps(run.dropped),
        "lost": json.dumps(run.lost),
        "software": json.dumps(run.info.get("software")),
        "plan": json.dumps(run.plan),
    }
    return pa.Table.from_pylist([row], schema=TABLES["runs"])


@functools.cache
def bounds() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The lower and upper bounds of the values in each bucket, −256…256."""
    near = edges()
    far = near * 2
    for sign in (-1, 1):
        near[ZERO_BUCKET + sign] = 0.0
        far[ZERO_BUCKET + sign * ZERO_BUCKET] = sign * np.inf
    return np.minimum(near, far), np.maximum(near, far)


def histograms(table: pa.Table) -> pa.Table:
    """The histograms of stats rows, with one row per bucket."""
    lists = table["buckets"].combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    row = pa.array(np.repeat(np.arange(table.num_rows), lengths))
    about = table.select(_OF_HISTOGRAM).take(row)
    bucket = lists.flatten()
    lower, upper = bounds()
    place = bucket.to_numpy(zero_copy_only=False).astype(np.intp) + ZERO_BUCKET
    for name, column in (
        ("bucket", bucket),
        ("lower", pa.array(lower[place], pa.float64())),
        ("upper", pa.array(upper[place], pa.float64())),
        ("count", table["counts"].combine_chunks().flatten()),
    ):
        about = about.append_column(name, column)
    return about
