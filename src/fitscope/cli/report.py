"""`fitscope report RUN -o report.html`: writes a run as one file to keep or send."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fitscope.cli.arguments import RunArgument


def report(
    run: RunArgument = "runs",
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the page of a run as one self-contained HTML file."""
    from fitscope import sizes
    from fitscope.errors import FitscopeWarning, StoreError
    from fitscope.read import open as open_run
    from fitscope.show.data.gather import Gathered
    from fitscope.show.report import report as make
    from fitscope.show.report import save
    from fitscope.show.text import clean

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitscopeWarning)  # the report lists damaged files
        gathered = Gathered(open_run(run))
        gathered.update()
        text = make(gathered)
    try:
        path = save(out, text)
    except OSError as problem:
        raise StoreError("a writable file", f"{str(out)!r} ({problem})", "Choose another path") from problem
    size = sizes.show(path.stat().st_size)
    Console(highlight=False, soft_wrap=True).print(Text(f"{clean(path)} ({size})"))
