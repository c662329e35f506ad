"""`fitscope show RUN`: prints one run on one screen."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from fitscope.cli.arguments import LayersOption, RunArgument, WidthOption


def show(
    run: RunArgument = "runs",
    layers: LayersOption = None,
    rows: Annotated[int, typer.Option(min=0, help="Maximum number of table rows; 0: all.")] = 40,
    width: WidthOption = None,
) -> None:
    """Show a run: its status, its loss, and every layer over the steps."""
    from fitscope.errors import FitscopeWarning
    from fitscope.read import open as open_run
    from fitscope.show.data.gather import Gathered
    from fitscope.show.summary import summary
    from fitscope.show.text import Pen, terminal

    console = terminal(width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitscopeWarning)  # the summary lists damaged files
        found = Gathered(open_run(run))
        found.update()
        drawn = summary(found, console.width, Pen.of(console), layers=layers, rows=rows)
    console.print(drawn)
