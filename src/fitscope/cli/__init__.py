"""The command line: `fitscope COMMAND`. This module lists the commands; each has its own small file.

It belongs to the reading side: a command reads a run and prints. `demo` needs a framework, so it trains in a
separate process. A fitscope error prints one message on standard error and exits with code 2, without a
traceback.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fitscope._version import __version__
from fitscope.cli.check import check
from fitscope.cli.demo import demo
from fitscope.cli.export import export
from fitscope.cli.ls import ls
from fitscope.cli.note import note
from fitscope.cli.replay import replay
from fitscope.cli.report import report
from fitscope.cli.serve import serve
from fitscope.cli.show import show
from fitscope.cli.watch import watch
from fitscope.errors import FitscopeError
from fitscope.show.text import clean

#: Every command, in the order of `fitscope --help`.
COMMANDS: tuple[Callable[..., None], ...] = (
    demo,  # train a small network with a scope and show the run
    ls,  # the runs in a directory
    show,  # one run on one screen
    watch,  # one run on one screen, live
    check,  # the findings of a run, with an exit code
    note,  # the notes and tags of a run
    replay,  # a step that the black box kept, run again
    serve,  # the page, live in the browser
    report,  # the page as one file
    export,  # a run for other tools
)

app = typer.Typer(
    name="fitscope",
    help="See inside model.fit().",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command so that it prints fitscope errors as messages."""

    @functools.wraps(command)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except FitscopeError as error:
            message = Text.assemble(("fitscope: ", "bold red"), clean(error))
            Console(stderr=True, highlight=False, soft_wrap=True).print(message)
            raise typer.Exit(2) from error

    return told


for _command in COMMANDS:
    app.command(name=_command.__name__)(_told(_command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fitscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """The entry point of the `fitscope` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
    app()
