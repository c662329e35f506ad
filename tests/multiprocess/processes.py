"""Runs the processes of one training, each ended by its own process id, every wait bounded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
PATIENCE = 240  #: seconds for all of them together; a busy machine takes 30


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(
    program: str, commands: list[list[str]], each: list[dict[str, str]] | None = None, **environment: str
) -> list[Any]:
    """What each process of a program of this folder printed after RESULT, as JSON. The commands are the arguments of each."""
    said = outputs(TESTS / "multiprocess" / program, commands, each, **environment)
    return [json.loads(text.rpartition("RESULT ")[2].partition("\n")[0]) for text in said]


def outputs(
    program: Path, commands: list[list[str]], each: list[dict[str, str]] | None = None, **environment: str
) -> list[str]:
    """What each process of a program printed; `each` has what differs between their environments."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", **environment}
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        children = [
            subprocess.Popen(
                [sys.executable, str(program), *command],
                env={**given, **own}, stdout=file, stderr=subprocess.STDOUT, text=True,
            )
            for command, file, own in zip(commands, files, each or [{}] * len(commands), strict=True)
        ]  # fmt: skip
        try:
            for child in children:
                child.wait(PATIENCE)
        finally:
            for child in children:
                child.kill()
                child.wait(30)
        return [_printed(child, file) for child, file in zip(children, files, strict=True)]


def _printed(child: subprocess.Popen[str], file: Any) -> str:
    file.seek(0)
    text = str(file.read())
    assert child.returncode == 0, text[-3000:]
    return text
