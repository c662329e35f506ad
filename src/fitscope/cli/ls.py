"""`fitscope ls [DIR]`: lists the runs in a directory, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

if TYPE_CHECKING:
    from fitscope.read import Brief


def ls(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where the runs are: a directory or a URL.")
    ] = "runs",
) -> None:
    """List the runs in a directory."""
    from fitscope import sizes
    from fitscope.errors import RunError
    from fitscope.read import runs
    from fitscope.read.find import nearby
    from fitscope.show.summary import STATUS, Column, fitted
    from fitscope.show.text import WIDEST, clean, terminal
    from fitscope.store.places import place

    found = runs(directory)
    if not found:
        raise RunError(
            "a directory with runs in it",
            f"{directory!r}, which has none",
            f"{nearby(place(directory, writing=False))}Train with fs.Scope(directory), or try: fitscope demo",
        )

    def status(run: Brief) -> Text:
        sign, style = STATUS.get(run.status, ("✖", "bold red"))
        return Text(f"{sign} {clean(run.status)}", style)

    def created(run: Brief) -> str:
        return run.created.astimezone().strftime("%Y-%m-%d %H:%M") if run.created else ""

    columns = [
        Column("run", [_name(run) for run in found], 0, left=True),
        Column("status", [status(run) for run in found], 5, left=True),
        Column("model", [Text(clean(run.model or "")) for run in found], 1, left=True),
        Column("step", [Text("–" if run.last_step is None else f"{run.last_step:,}") for run in found], 4),
        Column("size", [Text(sizes.show(run.bytes)) for run in found], 2),
        Column("created", [Text(created(run)) for run in found], 3, left=True),
    ]
    console = terminal()
    if not console.is_terminal:
        console.width = WIDEST  # do not truncate output to a file or a pipe
    console.print(fitted(columns, console.width, gap=3))
    for run in found:
        if run.problem:
            console.print(Text.assemble(("✖ ", "red"), f"{_name(run)}: {clean(run.problem)}"), soft_wrap=True)


def _name(run: Brief) -> Text:
    """The folder of a run, which distinguishes a copy from its original, and the id if it differs."""
    from fitscope.show.text import clean

    folder = run.path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    name = Text(clean(folder))
    return name if folder == run.id else name.append(f" ({clean(run.id)})", "dim")
