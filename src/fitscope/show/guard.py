"""Who may look: everything a request must pass before it reaches a page, and what every answer carries.

The server shows people's training samples, so it does as Jupyter does. It listens on this machine only; `Host` and
`Origin` must name it (by name, not port: SSH forwards change the port), which stops DNS rebinding and other sites;
a random token from the printed address is needed for everything, compared in constant time and exchanged for a
cookie that scripts cannot read and other sites cannot send. Only GET and HEAD are answered. Refusals carry the same
headers as pages do.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HERE = ("127.0.0.1", "localhost", "::1", "[::1]")  #: names of this machine
COOKIE = "fitscope"

#: Nothing from elsewhere, nothing inline, nobody may frame us.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI app around another."""

    def __init__(self, app: ASGIApp, token: str | None = None, names: tuple[str, ...] = HERE) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no web sockets
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD.", 405, {"allow": "GET, HEAD"})
        if len(headers.getlist("host")) != 1 or not self._is_us(f"http://{headers['host']}"):
            return PlainTextResponse("This server goes by localhost only.", 403)
        origin = headers.get("origin")
        if (origin is not None and not self._is_us(origin)) or headers.get("sec-fetch-site") == "cross-site":
            return PlainTextResponse("Not for other sites.", 403)
        return self._unknown(scope, headers)

    def _unknown(self, scope: Scope, headers: Headers) -> Response | None:
        """None if the request has the cookie. A token in the address is changed for one, and goes from there."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        if self._right(_cookies(headers).get(COOKIE, "")) and not given:
            return None
        if not self._right(given):
            return PlainTextResponse(
                "Open the address that fitscope printed: the token in it is missing here.", 403
            )
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        answer = RedirectResponse("/" + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
        return answer

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def _is_us(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            return (
                parts.hostname in self._names
                and "@" not in parts.netloc
                and parts.scheme in ("http", "https")
            )
        except ValueError:
            return False


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


def _cookies(headers: Headers) -> dict[str, Any]:
    pairs = (pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return {name: value for name, _, value in pairs}
