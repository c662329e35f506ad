"""Runs SQL over the tables of a run, with DuckDB.

DuckDB scans the parts through Arrow, which checks the checksum of each page. A damaged part stops the query; fitscope finds it,
skips it and runs the query again. So a query returns the right answer for the undamaged data, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pandas as pd

from fitscope.errors import RunError
from fitscope.read.tables import Table
from fitscope.sites import TRAIN
from fitscope.store import schema


def ask(query: str, tables: Sequence[Table], ends: Mapping[int, int | None]) -> pd.DataFrame:
    """Runs the query. `ends` has for each attempt the step at which it stops counting."""
    try:
        return _ask(query, tables, ends)
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as problem:
        raise refused(query, problem) from problem
    except (duckdb.Error, OSError, ValueError) as problem:
        before = sum(len(table.parts) for table in tables)
        for table in tables:
            table.verify()
        if sum(len(table.parts) for table in tables) == before:
            raise refused(query, problem) from problem
    try:
        return _ask(query, tables, ends)
    except duckdb.Error as problem:
        raise refused(query, problem) from problem


def _ask(query: str, tables: Sequence[Table], ends: Mapping[int, int | None]) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.execute("SET python_enable_replacements = false")  # names refer only to tables of the run
        for table in tables:
            sources = {f"{table.name}_parts": table.dataset(), f"{table.name}_waiting": table.waiting()}
            there = {name: source for name, source in sources.items() if source is not None}
            for name, source in there.items():
                connection.register(name, source)
            where = _owned(ends)
            rows = " UNION ALL ".join(f"SELECT * FROM {name}{where}" for name in there)
            connection.execute(f"CREATE VIEW {table.name} AS {rows}")
        frame: pd.DataFrame = connection.sql(query).df()
        return frame


def _owned(ends: Mapping[int, int | None]) -> str:
    """The condition for a row to count, as in `Part.owned`."""
    rules = [
        f"(attempt = {number} AND (step > {end} OR (step = {end} AND pass = '{TRAIN}')))"
        for number, end in ends.items()
        if end is not None
    ]
    return f" WHERE NOT ({' OR '.join(rules)})" if rules else ""


def refused(query: str, problem: BaseException, more: str = "") -> RunError:
    """The error for a query that DuckDB refuses."""
    tables = "; ".join(f"{name}: {', '.join(form.names)}" for name, form in schema.TABLES.items())
    return RunError(
        "a query that DuckDB can answer",
        f"{query!r}, which fails with: {str(problem).strip()}",
        f"{more}The tables and their columns are {tables}",
    )
