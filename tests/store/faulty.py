"""A proxy in front of an S3 server that answers as a store in trouble does.

`fault` decides about each request: None passes it on, a number is answered as that HTTP status, `DROP` closes the connection, and
a `Delay` passes it on later. It may be changed at any time, from any thread.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

DROP = -1


class Delay(NamedTuple):
    """Passes a request on after so many seconds."""

    seconds: float


Fault = int | Delay | None
Decide = Callable[[str, str], Fault]  #: from the method and the path of a request

CODES = {503: "SlowDown", 500: "InternalError", 403: "ExpiredToken"}


class Faulty:
    """The proxy. `asked` has the method and path of each request, with the time and what became of it."""

    def __init__(self, host: str, port: int) -> None:
        self.fault: Decide = lambda method, path: None
        self.asked: list[tuple[float, str, str, Fault]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.fault(self.command, self.path)
                proxy.asked.append((time.monotonic(), self.command, self.path, fault))
                if fault == DROP:
                    self.close_connection = True
                    return
                if isinstance(fault, Delay):
                    time.sleep(fault.seconds)
                elif fault is not None:
                    self.reply(fault, {}, f"<Error><Code>{CODES[fault]}</Code></Error>".encode())
                    return
                inner = http.client.HTTPConnection(host, port, timeout=60)
                with contextlib.closing(inner):
                    inner.request(self.command, self.path, body or None, dict(self.headers))
                    found = inner.getresponse()
                    self.reply(found.status, dict(found.getheaders()), found.read())

            def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                head = self.command == "HEAD"
                self.send_response(status)
                for name, value in headers.items():
                    ours = ("connection", "transfer-encoding", "date", "server", "keep-alive")
                    if name.lower() not in (*ours, *(() if head else ("content-length",))):
                        self.send_header(name, value)
                if not head:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if not head:
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextlib.contextmanager
    def faults(self, fault: Decide) -> Iterator[None]:
        """Inside, requests meet these faults."""
        before, self.fault = self.fault, fault
        try:
            yield
        finally:
            self.fault = before


def every(n: int, fault: Fault, method: str = "PUT") -> Decide:
    """Every n-th request of a method meets a fault."""
    count = 0

    def decide(asked: str, _: str) -> Fault:
        nonlocal count
        if asked != method:
            return None
        count += 1
        return fault if count % n == 0 else None

    return decide


def always(fault: Fault) -> Decide:
    """All requests meet it."""
    return lambda _method, _path: fault
