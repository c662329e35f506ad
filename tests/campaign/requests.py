"""Random requests to the page's server: every endpoint, valid and odd parameters, with and without the cookie.

The requests go straight to the ASGI application, in this process. That leaves out uvicorn's parser, which tests/show attacks through
a socket; all code of fitscope takes part.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlencode

from campaign.ground import Round, quiet, write
from fitscope.show.app import app
from fitscope.show.guard import Guard

T = TypeVar("T")

EACH = 1000  #: requests for one seed
TOKEN = "the-token"

PATHS = (
    "/", "/static/main.js", "/static/../app.py", "/static/%2e%2e", "/nowhere", "/api/nowhere", "/api/runs", "/api/table",
    *(f"/api/{name}" for name in ("head", "matrix", "step", "series", "moment", "samples", "distribution") for _ in range(3)),
    "/api/live",
)  # fmt: skip
PARAMETERS = (
    "run", "other", "measure", "mode", "row", "step", "by", "column", "columns", "level", "first", "loss_level", "loss_first",
    "from", "to", "mark", "unknown",
)  # fmt: skip
ODD = (
    "", "0", "1", "-1", "7", "99999999999", str(2**53), str(2**70), "1e9", "nan", "inf", "-inf", "1_000", "٣", "run", "a", "true", "high",
    "\u202e", "\0", "../..", "%00", "x" * 4096, "x" * 5000, "absolute", "past", "start", "40", "41", "<script>", "'; drop table stats",
)  # fmt: skip
HOSTS = (
    "evil",
    "localhost/evil",
    "127.0.0.1.evil",
    "127.0.0.1:8760@evil",
    "",
    "localhost:999999",
    "127.0.0.1\0",
    "[::1",
)
METHODS = ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "")


@functools.cache
def served() -> tuple[Guard, dict[str, list[str]]]:
    """The server of one run, and parameters that it knows."""
    place = tempfile.TemporaryDirectory()
    write(place.name, steps=24, flush=8)
    guard = app(place.name, tick=0.005, token=TOKEN)
    guard.place = place  # type: ignore[attr-defined]  # lives as long as the server
    status, _, body = _run(ask(guard, "GET", "/api/head", "", headers(guard)))
    assert status == 200
    head = json.loads(body)
    known = {"run": ["run"], "other": ["run"], "mode": ["absolute", "past", "start", "run"]}
    known["measure"] = [measure["key"] for measure in head["measures"]]
    known["row"] = ["a", "loss"]
    for name in ("step", "by", "column", "from", "to", "first", "loss_first", "columns"):
        known[name] = ["0", "3", "12", "23", "24"]
    return guard, known


def headers(guard: Guard, **more: str) -> list[tuple[bytes, bytes]]:
    cookie = {"host": "127.0.0.1:8760", "cookie": f"{guard.cookie}={guard.session}"}
    return [(name.encode(), text.encode("latin-1", "replace")) for name, text in {**cookie, **more}.items()]


async def ask(
    guard: Guard, method: str, path: str, query: str, given: Any
) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of the answer."""
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.01)  # who listens for events hears some, and leaves
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": given,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8760),
    }  # fmt: skip
    await guard(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return start["status"], {name.decode(): text.decode() for name, text in start["headers"]}, body


def drawn(rng: random.Random, known: dict[str, list[str]]) -> str:
    """A query: mostly of things that the run has, some odd."""
    odd = rng.random() < 0.5
    query = []
    for name in rng.sample(PARAMETERS, rng.randrange(8)):
        values = known.get(name, ODD)
        query.append((name, rng.choice(ODD if odd and rng.random() < 0.4 else values)))
    return urlencode(query)


async def _requests(seed: int) -> Round:
    rng, done = random.Random(seed), Round()
    guard, known = served()
    for _ in range(EACH):
        path, query, method = rng.choice(PATHS), drawn(rng, known), "GET"
        attacker = rng.random() < 0.3
        more: dict[str, str] = {}
        refusals = {403}
        if attacker:  # each of these alone must be refused
            kind = rng.randrange(5)
            if kind == 0:
                more["cookie"] = rng.choice(
                    ["", f"{guard.cookie}=", f"{guard.cookie}={TOKEN}", "fitscope=1", f"x={guard.session}"]
                )
            elif kind == 1:
                more["host"] = rng.choice(HOSTS)
            elif kind == 2:
                more["origin"] = rng.choice(["http://evil", "null", "http://127.0.0.1.evil", "file://"])
            elif kind == 3:
                more["sec-fetch-site"] = rng.choice(["cross-site", "same-site"])
            else:
                method, refusals = rng.choice(METHODS), {405}
        with done.trial(f"seed {seed}: {method} {path}?{query[:200]} {more}"):
            status, answered, _ = await ask(guard, method, path, query, headers(guard, **more))
            expected = refusals if attacker else {200, 400, 404}
            assert status in expected, f"answered with {status}"
            assert "content-security-policy" in answered, "without a policy"
    return done


def requests(seed: int) -> Round:
    """Random requests to the page's server."""
    log = logging.getLogger("fitscope")
    before = log.level
    log.setLevel(logging.CRITICAL)  # a 500 is a failure here; nobody needs to read of it twice
    try:
        served()
        with quiet():
            return _run(_requests(seed))
    finally:
        log.setLevel(before)


def _run(what: Coroutine[Any, Any, T]) -> T:
    """Runs it on a thread of its own: a test before may have left an event loop on this one, as Playwright does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, what).result()
