"""The HTTP protocol of the page's server: uvicorn's, with three additions.

The server closes a connection whose request does not arrive whole within `PATIENCE` seconds, so that an incomplete request blocks
nothing. It keeps at most `MOST` connections, and makes room by closing the one that has waited longest for its request, so that
nobody uses up the files that the process may open. And uvicorn's own refusal of bytes that are not HTTP carries the same headers
as every other answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fitscope.show.guard import HEADERS

BACKLOG = 64  #: connections that the system accepts before the server counts them


def _most() -> int:
    """Half of the files that this process may open, at most 1,024."""
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows lacks this module
        return 256
    return 1024 if files == resource.RLIM_INFINITY else max(16, min(files // 2, 1024))


MOST = _most()  #: the most connections at once
#: Seconds from the first byte, or from the start of the connection, until a request must be complete.
PATIENCE = 5.0


class Patient(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()
        there = [
            one for one in self.connections if isinstance(one, Patient) and not one.transport.is_closing()
        ]
        if len(there) > MOST:
            waiting = [(one._deadline.when(), one) for one in there if one._deadline is not None]
            min(waiting, key=lambda each: each[0])[1].transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not waiting:
            self._settle()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are not HTTP, with the same headers as every other answer."""
        body = msg.encode()
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        headers += [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        headers += [(b"content-length", str(len(body)).encode())]
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        # An answer to an earlier request of the same connection may have begun.
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(PATIENCE, self._give_up)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
