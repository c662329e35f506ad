"""Controls access: checks every request, and adds the headers of every answer.

The server shows people's training samples, so it follows Jupyter's model. It listens on this machine only. `Host` and `Origin`
must name this machine (the name, not the port, because SSH forwarding changes the port), which stops DNS rebinding and other
sites. Every request needs a random token from the printed address. The server compares it in constant time and exchanges it for a
cookie that scripts cannot read and other sites cannot send. Browsers store cookies by host name, not port, and send them to every
port. So each server uses its own cookie name, and a random value that says nothing about the token and ends with the server. The
server rejects pages on other ports like other sites. It answers only GET and HEAD. Rejections and failures carry the same headers
as pages.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("fitscope")

HERE = ("127.0.0.1", "localhost", "[::1]")  #: the names of this machine
_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)

#: No external resources, nothing inline, no framing.
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
    """An ASGI app that wraps another."""

    def __init__(self, app: ASGIApp, token: str | None = None, names: tuple[str, ...] = HERE) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.session = secrets.token_urlsafe(24)  #: the value of the cookie
        self.cookie = f"fitscope-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # refuse web sockets
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await guarded(message)

        guarded = _with_headers(send)
        try:
            answer = self._answer(scope)
            if answer is not None and answer.status_code >= 400:
                # Close refused connections, so that a client cannot keep one or fill it with answers that it never reads.
                answer.headers["connection"] = "close"
            await (answer or self._app)(scope, receive, sending)
        except Exception as problem:
            # The server and all other pages continue. This page and the log of the server show the error.
            _log.error("%s could not be answered: %s: %s", scope["path"], type(problem).__name__, problem)
            if not begun:
                failed = PlainTextResponse(
                    "fitscope could not answer this. Its terminal shows the reason.", 500
                )
                await failed(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """The guard's own answer: a refusal, or the cookie for the token. None for a request that may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD.", 405, {"allow": "GET, HEAD"})
        if len(headers.getlist("host")) != 1 or not self._is_us(headers["host"]):
            return PlainTextResponse("This server goes by localhost only.", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        origins = headers.getlist("origin")
        # "same-site" is another port. Contradicting values, and values that no browser sends, are foreign too.
        foreign = any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
        if any(not self._is_origin(origin) for origin in origins) or (
            foreign and not self._arrives(headers, given)
        ):
            return PlainTextResponse("Not for other sites.", 403)
        if _same(_cookies(headers).get(self.cookie, ""), self.session) and not given:
            return None
        if not _same(given, self.token):
            return PlainTextResponse(
                "Open the address that fitscope printed: the token in it is missing here.", 403
            )
        # The cookie replaces the token, which disappears from the address.
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        to = "/" + (f"?{rest}" if rest else "")
        # A redirected request from another site still counts as one from there, and brings no cookie. From a
        # page of this server it counts as our own.
        answer = HTMLResponse(onward(to)) if foreign else RedirectResponse(to, 303)
        answer.set_cookie(self.cookie, self.session, httponly=True, samesite="strict", path="/")
        return answer

    def _arrives(self, headers: Headers, given: str) -> bool:
        """Whether the request follows a link with the token, for example from a local file."""
        whole = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return whole and _same(given, self.token)

    def _is_us(self, host: str) -> bool:
        """Whether a host, with a port or without, is a name of this machine and nothing more."""
        found = _HOST.fullmatch(host)
        return found is not None and found[1].lower() in self._names

    def _is_origin(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and self._is_us(host)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def onward(to: str) -> str:
    """A page that only redirects to another."""
    address = html.escape(to, quote=True)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0;url={address}">\n<title>fitscope</title>\n'
        f'<a href="{address}">fitscope</a>\n</html>\n'
    )


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
