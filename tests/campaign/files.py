"""Every kind of file of a run, changed at random and read.

Nearly all the time of an attack on files used to be spent on things that the change cannot touch. Here the run lies in memory, is
written once, and of a changed file only those readers look at the run that read this kind of file; every 100th time all of them do.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
from typing import Any

import numpy as np

from campaign.ground import (
    SITES,
    Round,
    facts,
    looked_at,
    quiet,
    right_rows,
    right_samples,
    right_tensors,
    warm_up,
    write,
)
from fitscope import read
from fitscope.errors import FitscopeError
from fitscope.store import Memory, parts
from fitscope.store.black_box import KeptCall, Lap
from fitscope.store.structure import put_together, taken_apart

EACH = 500  #: files that one seed changes

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e300, 2**63, 10**30, "", "../..", "\0", "\x1b[2J", "x" * 300, [], {}, [[]], {"": {}}, [None, 1], "NaN",
)  # fmt: skip


@functools.cache
def sound(closed: bool) -> dict[str, bytes]:
    """The files of a run: closed, or one whose newest rows are in a tail."""
    store, share = Memory(), parts.SHARE
    try:
        parts.SHARE = parts.SHARE if closed else 1
        writer = write(store, steps=3, flush=3 if closed else 1, close=False)
        writer.boxes.write(
            laps(),
            {"backend": "jax", "software": {}, "why": ["it is an attack"], "odd_step": 1},
            b'{"class_name": "Model"}',
        )
        if closed:
            writer.close()
    finally:
        parts.SHARE = share
    assert closed or any(key.endswith(".arrow") for key in store._objects)
    return dict(store._objects)


def laps() -> list[Lap]:
    """What a black box keeps: the state before a step, and the step."""
    lap = Lap(
        1, [np.ones((2, 3), "float32"), np.array(3)], [("trainable", "kernel"), ("optimizer", "iterations")]
    )
    leaves: list[Any] = []
    form = taken_apart(({"x": np.ones((2, 2))}, None), np.asarray, leaves)
    lap.add(
        KeptCall(
            1,
            0,
            1,
            [form],
            leaves,
            {1: np.array(7)},
            {"jax": np.zeros(2, "uint32")},
            {"given": ["numpy"]},
            {"loss": np.float32(1)},
        )
    )
    return [lap]


def replayed(run: read.Run) -> None:
    """Reads all that a replay reads, but trains nothing."""
    for box in run.black_box:
        _ = (repr(box), box.model(), box.compiled, box.model_class, box.model_why)
        for number in box.steps[:10]:
            step = box.step(number)
            step.state()
            for call in step.calls():
                _ = [put_together(form, call.arrays) for form in call.forms]


def changed(data: bytes, rng: random.Random) -> bytes:
    """The same with some of its bytes changed."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        # Footers are at the end, and hold most of what a reader believes.
        place = (
            rng.randrange(len(found) + 1) if rng.random() < 0.6 else max(0, len(found) - rng.randrange(1200))
        )
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
            odd = [b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"99999999", b"-1", b"null"]
            found[place : place + 8] = rng.choice(odd)
        elif kind == 5:
            found[:] = found[:place]
        else:
            odd = [b"[", b"{", b'"', b"1e999", b"NaN", b"true", b"..", b"/", b"\\u0000"]
            found[place:place] = rng.choice(odd) * rng.randint(1, 3)
    return bytes(found)


def changed_document(data: bytes, rng: random.Random) -> bytes:
    """The same JSON with some of its values, names or types changed: it can still be parsed."""
    document = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        places: list[tuple[Any, Any]] = []
        waiting = [document]
        while waiting:
            item = waiting.pop()
            for key in list(item) if isinstance(item, dict) else range(len(item)):
                places.append((item, key))
                if isinstance(item[key], (dict, list)):
                    waiting.append(item[key])
        if not places:
            break
        item, key = rng.choice(places)
        if rng.random() < 0.15:
            del item[key]
        elif isinstance(item[key], int) and rng.random() < 0.4:
            item[key] = item[key] + rng.choice([-1, 1, 2**31, -(2**40), 0.5])
        elif isinstance(item, dict) and rng.random() < 0.1:
            item[rng.choice(["", "x", "__proto__", "format"])] = item.pop(key)
        else:
            item[key] = copy.deepcopy(rng.choice(ODD))
    return json.dumps(document).encode()


def look(key: str, store: Memory) -> None:
    """The readers that read this kind of file. A changed number is a failure where the file has a checksum."""
    run = read.open(store, "run")
    checked = key.endswith((".parquet", ".arrow")) or "/data/c." in key
    try:
        if "/samples/" in key or key.endswith("samples.arrow"):
            right_samples(run)
        elif key.endswith((".parquet", ".arrow")):
            right_rows(run)
        elif "tensors.zarr" in key:
            right_tensors(run, *(site for site in SITES if f"/{site}/" in key))
        elif "/black_box/" in key:
            replayed(run)
        elif key.endswith(".npz"):
            run.average(SITES[0])
        else:
            read.runs(store)
            facts(run)
    except AssertionError:
        if checked:
            raise


def files(seed: int) -> Round:
    """Every kind of file of a run, changed at random and read."""
    rng, done, store = random.Random(seed), Round(), Memory()
    warm_up()
    whole = sound(closed=seed % 2 == 0)
    # One key of each kind that is read; the groups of Zarr are there for other tools.
    keys = [
        key
        for key in sorted(whole)
        if not key.endswith("zarr.json") or key.endswith(("data/zarr.json", "tensors.zarr/zarr.json"))
    ]
    keys = [
        key
        for key in keys
        if "tensors.zarr/" not in key or SITES[0] in key or key.endswith("tensors.zarr/zarr.json")
    ]
    with quiet():
        for number in range(EACH):
            key = rng.choice(keys)
            by_value = key.endswith(".json") and rng.random() < 0.7
            change = changed_document if by_value else changed
            store._objects = {**whole, key: change(whole[key], rng)}
            with done.trial(f"seed {seed}: {number}, {key}"):
                look(key, store)
                if number % 100 == 0:
                    with contextlib.suppress(AssertionError, FitscopeError):
                        looked_at(store)
    return done
