"""`fitscope export FORMAT RUN OUT`: writes a run for other tools."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from fitscope.cli.arguments import RunArgument
from fitscope.export import FORMATS, STATS, export_run

_MEANINGS = "; ".join(f"{name}: {known.meaning}" for name, known in FORMATS.items())


def export(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help=f"{_MEANINGS}.")],  # noqa: A002
    run: RunArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file or directory to write.")],
    site: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only matching sites. Repeat it for several globs."),
    ] = None,
    stat: Annotated[
        list[str] | None,
        typer.Option(metavar="STAT", help=f"Only these of {', '.join(STATS)}. Repeat it for several."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace an earlier export at OUT.")] = False,
) -> None:
    """Write a run for other tools: parquet, csv, duckdb, sqlite, tensorboard, npz or npy."""
    from fitscope import sizes
    from fitscope.errors import FitscopeWarning
    from fitscope.show.text import clean

    errors = Console(stderr=True, highlight=False)
    with warnings.catch_warnings(record=True) as said, _bar(errors) as bar:
        warnings.simplefilter("always", FitscopeWarning)
        task = bar.add_task(f"export {format}", total=None)
        written = export_run(
            run, format, out, site or None, stats=stat or None, force=force,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    for warning in said:
        errors.print(Text.assemble(("! ", "yellow"), clean(warning.message)), soft_wrap=True)
    size = sizes.show(sum(path.stat().st_size for path in written))
    where = f"{len(written)} files in {Path(out)}" if len(written) > 1 else str(written[0])
    Console(highlight=False, soft_wrap=True).print(Text(f"{clean(where)} ({size})"))


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
