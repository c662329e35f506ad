"""`fitscope serve RUNS`: serves the page, live in the browser."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text


def serve(
    runs: Annotated[
        str, typer.Argument(metavar="RUNS", help="A directory or URL with runs, or one run.")
    ] = "runs",
    port: Annotated[int | None, typer.Option(help="The port. Default: the first free one from 8760.")] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve the page of runs on this machine, live during training."""
    from fitscope.errors import RunError
    from fitscope.read import runs as list_runs
    from fitscope.read.find import nearby
    from fitscope.show.serve import Server
    from fitscope.show.text import clean
    from fitscope.store.places import is_local, place

    # Report a wrong place here, not in the browser.
    list_runs(runs)  # this opens no run
    objects = place(runs, writing=False)
    local = is_local(objects)
    if local is not None and not local.exists():
        raise RunError(
            "a directory or URL with runs in it",
            f"{runs!r}, which does not exist",
            f"{nearby(objects)}Check the path; to serve future runs, create the directory first",
        )
    server = Server(runs, port)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text.assemble("Open  ", (server.url, "bold cyan")))
    told = (
        f"Serves the runs in {clean(runs)}, live. Only this machine can open the page, and only with this address. "
        f"Over SSH, forward the port:\n  ssh -L {server.port}:127.0.0.1:{server.port} …\nPress Ctrl+C to stop."
    )
    console.print(Text(told, "dim"))
    with _in_browser(server.url) if browser else contextlib.nullcontext():
        server.run()


@contextlib.contextmanager
def _in_browser(url: str) -> Iterator[None]:
    """Opens an address that other users must not see. Everyone on the machine can read the browser's command line, so the
    browser gets a redirecting file that only this user can read."""
    import webbrowser

    from fitscope.show.guard import onward

    handle, name = tempfile.mkstemp(prefix="fitscope-", suffix=".html")  # only its owner can read it
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(onward(url))
        webbrowser.open(Path(name).as_uri())
        yield
    finally:
        Path(name).unlink(missing_ok=True)
