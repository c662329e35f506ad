"""`fitscope check RUN`: lists the problems of a run, with an exit code for scripts and CI."""

from __future__ import annotations

import json as json_format
import warnings
from typing import Annotated

import typer

from fitscope.cli.arguments import RunArgument

FAIL_ON = ("error", "warning", "note", "never")


def check(
    run: RunArgument = "runs",
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 for findings of this severity or worse: error, warning, note or never."
        ),
    ] = "error",
    rules: Annotated[str | None, typer.Option(help="Apply only these rules, separated by commas.")] = None,
    ignore: Annotated[str | None, typer.Option(help="Leave out these rules, separated by commas.")] = None,
    thresholds: Annotated[
        str | None, typer.Option(metavar="FILE", help="A TOML file with thresholds.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the rules and exit.")] = False,
) -> None:
    """List what is wrong with a run, where, and what to do about it."""
    from fitscope.errors import FitscopeWarning, RunError, one_of
    from fitscope.read import open as open_run
    from fitscope.show.findings import listed, told
    from fitscope.show.text import terminal

    console = terminal()
    if list_:
        console.print(listed())
        return
    if fail_on not in FAIL_ON:
        raise RunError("a severity", f"--fail-on {fail_on}", one_of(FAIL_ON, fail_on))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitscopeWarning)  # a damaged file is reported by `fitscope show`
        found = open_run(run).findings(
            rules=_names(rules), ignore=_names(ignore) or (), thresholds=thresholds
        )
    if json:
        typer.echo(json_format.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    else:
        console.print(told(found))
    if (
        fail_on != "never"
        and found.worst is not None
        and FAIL_ON.index(found.worst) <= FAIL_ON.index(fail_on)
    ):
        raise typer.Exit(1)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]
