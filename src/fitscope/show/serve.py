"""Serving the page: in the foreground for the command line, or beside a program for `fs.serve`.

Opt-in always: a training opens no port by itself, and what is served only reads what the training wrote.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import uvicorn

from fitscope.errors import StoreError
from fitscope.show.guard import Guard
from fitscope.show.protocol import Patient
from fitscope.show.server import TICK, app
from fitscope.store import Objects

Path = str | os.PathLike[str] | Objects

HOST = "127.0.0.1"
PORT = 8760


class Server:
    """A page that is being served. `url` is the address to open; `close` ends it."""

    def __init__(self, path: Path = "runs", port: int | None = None, *, tick: float = TICK) -> None:
        self._guard: Guard = app(path, tick=tick, ending=lambda: self._server.should_exit)
        self._socket = _listening(port)
        # No `log_config`: setting it up would close the handlers of everybody else's logging.
        config = uvicorn.Config(
            self._guard, log_config=None, log_level="error", access_log=False, lifespan="off", server_header=False,
            ws="none", timeout_graceful_shutdown=3, http=Patient,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address, with the token that it takes to look."""
        return f"http://{HOST}:{self.port}/?token={self._guard.token}"

    def run(self) -> None:
        """Serves until interrupted."""
        self._server.run([self._socket])

    def start(self) -> Server:
        """Serves on a thread of its own, which does not keep a program alive.

        Signals stay the program's: uvicorn listens to them on the main thread only.
        """
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="fitscope-page", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """Ends serving. A second call does nothing."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5)
        self._socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<fitscope page at {self.url}>"


def serve(path: Path = "runs", port: int | None = None) -> Server:
    """Serves the page of the runs at `path` beside the program, until `close` or the program's end."""
    return Server(path, port).start()


def _listening(port: int | None) -> socket.socket:
    """A port of this machine: the one asked for, or the first free one from 8760 on."""
    last: OSError | None = None
    for number in [port] if port is not None else [*range(PORT, PORT + 20), 0]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen()  # so that nobody else takes it, and who comes early waits
            return listening
        except (OSError, OverflowError) as problem:
            listening.close()
            last = problem if isinstance(problem, OSError) else OSError(str(problem))
    raise StoreError(f"a free port of {HOST}", f"{port} ({last})", "Name another, or none to take a free one")
