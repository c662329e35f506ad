"""Attacks on whole trainings: killed and resumed, a million steps long, hundreds in one process.

Each runs in processes of its own, because a process has one backend.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from campaign.ground import Round, quiet
from campaign.killed import BATCH, SITE, WIDTH, Flushed
from fitscope import read
from fitscope.errors import FitscopeError

KILLS = 5  #: of one run, one after another
RUNS = 2  #: for one seed
BACKENDS = ("jax", "tensorflow", "torch", "sessions")
PATIENCE = 300.0  #: seconds in which a training flushes something, on the busiest machine


def environment(backend: str) -> dict[str, str]:
    cache = Path(tempfile.gettempdir()) / "fitscope-campaign-jax"
    keras = "tensorflow" if backend == "sessions" else backend
    return {
        **os.environ, "KERAS_BACKEND": keras, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1",
    }  # fmt: skip


class Server:
    """The process from which the trainings of one backend are forked."""

    def __init__(self, backend: str) -> None:
        command = [sys.executable, "-m", "campaign.killed", backend]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(backend)
        )  # fmt: skip
        atexit.register(self.close)
        assert self._said() == "ready"

    def start(self, folder: Path, step: int) -> int:
        """Begins a training. Returns its pid."""
        assert self._process.stdin is not None
        print(folder, step, sep="\t", file=self._process.stdin, flush=True)
        return int(self._said())

    def ended(self) -> int:
        """Waits for the end of the training. Returns its exit code."""
        return int(self._said())

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=60)

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@functools.cache
def server(backend: str) -> Server:
    return Server(backend)


def kills(seed: int) -> Round:
    """Trainings killed at a random moment, and resumed by the next."""
    rng, done = random.Random(seed), Round()
    backend = BACKENDS[seed % len(BACKENDS)]
    with quiet():
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as place:
                there = 0  # steps that a reader sees
                for number in range(KILLS):
                    start = 0 if number == 0 else rng.randint(there // 2, there)
                    what = f"seed {seed}: {backend}, kill {number}, from step {start}"
                    try:
                        flushed = _killed(server(backend), Path(place), start, rng)
                    except RuntimeError as problem:
                        done.tried += 1
                        done.failures.append(f"{what}: {problem}")
                        break
                    with done.trial(what):  # without the training, whose time is its own
                        least = flushed + 1 if flushed >= start else min(start, there)
                        there = _seen(Path(place), started=flushed >= 0 or there > 0)
                        if there < least:
                            done.lost += least - there
                            raise AssertionError(f"{least} steps were flushed, {there} are there")
    return done


def _killed(process: Server, folder: Path, start: int, rng: random.Random) -> int:
    """Trains, kills the training at a random moment, and returns the newest step that was flushed before."""
    note = Flushed(folder)
    note.set(-1)
    pid = process.start(folder, start)
    began, wait_for = time.monotonic(), start + rng.randrange(60)
    early = rng.uniform(0, 0.5) if rng.random() < 0.05 else PATIENCE  # before there is anything
    while note.get() < wait_for and time.monotonic() < began + early:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    code = process.ended()
    if code != -signal.SIGKILL or (early == PATIENCE and note.get() < start):
        raise RuntimeError(f"the training ended by itself ({code}): {(folder / 'said').read_text()[-500:]}")
    return note.get()


def _seen(folder: Path, started: bool) -> int:
    """The steps that are in the run, each with the right numbers."""
    try:
        run = read.open(folder, "run")
        rows = run.frame(SITE)
        captures = run._captures(SITE)
    except FitscopeError:
        if started:
            raise AssertionError("the run cannot be read") from None
        return 0
    assert run.status == "interrupted", f"the run is {run.status}"
    assert not run.damaged, f"damaged: {run.damaged}"
    steps = rows.index.to_numpy()
    assert (steps == np.arange(len(steps))).all(), f"steps are missing: {steps[:5]} … {steps[-5:]}"
    assert (rows["min"] == steps).all(), "a wrong number"
    assert (rows["max"] == steps).all(), "a wrong number"
    assert set(steps.tolist()) <= set(captures.step.tolist()), "a tensor is missing"
    for place in range(0, len(captures.step), 7):
        expected = np.full((BATCH, WIDTH), captures.step[place], "float32")
        assert np.array_equal(captures.capture(place), expected), "a wrong tensor"
    return len(steps)


def soak(seed: int) -> Round:
    """One long training in one process: its memory stays bounded, and every step is accounted for."""
    return _long("soak", seed, "jax")


def fits(seed: int) -> Round:
    """Many trainings in one process: on torch a new model each time, on JAX the same one."""
    return _long("fits", seed, ("torch", "jax")[seed % 2])


def _long(what: str, seed: int, backend: str) -> Round:
    """Runs `campaign.long` in a process of its own, whose last line is its result."""
    done = Round()
    command = [sys.executable, "-m", "campaign.long", what, str(seed)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment(backend), check=False)
    try:
        result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        done.tried = 1
        done.failures.append(f"seed {seed}: exit code {found.returncode}: {found.stderr[-300:]}")
        return done
    vars(done).update(result)
    return done
