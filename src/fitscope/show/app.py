"""The live page: reads runs, answers with `data.payload`, and sends new data by server-sent events.

It only reads. It opens runs by the folder names of a directory listing, never by a path from the address, because anyone can
write an id into a file. It does not follow links. One thread at a time uses a run, and the most recently used runs stay open. A
tick carries only new columns and changed facts, so its size does not grow with the run. `guard` decides who may ask.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import resources
from typing import Any
from weakref import WeakValueDictionary

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fitscope.errors import FitscopeError, FitscopeWarning, RunError, one_of
from fitscope.read import Brief, Run
from fitscope.read import open as open_run
from fitscope.read import runs as list_runs
from fitscope.show.data import payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack, plain_json, squeezed
from fitscope.show.data.samples import worst_of_batch
from fitscope.show.guard import Guard
from fitscope.store import Files, Objects
from fitscope.store import place as find_place

KEEP = 4  #: unused runs that stay open
TICK = 1.0  #: seconds between two looks at a run that grows
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Shelf:
    """The runs of one place, each opened on first request. The most recently used stay open, and those in use."""

    def __init__(self, place: str | os.PathLike[str] | Objects) -> None:
        found = find_place(place, writing=False)
        self.place = Files(found.root, links=False) if isinstance(found, Files) else found
        self._known: WeakValueDictionary[str, Gathered] = WeakValueDictionary()
        self._kept: OrderedDict[str, Gathered] = OrderedDict()  # the longest unused first
        self._lock = threading.RLock()  # one for all: a comparison needs two runs at once

    def briefs(self) -> dict[str, Brief]:
        """The runs by folder name, the newest first."""
        found = list_runs(self.place)[::-1]
        if [brief.path for brief in found] == [self.place.describe()]:  # the place is itself a run
            return {found[0].id: found[0]}
        return {brief.path.replace("\\", "/").rstrip("/").rpartition("/")[2]: brief for brief in found}

    def name(self, wanted: str | None) -> str:
        """The folder name of the wanted run; by default the newest readable one."""
        if wanted:
            return wanted
        return next((name for name, brief in self.briefs().items() if not brief.problem), "")

    @contextlib.contextmanager
    def run(self, wanted: str | None) -> Iterator[Gathered]:
        """One updated run, for one thread at a time."""
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", FitscopeWarning)  # what is damaged is said on the page
            name = self.name(wanted)
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = Gathered(self._find(name))
            self._kept[name] = known
            self._kept.move_to_end(name)
            while len(self._kept) > KEEP:
                self._kept.popitem(last=False)
            known.update()
            yield known

    def _find(self, name: str) -> Run:
        names = self.briefs()
        if not name:
            return open_run(self.place)  # which says why there is none
        if name not in names:
            raise RunError("the name of a run that is served", repr(name), one_of(names, name))
        itself = names[name].path == self.place.describe()
        return open_run(self.place) if itself else open_run(self.place, name)


class Asked:
    """The checked query of a request."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.run = query.get("run") or None
        self.other = query.get("other") or None
        self.measure = query.get("measure", "")
        self.mode = query.get("mode", "absolute")
        self.row = query.get("row", "")
        self.step, self.by = int(query.get("step", 0)), int(query.get("by", 0))
        self.column, self.mark = int(query.get("column", -1)), query.get("mark", "")
        self.columns = min(max(int(query.get("columns", payload.COLUMNS)), 16), payload.COLUMNS)
        self.level, self.first = int(query.get("level", 0)), int(query.get("first", 0))
        self.loss_level, self.loss_first = int(query.get("loss_level", 0)), int(query.get("loss_first", 0))
        span = query.get("from"), query.get("to")
        self.span = (float(span[0]), float(span[1])) if span[0] and span[1] else None


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
    # Ticks must not wait for a compressor: each is squeezed by itself.
    inner.add_middleware(GZipMiddleware, minimum_size=1500, compresslevel=4)
    return Guard(inner, token)


class Pages:
    """The endpoints of the page."""

    def __init__(self, shelf: Shelf, tick: float, ending: Callable[[], bool]) -> None:
        self._shelf = shelf
        self._tick = tick
        self._ending = ending

    def page(self, request: Request) -> Response:  # noqa: ARG002
        return Response(_read("index.html"), media_type="text/html; charset=utf-8")

    def static(self, request: Request) -> Response:
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

    def answer(self, what: Callable[[Asked], Response]) -> Callable[[Request], Response]:
        """An endpoint that turns fitscope errors into answers."""

        def endpoint(request: Request) -> Response:
            try:
                return what(Asked(request.query_params))
            except FitscopeError as problem:
                return _said(problem)
            except (ValueError, OverflowError):
                return PlainTextResponse("The question cannot be understood.", 400)

        return endpoint

    def head(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(payload.head(g))

    def matrix(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g, self._other(asked) as other:
            found = payload.matrix(
                g, asked.measure, asked.mode, other, columns=asked.columns, span=asked.span
            )
            return _bytes(pack(*found))

    def step(self, asked: Asked) -> Response:
        cell = payload.Cell(asked.row, asked.level, asked.column, asked.mark) if asked.column >= 0 else None
        with self._shelf.run(asked.run) as g, self._other(asked) as other:
            return _bytes(
                pack(*payload.single(g, asked.measure, asked.mode, other, asked.step, asked.by, cell))
            )

    def series(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g:
            return _bytes(pack(*payload.series(g)))

    def moment(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(payload.moment(g, asked.row, asked.step, asked.measure))

    def distribution(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g:
            site = payload.main_site(g, asked.row, asked.measure)
            found = payload.distribution(g, [site]) if site else {}
            return _bytes(pack(*found.get(site or "", ({}, {}))))

    def samples(self, asked: Asked) -> Response:
        with self._shelf.run(asked.run) as g:
            return _json(worst_of_batch(g, asked.step))

    async def live(self, request: Request) -> Response:
        try:
            asked = Asked(request.query_params)
            watcher = await run_in_threadpool(Watcher, self, asked)
        except FitscopeError as problem:
            return _said(problem)
        except (ValueError, OverflowError):
            return PlainTextResponse("The question cannot be understood.", 400)
        return StreamingResponse(self._ticks(request, watcher), media_type="text/event-stream")

    async def _ticks(self, request: Request, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": listening\n\n"
        quiet = 0.0
        while not (self._ending() or await request.is_disconnected()):
            try:
                data = await run_in_threadpool(watcher.tick)
            except FitscopeError:
                data = b""  # the run is gone for the moment, or was replaced
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

    def _other(self, asked: Asked) -> Any:
        wanted = asked.mode == "run" and asked.other is not None
        return self._shelf.run(asked.other) if wanted else contextlib.nullcontext(None)


class Watcher:
    """The state of one open page, so that a tick contains only new data."""

    def __init__(self, pages: Pages, asked: Asked) -> None:
        self._pages = pages
        self._asked = asked
        asked.run = pages._shelf.name(asked.run)  # the newest of now, not one that begins later
        self._held: tuple[Gathered | None, ...] = ()  # what is looked at stays open
        self._told: dict[str, Any] = {}
        self._counts: tuple[int, ...] = ()

    def tick(self) -> bytes:
        """The next event, as gzip and base64. Empty if nothing is new."""
        asked = self._asked
        with self._pages._shelf.run(asked.run) as g, self._pages._other(asked) as other:
            self._held = g, other
            now = payload.now(g)
            changed = {key: value for key, value in now.items() if value != self._told.get(key)}
            if "lanes" in changed:
                before = {lane["name"]: lane for lane in self._told.get("lanes", ())}
                if [*before] == [lane["name"] for lane in now["lanes"]]:  # else the page gets all of them
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


STATIC = _static()  #: the files that may be asked for, by their whole names


def _read(name: str) -> bytes:
    return (resources.files("fitscope.show") / "static" / name).read_bytes()


def _json(value: Any) -> Response:
    return JSONResponse(plain_json(value))


def _bytes(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


def _said(problem: FitscopeError) -> Response:
    return Response(json.dumps({"problem": str(problem)}).encode(), 404, media_type="application/json")
