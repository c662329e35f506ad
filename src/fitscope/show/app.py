"""The live page: reads runs, answers with `page_facts` and `payload`, and sends new data by server-sent events.

It only reads. It opens runs by the folder names of a directory listing, never by a path from the address, because anyone can
write an id into a file. It does not follow links. A tick carries only new columns and changed facts, so its size does not grow
with the run. `guard` rejects foreign requests, `parameters` checks their parameters, and `shelf` holds the runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fitscope.errors import FitscopeError
from fitscope.show.data import page_facts, payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack, plain_json, squeezed
from fitscope.show.data.runs import RunTable
from fitscope.show.data.samples import worst_of_batch
from fitscope.show.guard import Guard
from fitscope.show.parameters import BadRequestError, Parameters
from fitscope.show.shelf import Shelf
from fitscope.store import Objects

TICK = 1.0  #: seconds between two looks at a growing run
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def app(
    place: str | os.PathLike[str] | Objects,
    *,
    tick: float = TICK,
    token: str | None = None,
    ending: Callable[[], bool] = lambda: False,
) -> Guard:
    """The guarded page for the runs in a place. `ending` says when to disconnect listeners."""
    pages = Pages(Shelf(place), tick, ending)
    inner = Starlette(
        routes=[
            Route("/", pages.page),
            Route("/static/{name}", pages.static),
            Route("/api/runs", pages.runs),
            Route("/api/table", pages.table),
            Route("/api/head", pages.answer(pages.head)),
            Route("/api/matrix", pages.answer(pages.matrix)),
            Route("/api/step", pages.answer(pages.step)),
            Route("/api/series", pages.answer(pages.series)),
            Route("/api/moment", pages.answer(pages.moment)),
            Route("/api/samples", pages.answer(pages.samples)),
            Route("/api/distribution", pages.answer(pages.distribution)),
            Route("/api/live", pages.live),
        ]
    )
    # Ticks must not wait for a compressor: each is compressed by itself.
    inner.add_middleware(GZipMiddleware, minimum_size=1500, compresslevel=4)
    return Guard(inner, token)


class Pages:
    """The endpoints of the page."""

    def __init__(self, shelf: Shelf, tick: float, ending: Callable[[], bool]) -> None:
        self._shelf = shelf
        self._tick = tick
        self._ending = ending
        self._table = RunTable()

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        return Response(_read("index.html"), media_type="text/html; charset=utf-8")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return PlainTextResponse("There is no such file.", 404)
        kind = TYPES["." + name.rpartition(".")[2]]
        return Response(_read(name), media_type=f"{kind}; charset=utf-8")

    def runs(self, request: Request) -> Response:  # noqa: ARG002
        try:
            found = self._shelf.briefs()
        except FitscopeError as problem:
            return _said(problem)
        return _json(
            [
                {"id": name, "status": b.status, "step": b.last_step, "model": b.model, "problem": b.problem,
                 "created": b.created.timestamp() if b.created else None}
                for name, b in found.items()
            ]
        )  # fmt: skip

    def table(self, request: Request) -> Response:  # noqa: ARG002
        try:
            return _json(self._shelf.table(self._table))
        except FitscopeError as problem:
            return _said(problem)

    def answer(self, page: Callable[[Parameters], Response]) -> Callable[[Request], Response]:
        """An endpoint that turns fitscope errors into answers."""

        def endpoint(request: Request) -> Response:
            try:
                return page(Parameters(request.query_params))
            except FitscopeError as problem:
                return _said(problem)
            except BadRequestError as problem:
                return _bad(problem)

        return endpoint

    def head(self, asked: Parameters) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(page_facts.head(g))

    def matrix(self, asked: Parameters) -> Response:
        with self._both(asked) as (g, other):
            found = payload.matrix(
                g, asked.measure, asked.mode, other, columns=asked.columns, span=asked.span
            )
            return _bytes(pack(*found))

    def step(self, asked: Parameters) -> Response:
        cell = payload.Cell(asked.row, asked.level, asked.column, asked.mark) if asked.column >= 0 else None
        with self._both(asked) as (g, other):
            return _bytes(
                pack(*payload.single(g, asked.measure, asked.mode, other, asked.step, asked.by, cell))
            )

    def series(self, asked: Parameters) -> Response:
        with self._shelf.run(asked.run) as g:
            return _bytes(pack(*payload.series(g)))

    def moment(self, asked: Parameters) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(payload.moment(g, asked.row, asked.step, asked.measure))

    def distribution(self, asked: Parameters) -> Response:
        with self._shelf.run(asked.run) as g:
            site = payload.main_site(g, asked.row, asked.measure)
            found = payload.distribution(g, [site]) if site else {}
            return _bytes(pack(*found.get(site or "", ({}, {}))))

    def samples(self, asked: Parameters) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(worst_of_batch(g, asked.step))

    async def live(self, request: Request) -> Response:
        try:
            asked = Parameters(request.query_params)
            watcher = await run_in_threadpool(Watcher, self, asked)
        except FitscopeError as problem:
            return _said(problem)
        except BadRequestError as problem:
            return _bad(problem)
        return StreamingResponse(self._ticks(request, watcher), media_type="text/event-stream")

    async def _ticks(self, request: Request, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": listening\n\n"
        quiet = 0.0
        while not (self._ending() or await request.is_disconnected()):
            try:
                data = await run_in_threadpool(watcher.tick)
            except FitscopeError:
                data = b""  # the run is unreadable at the moment, or was replaced
            if data:
                yield b"data: " + data + b"\n\n"
                quiet = 0.0
            elif quiet >= 15:
                yield b": still here\n\n"
                quiet = 0.0
            quiet += self._tick
            until = time.monotonic() + self._tick
            while time.monotonic() < until and not self._ending():
                await asyncio.sleep(min(self._tick, 0.2))

    def _both(self, asked: Parameters) -> AbstractContextManager[tuple[Gathered, Gathered | None]]:
        return self._shelf.both(asked.run, asked.other if asked.mode == "run" else None)


class Watcher:
    """The state of one open page, so that a tick contains only new data."""

    def __init__(self, pages: Pages, asked: Parameters) -> None:
        self._pages = pages
        self._asked = asked
        asked.run = pages._shelf.name(asked.run)  # the newest run now, not one that begins later
        # The runs on a page stay open.
        self._held = [pages._shelf.shelved(name) for name in (asked.run, asked.other) if name]
        self._told: dict[str, Any] = {}
        self._counts: tuple[int, ...] = ()

    def tick(self) -> bytes:
        """The next event, as gzip and base64. Empty if nothing is new."""
        asked = self._asked
        with self._pages._both(asked) as (g, other):
            now = page_facts.now(g)
            changed = {key: value for key, value in now.items() if value != self._told.get(key)}
            if "lanes" in changed:
                before = {lane["name"]: lane for lane in self._told.get("lanes", ())}
                if [*before] == [lane["name"] for lane in now["lanes"]]:  # otherwise the page gets all lanes
                    changed["lanes"] = [lane for lane in now["lanes"] if lane != before[lane["name"]]]
            self._told = now
            arrays: dict[str, Any] = {}
            if asked.measure in [m.key for m in g.measures]:
                facts, columns = payload.tail(g, asked.measure, asked.mode, other, asked.level, asked.first)
                changed["matrix"] = facts
                arrays |= {f"matrix.{name}": array for name, array in columns.items()}
                asked.first = max((facts["count"] >> asked.level), asked.first)
            facts, columns = payload.series(g, "loss", asked.loss_level, asked.loss_first)
            changed["loss"] = facts
            arrays |= {f"loss.{name}": array for name, array in columns.items()}
            asked.loss_first = max(facts["count"] >> asked.loss_level, asked.loss_first)
            matrix = changed.get("matrix", {})
            counts = (matrix.get("count", 0), matrix.get("rewritten", 0), facts["count"], facts.get("rewritten", 0),
                      g.generation)  # fmt: skip
            nothing = counts == self._counts and not (set(changed) - {"matrix", "loss", "speed"})
            self._counts = counts
            return b"" if nothing else base64.b64encode(squeezed(pack(changed, arrays)))


def _static() -> frozenset[str]:
    folder = resources.files("fitscope.show") / "static"
    return frozenset(entry.name for entry in folder.iterdir() if "." + entry.name.rpartition(".")[2] in TYPES)


STATIC = _static()  #: the files that may be requested, by their full names


def _read(name: str) -> bytes:
    return (resources.files("fitscope.show") / "static" / name).read_bytes()


def _json(value: Any) -> Response:
    return JSONResponse(plain_json(value))


def _bytes(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


def _bad(problem: BadRequestError) -> Response:
    return PlainTextResponse(f"Bad request: {problem}.", 400)


def _said(problem: FitscopeError) -> Response:
    return Response(json.dumps({"problem": str(problem)}).encode(), 404, media_type="application/json")
