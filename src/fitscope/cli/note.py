"""`fitscope note RUN [TEXT]`: shows or changes the notes and tags of a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fitscope.cli.arguments import RunArgument


def note(
    run: RunArgument = "runs",
    text: Annotated[
        str | None, typer.Argument(help="The new notes. Without it, the notes stay unchanged.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add a tag; repeat it for several.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Remove a tag; repeat it for several.")] = None,
) -> None:
    """Show or change the notes and tags of a run."""
    from fitscope.read import open as open_run
    from fitscope.show.text import clean

    found = open_run(run)
    if text is not None:
        found.notes = text
    if tag:
        found.tag(*tag)
    if untag:
        found.untag(*untag)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(clean(f"{found.id}: {', '.join(found.tags) or 'no tags'}"))
    if found.notes is not None:
        console.print(clean(found.notes if isinstance(found.notes, str) else str(found.notes)))
