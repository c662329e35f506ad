"""The attacks."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from campaign.ground import SITES, Round, looked_at, records, tensor, write
from fitscope import read
from fitscope.errors import FitscopeError
from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.show.app import app
from fitscope.store import Files, Memory, Objects, RunWriter

EACH = 40  #: things that one seed tries


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with some of it changed."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(found) + 1)
        kind = rng.randrange(7)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[place : place + rng.randint(1, 64)]
        elif kind == 2:
            found[place:place] = rng.randbytes(rng.randint(1, 32))
        elif kind == 3:
            found[place:place] = found[place : place + rng.randint(1, 200)]
        elif kind == 4:
            found[place : place + 8] = rng.choice(
                [b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"99999999", b"-1", b"null"]
            )
        elif kind == 5:
            found[:] = found[:place]
        else:
            odd = [b"[", b"{", b'"', b"1e999", b"NaN", b"true", b"..", b"/", b"\\u0000"]
            found[place:place] = rng.choice(odd) * rng.randint(1, 3)
    return bytes(found)


def parsers(seed: int) -> Round:
    """Every kind of file of a run, changed at random and read."""
    rng, done = random.Random(seed), Round()
    store = Memory()
    write(store, close=seed % 2 == 0)
    sound = dict(store._objects)
    keys = sorted(sound)
    for _ in range(EACH):
        key = rng.choice(keys)
        store._objects = {**sound, key: mutated(sound[key], rng)}
        with done.trial(f"seed {seed}: {key}"):
            try:
                looked_at(store)
            except AssertionError:
                # These have checksums: no change may go unnoticed.
                if key.endswith((".parquet", ".arrow")) or "/data/c." in key:
                    raise
            read.runs(store)
    return done


def requests(seed: int) -> Round:
    """Random requests, with and without the cookie."""
    rng, done = random.Random(seed), Round()
    with tempfile.TemporaryDirectory() as name:
        write(name)
        guard = app(name, token="token")
        paths = ("head", "matrix", "step", "series", "moment", "samples", "distribution", "runs", "nowhere")
        names = (
            "run",
            "other",
            "measure",
            "mode",
            "row",
            "step",
            "by",
            "column",
            "columns",
            "level",
            "first",
            "from",
            "to",
            "mark",
        )
        values = ("", "0", "1", "-1", "7", "99999999999", "1e9", "nan", "run", "activations.rms", "a", "absolute", "past",
                  "\u202e", "%00", "../..", "x" * 5000, "high", "40", "true")  # fmt: skip
        with TestClient(guard, base_url="http://127.0.0.1:8760") as client:
            for _ in range(EACH):
                query = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(6))}
                path = f"/api/{rng.choice(paths)}"
                known = rng.random() < 0.8
                client.cookies.clear()
                if known:
                    client.cookies.set(guard.cookie, guard.session)
                headers = (
                    {}
                    if rng.random() < 0.8
                    else {"host": rng.choice(["evil", "localhost/evil", "127.0.0.1", ""])}
                )
                with done.trial(f"seed {seed}: {path} {query}"):
                    answer = client.get(path, params=query, headers=headers)
                    assert answer.status_code in (200, 400, 403, 404), answer.status_code
                    assert known or answer.status_code == 403, "answered without a token"
                    assert "content-security-policy" in answer.headers
    return done


class Log(Memory):
    """A store that writes down every put, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, bytes]] = []

    def put(self, key: str, data: Any) -> None:
        self.log.append((self._prefix + key, bytes(data)))
        super().put(key, data)

    def folder(self, name: str) -> Log:
        inner = Log()
        inner._prefix = f"{self._prefix}{name.rstrip('/')}/"
        inner._objects, inner._lock, inner.log = self._objects, self._lock, self.log
        return inner


def power_cuts(seed: int) -> Round:
    """A power cut after any put: with `durable=True` all before it is there; without, any part of what was not synced yet."""
    rng, done = random.Random(seed), Round()
    log = Log()
    writer = RunWriter.create(log, "run")
    flushed: list[tuple[int, int]] = []  # puts by then, and steps that are safe
    for step in range(12):
        writer.write(records(step))
        if rng.random() < 0.5:
            writer.flush()
            flushed.append((len(log.log), step + 1))
    writer.close()
    for _ in range(EACH):
        cut = rng.randrange(2, len(log.log) + 1)
        left = Memory()
        durable = rng.random() < 0.5
        synced = cut if durable else rng.randrange(2, cut + 1)
        for key, data in log.log[:synced]:
            left.put(key, data)
        for key, data in rng.sample(log.log[synced:cut], rng.randint(0, cut - synced)):
            left.put(key, data)
        with done.trial(f"seed {seed}: after {cut} puts, {synced} of them synced"):
            looked_at(left)
            safe = max((steps for puts, steps in flushed if puts <= synced), default=0)
            there = _rows(left)
            if durable and there < safe:
                done.lost += safe - there
                raise AssertionError(f"{safe} steps were flushed, {there} are there")
    return done


def _rows(store: Objects) -> int:
    try:
        return len(read.open(store, "run").series("loss"))
    except FitscopeError:
        return 0


class Faulty(Memory):
    """A store of which some puts fail."""

    def __init__(self, fails: Callable[[], int | None]) -> None:
        super().__init__()
        self.fails = fails

    def put(self, key: str, data: Any) -> None:
        code = self.fails()
        if code is not None:
            raise OSError(code, "injected")
        super().put(key, data)

    def folder(self, name: str) -> Faulty:
        inner = Faulty(self.fails)
        inner._prefix = f"{self._prefix}{name.rstrip('/')}/"
        inner._objects, inner._lock = self._objects, self._lock
        return inner


def disk_faults(seed: int) -> Round:
    """Puts that fail, alone or for a while: what is there is right, and what is not is counted."""
    rng, done = random.Random(seed), Round()
    for n in range(EACH // 10):
        share, on = rng.random() * 0.6, [False]
        store = Faulty(
            lambda share=share, on=on: (
                rng.choice([errno.ENOSPC, errno.EIO]) if on[0] and rng.random() < share else None
            )
        )  # type: ignore[misc]
        writer = RunWriter.create(store, "run")
        steps = rng.randint(5, 30)
        with done.trial(f"seed {seed}: run {n}, {share:.0%} of puts fail"):
            on[0] = True
            for step in range(steps):
                with contextlib.suppress(OSError):
                    writer.write(records(step))
                with contextlib.suppress(OSError):
                    writer.flush()
            on[0] = False
            with contextlib.suppress(OSError):
                writer.close()
            looked_at(store)
            run = read.open(store, "run")
            for site in SITES:
                rows = len(run.series(site, "min")) if site in set(run.stats["site"]) else 0
                try:
                    tensors = run.tensor(site).sizes["step"]
                except FitscopeError:
                    tensors = 0
                if rows + tensors + run.lost.get(site, 0) != 2 * steps:
                    done.lost += 1
                    raise AssertionError(
                        f"{site}: {rows} rows, {tensors} tensors, {run.lost.get(site, 0)} lost of {2 * steps}"
                    )
    return done


def names(seed: int) -> Round:
    """Sites called anything at all."""
    rng, done = random.Random(seed), Round()
    pool = [
        "/",
        "..",
        ".",
        "\\",
        "\0",
        "\n",
        "\x1b[2J",
        "\u202e",
        "ä",
        "😀",
        "data",
        "zarr.json",
        "c.0",
        "~",
        "%2F",
        " ",
        "CON",
        "'",
        '"',
        "a" * 300,
    ]
    with tempfile.TemporaryDirectory() as place:
        made = {"".join(rng.choice(pool) for _ in range(rng.randint(1, 5))) for _ in range(EACH)}
        writer = RunWriter.create(place, "run")
        for name in made:
            at = Moment(0, 0, 0, 1.0)
            with done.trial(f"seed {seed}: {name!r}"):
                writer.write(
                    [Record(name, at, (4, 3), "float32", reduce(tensor(SITES[0], 1)), tensor(SITES[0], 1))]
                )
        writer.close()
        run = read.open(Files(place), "run")
        for name in made:
            with done.trial(f"seed {seed}: {name!r} read"):
                assert np.array_equal(run._captures(name).at(0), tensor(SITES[0], 1))
        outside = [path for path in Path(place).parent.glob("*") if path.name in ("data", "zarr.json")]
        assert not outside
    return done


def readers(seed: int) -> Round:
    """Readers beside a writer: every look sees whole steps, never fewer than the one before."""
    done = Round()
    with tempfile.TemporaryDirectory() as place:
        writer = write(place, 2, close=False)
        stop = threading.Event()

        def go_on() -> None:
            step = 2
            while not stop.is_set() and step < 3000:
                writer.write(records(step))
                writer.flush()
                step += 1

        writing = threading.Thread(target=go_on)
        writing.start()
        try:
            run, before = read.open(place, "run"), 0
            for look in range(EACH):
                with done.trial(f"seed {seed}: look {look}"):
                    rows = run.series("gradients/a", "min")
                    assert (rows == rows.index * 10 + 2).all(), "a wrong number"
                    assert rows.index.tolist() == list(range(len(rows))), "a step is missing"
                    if len(rows) < before:
                        done.lost += before - len(rows)
                        raise AssertionError("fewer steps than before")
                    before = len(rows)
        finally:
            stop.set()
            writing.join()
            writer.close()
    return done


#: name → what is tried, in words, and the attack.
ATTACKS: dict[str, tuple[str, Callable[[int], Round]]] = {
    "parsers": ("files changed at random and read", parsers),
    "requests": ("random requests to the page's server", requests),
    "power cuts": ("states of the store after a power cut", power_cuts),
    "disk faults": ("runs whose puts fail at random", disk_faults),
    "names": ("hostile names of sites, written and read", names),
    "readers": ("looks at a run while it is written", readers),
}
