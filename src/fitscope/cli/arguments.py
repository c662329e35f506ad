"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, or a directory: the newest run in it.")
]
LayersOption = Annotated[str | None, typer.Option(metavar="GLOB", help="Only layers whose names match.")]
WidthOption = Annotated[
    int | None, typer.Option(min=40, max=1000, help="Width in characters. Default: the window.")
]
