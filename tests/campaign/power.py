"""Power cuts: what a disk may hold after one, made from the log of all puts.

With `durable=True` a put is on the disk when it returns. Without, the system writes when it likes and in any order: of the puts that
were not synced yet any part has happened, names are whole (a rename is atomic), and a file that has its new name may still be empty,
torn or full of zeros. Whatever is left, a reader must not find a wrong number; and what was synced must be there.
"""

from __future__ import annotations

import random
from typing import Any

from campaign.ground import (
    Round,
    looked_at,
    quiet,
    records,
    right_rows,
    right_samples,
    right_tensors,
    samples,
    warm_up,
)
from fitscope import read
from fitscope.errors import FitscopeError
from fitscope.store import Memory, RunWriter, parts

EACH = 250  #: states for one seed
STEPS = 9


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


def written(rng: random.Random) -> tuple[list[tuple[str, bytes]], list[tuple[int, int]]]:
    """All puts of a run, and how many steps were flushed after how many of them."""
    log, share = Log(), parts.SHARE
    flushed = []
    try:
        parts.SHARE = rng.choice([1, 32])  # with and without a tail
        writer = RunWriter.create(log, "run")
        for step in range(STEPS):
            writer.write(records(step), [samples(step)])
            if rng.random() < 0.6:
                writer.flush()
                flushed.append((len(log.log), step + 1))
        writer.close()
    finally:
        parts.SHARE = share
    return log.log, [*flushed, (len(log.log), STEPS)]


def left(log: list[tuple[str, bytes]], cut: int, synced: int, rng: random.Random) -> Memory:
    """What the disk holds: all that was synced, and any part of the rest, some of it torn."""
    store = Memory()
    store._objects.update(log[:synced])
    for key, data in rng.sample(log[synced:cut], rng.randint(0, cut - synced)):
        how = rng.random()
        if how < 0.1:
            data = data[: rng.randrange(len(data) + 1)]
        elif how < 0.2:
            start = rng.randrange(len(data) + 1)
            data = data[:start] + bytes(len(data) - start)
        store._objects[key] = data
    return store


def power_cuts(seed: int) -> Round:
    """States of the store after a power cut."""
    rng, done = random.Random(seed), Round()
    warm_up()
    log, flushed = written(rng)
    with quiet():
        for number in range(EACH):
            cut = rng.randrange(2, len(log) + 1)
            durable = rng.random() < 0.5
            synced = cut if durable else rng.randrange(2, cut + 1)
            store = left(log, cut, synced, rng)
            safe = max((steps for puts, steps in flushed if puts <= synced), default=0) if durable else 0
            with done.trial(f"seed {seed}: after {cut} puts, {synced} of them synced"):
                there = tensors = 0
                try:
                    run = read.open(store, "run")
                    there = right_rows(run)
                    tensors = right_tensors(run)
                    right_samples(run)
                    if number % 50 == 0:
                        looked_at(store)
                except FitscopeError:
                    pass
                if there < safe or tensors < 3 * safe:
                    done.lost += max(safe - there, safe - tensors // 3)
                    raise AssertionError(
                        f"{safe} steps were flushed; {there} and {tensors} tensors are there"
                    )
    return done
