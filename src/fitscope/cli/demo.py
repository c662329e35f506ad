"""`fitscope demo`: trains a small network with a scope and shows the run.

`fitscope.cli.demo_training` trains in a separate process, because Keras chooses its backend once per process, and
the reading side imports no framework.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from fitscope.show.serve import Server

#: The backends, the lightest first.
BACKENDS = ("jax", "torch", "tensorflow")


def demo(
    to: Annotated[str, typer.Option(metavar="DIR", help="Where to put the run.")] = "runs",
    backend: Annotated[
        str | None, typer.Option(help="jax, tensorflow or torch. Default: the first installed one.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page during training, until Ctrl+C.")
    ] = False,
) -> None:
    """Train a small network with a scope, in about a minute, and show the run."""
    from fitscope.cli.show import show
    from fitscope.store.places import place

    place(to)  # report a wrong place here, not in the process that trains
    console = Console(highlight=False, soft_wrap=True)
    environment = {**os.environ, "KERAS_BACKEND": _backend(backend), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with _served(to, console) if serve else contextlib.nullcontext() as server:
        done = subprocess.run(
            [sys.executable, "-m", "fitscope.cli.demo_training", "--to", to], env=environment, check=False
        )
        if done.returncode:
            raise typer.Exit(done.returncode if done.returncode > 0 else 1)
        show(to)
        where = {"where": escape(shlex.quote(to)), "to": escape(to), "report": escape(_report(to))}
        text = SEEN + NEXT.format(command=escape(_command()), python=escape(_python()), **where)
        console.print(text)
        if server is not None:
            console.print(f"Serving [bold cyan]{escape(server.url)}[/]  Press Ctrl+C to stop.")
            with contextlib.suppress(KeyboardInterrupt):
                _until_interrupted()


def _until_interrupted() -> None:
    threading.Event().wait()


def _served(to: str, console: Console) -> Server:
    """Starts the page server for the coming run."""
    from fitscope.show.serve import Server

    Path(to).mkdir(parents=True, exist_ok=True)
    server = Server(to).start()
    console.print(f"Open [bold cyan]{escape(server.url)}[/] to see it live.")
    return server


def _report(to: str) -> str:
    """Writes the report next to the runs and returns its path."""
    from fitscope.read import open as open_run
    from fitscope.show.data.gather import Gathered
    from fitscope.show.report import report, save

    gathered = Gathered(open_run(to))
    gathered.update()
    return str(save(Path(to) / "report.html", report(gathered)))


SEEN = """
The training contains two bugs that the loss does not show:
  [bold]side[/] outputs almost only zeros, because it started with a large negative bias;
  [bold]conv1[/] jumps once per epoch, because one batch was never scaled to 0…1.
"""

NEXT = """The page of this run as one file: [bold]{report}[/]

[dim]Next[/]
  {command} check {where}                 [dim]# names both, with layer, step and cure[/]
  {command} serve {where}                 [dim]# the page, live[/]
  {command} show {where} --layers 'conv*'
  {command} ls {where}
  {python} -c 'import fitscope as fs; print(fs.open("{to}").frame("activations/conv1"))'
"""


def _backend(wanted: str | None) -> str:
    from fitscope.errors import ModelError, one_of

    wanted = wanted or os.environ.get("KERAS_BACKEND") or None
    installed = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
    if wanted is not None and wanted not in BACKENDS:
        raise ModelError("--backend to name a backend", repr(wanted), one_of(BACKENDS, wanted))
    if wanted in installed:
        return wanted
    if wanted is not None or not installed:
        missing = wanted or "jax"
        raise ModelError(
            "an installed backend",
            f"{missing!r}, which is not installed" if wanted else "none",
            f"Install it: pip install 'fitscope[{missing}]'",
        )
    return installed[0]


def _command() -> str:
    """The command that runs `fitscope` from the current directory."""
    beside = Path(sys.executable).with_name("fitscope")
    found = shutil.which("fitscope")
    if found is not None and Path(found).exists() and beside.exists() and Path(found).samefile(beside):
        return "fitscope"
    return _shown(beside) if beside.exists() else f"{_python()} -m fitscope"


def _python() -> str:
    found = shutil.which("python")
    return "python" if found is not None and found == sys.executable else _shown(Path(sys.executable))


def _shown(path: Path) -> str:
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
