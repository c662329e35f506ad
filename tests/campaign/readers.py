"""Readers beside a writer, which is a process of its own.

A look reads the statistics of a live run and checks every number. An object read is smaller: one object that the writer replaces
all the time, which must be whole, and never older than before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign.disk import MEMORY
from campaign.ground import Round, quiet, records, right_tensors, write
from fitscope import read
from fitscope.store import Files

LOOKS = 400  #: for one seed
READS = 20_000


@contextlib.contextmanager
def beside(write: Callable[[], None]) -> Iterator[None]:
    """Runs `write` in a forked process meanwhile."""
    pid = os.fork()
    if pid == 0:
        try:
            os.nice(1)
            write()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def looks(seed: int) -> Round:
    """Looks at a run while it is written: whole steps, right numbers, never fewer than before."""
    done = Round()
    with quiet(), tempfile.TemporaryDirectory(dir=MEMORY) as place:
        writer = write(place, 2, close=False)

        def go_on() -> None:
            for step in range(2, 100_000):
                writer.write(records(step))
                writer.flush()

        with beside(go_on):
            run, before = read.open(place, "run"), 0
            for look in range(LOOKS):
                with done.trial(f"seed {seed}: look {look}"):
                    rows = run.series("gradients/a", "min")
                    steps = rows.index.to_numpy()
                    assert (rows.to_numpy() == steps * 10 + 2).all(), "a wrong number"
                    assert len(steps) == 0 or steps[-1] == len(steps) - 1, "a step is missing"
                    if len(rows) < before:
                        done.lost += before - len(rows)
                        raise AssertionError("fewer steps than before")
                    before = len(rows)
                    if look % 50 == 49:
                        assert right_tensors(read.open(place, "run")) > 0
                        assert not run.damaged
    return done


def object_reads(seed: int) -> Round:
    """Objects read while they are replaced: whole, and never older than the one before."""
    done = Round()
    sizes = (8, 600, 5_000, 40_000)
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        store = Files(place, durable=False)
        keys = [f"folder/{size}" for size in sizes]

        def put(number: int) -> None:
            for key, size in zip(keys, sizes, strict=True):
                store.put(key, struct.pack("q", number) * (size // 8))

        def go_on() -> None:
            for number in range(1, 10**9):
                put(number)

        put(0)
        newest = dict.fromkeys(keys, 0)
        with beside(go_on):
            for read_number in range(READS // 100):
                with done.trial(
                    f"seed {seed}: object {read_number}"
                ):  # a hundred each: a trial costs as much as a read
                    for n in range(100):
                        key, size = keys[n % 4], sizes[n % 4]
                        data = store.get(key)
                        (number,) = struct.unpack_from("q", data)
                        assert data == data[:8] * (size // 8), "a torn object"
                        assert number >= newest[key], "an older object than before"
                        newest[key] = number
        assert Path(place, "folder").exists()
        assert seed < 0 or max(newest.values()) > 0, "the writer did not write"
    for name in ("tried", "survived"):
        setattr(done, name, getattr(done, name) * 100)
    return done
