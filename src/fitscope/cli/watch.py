"""`fitscope watch RUN`: shows a run in the terminal, live during training."""

from __future__ import annotations

import time
import warnings
from typing import Annotated

import typer
from rich.live import Live

from fitscope.cli.arguments import LayersOption, RunArgument, WidthOption


def watch(
    run: RunArgument = "runs",
    layers: LayersOption = None,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of table rows.")] = 12,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 2.0,
    width: WidthOption = None,
) -> None:
    """Watch a run in the terminal until it ends."""
    from fitscope.errors import FitscopeWarning
    from fitscope.read import open as open_run
    from fitscope.show.data.gather import Gathered
    from fitscope.show.summary import summary
    from fitscope.show.text import Pen, terminal

    console = terminal(width)
    pen = Pen.of(console)
    found = Gathered(open_run(run))
    # A file or a pipe gets only the final state, because repeated screens are of no use there.
    with (
        warnings.catch_warnings(),
        Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True) as live,
    ):
        warnings.simplefilter("ignore", FitscopeWarning)  # the summary lists damaged files
        while True:
            going = found.run.status == "running"
            if found.update() or not going:
                drawn = summary(found, console.width, pen, layers=layers, rows=rows)
                if console.is_terminal:
                    live.update(drawn, refresh=True)
            if not going:
                break
            time.sleep(interval)
    console.print(drawn)
