"""`fitscope ls [DIR]`: lists the runs in a directory, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
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
    from fitscope.show.summary import STATUS
    from fitscope.show.text import WIDEST, clean, terminal
    from fitscope.store.places import place

    found = runs(directory)
    if not found:
        raise RunError(
            "a directory with runs in it",
            f"{directory!r}, which has none",
            f"{nearby(place(directory, writing=False))}Train with fs.Scope(directory), or try: fitscope demo",
        )
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for title, justify in (
        ("run", "left"), ("status", "left"), ("model", "left"), ("step", "right"), ("size", "right"),
        ("created", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for run in found:
        sign, style = STATUS.get(run.status, ("✖", "bold red"))
        table.add_row(
            _name(run),
            Text(f"{sign} {clean(run.status)}", style),
            Text(clean(run.model or "")),
            f"{run.last_step:,}" if run.last_step is not None else "–",
            sizes.show(run.bytes),
            run.created.astimezone().strftime("%Y-%m-%d %H:%M") if run.created else "",
        )
    console = terminal()
    if not console.is_terminal:
        console.width = WIDEST  # do not truncate output to a file or a pipe
    console.print(table)
    for run in found:
        if run.problem:
            console.print(Text.assemble(("✖ ", "red"), f"{_name(run)}: {clean(run.problem)}"), soft_wrap=True)


def _name(run: Brief) -> Text:
    """The folder of a run, which distinguishes a copy from its original, and the id if it differs."""
    from fitscope.show.text import clean

    folder = run.path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    name = Text(clean(folder))
    return name if folder == run.id else name.append(f" ({clean(run.id)})", "dim")
