"""Processes that judge models. One that dies or takes too long over a model is a finding about that model; the next model gets another."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parent.parent
PATIENCE = 10


class Worker:
    """A process that is given specs one after the other.

    One model may take so many `seconds` of CPU, or `PATIENCE` times as many by the clock: on a busy machine a slow worker does not hang.
    The first one may take so many more as `starting` takes.
    """

    def __init__(
        self,
        seconds: float,
        starting: float = 120,
        command: Sequence[str] = (sys.executable, "-m", "fuzz.worker"),
    ) -> None:
        self._seconds, self._starting, self._command = seconds, starting, command
        self._process: subprocess.Popen[str] | None = None

    def ask(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The verdict on a spec."""
        first = self._process is None
        if first:
            self._start()
        slow = spec["backend"] == "torch" and spec["jit"] is True  # torch.compile
        seconds = 5 * self._seconds if slow else self._seconds
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(spec) + "\n")
            self._process.stdin.flush()
            line = self._answer(seconds + (self._starting if first else 0))
        except queue.Empty:
            return self._died(spec, f"no answer in {seconds:.0f} s")
        except OSError:
            line = ""
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        return self._died(spec, f"the process died with {self._process.wait()}")

    def _answer(self, seconds: float) -> str:
        """The next line of the process, empty if it has ended."""
        assert self._process is not None
        began, spent = time.monotonic(), _cpu(self._process)
        while True:
            try:
                return self._lines.get(timeout=min(seconds, 5))
            except queue.Empty:
                if max((time.monotonic() - began) / PATIENCE, _cpu(self._process) - spent) > seconds:
                    raise

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, "PYTHONPATH": path}, text=True,
        )  # fmt: skip
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()

    def _died(self, spec: dict[str, Any], why: str) -> dict[str, Any]:
        self.close()
        self._errors.seek(0)
        return {
            "seed": spec["seed"], "attempt": spec["attempt"], "must": spec["must"], "layers": [], "outcome": "failed",
            "faults": [["died", why]], "seconds": [self._seconds], "trace": self._errors.read()[-1500:], "spec": spec,
        }  # fmt: skip


def _cpu(process: subprocess.Popen[str]) -> float:
    """Seconds of CPU that a process has taken; endless if it is no more."""
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.NoSuchProcess:
        return math.inf
    return float(times.user + times.system)


def _read(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")
