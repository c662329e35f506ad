"""Serves the page: in the foreground for the command line, or in a thread for `fs.serve`.

Serving is always opt-in: a training opens no port, and the server only reads the files of the run.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import uvicorn

from fitscope.errors import StoreError
from fitscope.show.app import TICK, app
from fitscope.show.guard import Guard
from fitscope.show.protocol import BACKLOG, Patient
from fitscope.store import Objects

Path = str | os.PathLike[str] | Objects

HOST = "127.0.0.1"
PORT = 8760


class Server:
    """A running page server. `fs.serve` returns one.

    Args:
        path: A run, or a directory with runs.
        port: The port to listen on. By default the first free one from 8760.
        tick: Seconds between two looks at a live run.
    """

    def __init__(self, path: Path = "runs", port: int | None = None, *, tick: float = TICK) -> None:
        self._guard: Guard = app(path, tick=tick, ending=lambda: self._server.should_exit)
        self._socket = _listening(port)
        # `log_config=None`, because configuring it would close the log handlers of the user's program.
        config = uvicorn.Config(
            self._guard, log_config=None, log_level="error", access_log=False, lifespan="off", server_header=False,
            ws="none", timeout_graceful_shutdown=3, http=Patient, backlog=BACKLOG,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address to open, including the access token."""
        return f"http://{HOST}:{self.port}/?token={self._guard.token}"

    def run(self) -> None:
        """Serves in this thread until interrupted."""
        self._server.run([self._socket])

    def start(self) -> Server:
        """Serves in a daemon thread, which does not keep the program alive.

        uvicorn leaves signals to the program, because it handles them in the main thread only.
        """
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="fitscope-page", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """Stops serving. A second call does nothing."""
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
    """Serves the page of the runs at `path` in a background thread, until `close()` or the end of the program.

    Args:
        path: A run, or a directory with runs.
        port: The port to listen on. By default the first free one from 8760.
    """
    return Server(path, port).start()


def _listening(port: int | None) -> socket.socket:
    """A socket on this machine: on the requested port, or on the first free one from 8760."""
    last: OSError | None = None
    for number in [port] if port is not None else [*range(PORT, PORT + 20), 0]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen()  # reserves the port; early requests wait
            return listening
        except (OSError, OverflowError) as problem:
            listening.close()
            last = problem if isinstance(problem, OSError) else OSError(str(problem))
    raise StoreError(
        f"a free port of {HOST}", f"{port} ({last})", "Choose another port, or leave it out to use a free one"
    )
