"""Disks that fail: system calls of the store that raise ENOSPC, EIO or EDQUOT, write only a part, or take their time.

The faults are injected where the store calls the system, below everything that is promised. Whatever happens, what is there is right,
and what is not there is counted by site.
"""

# ruff: noqa: PTH102, PTH105 - the calls that the store makes

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from campaign.ground import SITES, Round, quiet, records, right_rows, right_tensors
from fitscope import read
from fitscope.errors import FitscopeError
from fitscope.store import Files, RunWriter, files

EACH = 10  #: runs for one seed
CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112


class Disk:
    """The calls of `os` that the store makes, some of which fail. All others are those of `os`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.share = 0.0  #: of the calls that fail now
        self.full = False  #: nothing new fits
        self.faults = 0
        self.unsynced = False  #: a folder could not be synced, after the file in it had its name

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _fault(self) -> None:
        if self.full or self.rng.random() < self.share:
            self.faults += 1
            if not self.full and self.rng.random() < 0.1:
                time.sleep(0.001)  # slow, and then it works
                return
            code = errno.ENOSPC if self.full else self.rng.choice(CODES)
            raise OSError(code, os.strerror(code))

    def write(self, fd: int, data: Any) -> int:
        if len(data) > 1 and self.rng.random() < self.share:
            self.faults += 1
            return os.write(fd, data[: self.rng.randrange(1, len(data))])
        self._fault()
        return os.write(fd, data)

    def open(self, path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            self._fault()
        return os.open(path, flags, *mode)

    def replace(self, source: Any, target: Any) -> None:
        if self.rng.random() < 0.5:
            self._fault()
        os.replace(source, target)

    def fsync(self, fd: int) -> None:
        try:
            self._fault()  # and nothing is synced: the attack is not about the speed of this disk
        except OSError:
            self.unsynced = self.unsynced or stat.S_ISDIR(os.fstat(fd).st_mode)
            raise

    def mkdir(self, path: Any) -> None:
        self._fault()
        os.mkdir(path)


@contextlib.contextmanager
def failing(rng: random.Random) -> Iterator[Disk]:
    disk = Disk(rng)
    with mock.patch.object(files, "os", disk):
        yield disk


def disk_faults(seed: int) -> Round:
    """Runs on a disk whose calls fail at random, for a while, or from some step on."""
    rng, done = random.Random(seed), Round()
    with quiet():
        for number in range(EACH):
            what = f"seed {seed}: run {number}"
            with tempfile.TemporaryDirectory(dir=MEMORY) as place, failing(rng) as disk, done.trial(what):
                _one(place, disk, rng, done)
    return done


def _one(place: str, disk: Disk, rng: random.Random, done: Round) -> None:
    store = Files(place, durable=rng.random() < 0.3)
    writer = RunWriter.create(store, "run")
    steps, most = rng.randint(4, 16), rng.random() * 0.5
    full_at, free_at = sorted(rng.choices(range(2 * steps), k=2)) if rng.random() < 0.3 else (-1, -1)
    for step in range(steps):
        disk.share = rng.choice([0.0, most])
        disk.full = full_at <= step < free_at
        with contextlib.suppress(OSError):
            writer.write(records(step))
        if rng.random() < 0.7:
            with contextlib.suppress(OSError):
                writer.flush()
    disk.share, disk.full = 0.0, rng.random() < 0.1  # now and then it stays full to the end
    with contextlib.suppress(OSError):
        writer.close()
    full, disk.full = disk.full, False
    run = read.open(store, "run")
    right_rows(run)
    right_tensors(run)
    lost = writer.lost if full else run.lost  # a status that found no room is an old one
    there = set(run.stats["site"])
    for site in SITES:
        rows, tensors = (len(run.series(site, "min")) if site in there else 0), 0
        with contextlib.suppress(FitscopeError):
            tensors = run.tensor(site).sizes["step"]
        found = rows + tensors + lost.get(site, 0)
        # A file whose folder could not be synced is there, and counts as lost: a power cut could take it.
        if found < 2 * steps or (found > 2 * steps and not disk.unsynced):
            done.lost += 1
            raise AssertionError(
                f"{site}: {rows} rows, {tensors} tensors, {lost.get(site, 0)} lost of {2 * steps}"
            )
    assert not run.damaged, f"damaged: {run.damaged}"
