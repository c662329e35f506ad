"""Diagnoses a training while it runs, on the writer thread.

All records are evidence, kept in bounded memory. The rules run at some flushes, so rarely that they take at most 1 % of the CPU time of
the process, and once more at the end. The run stores their findings. Except for notes, fitscope logs a finding once (logger
`fitscope`) and calls the user's action once. Nothing here is raised into the training.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from fitscope._version import __version__
from fitscope.diagnose import Evidence, Finding, Findings, diagnose
from fitscope.diagnose.thresholds import Given
from fitscope.record import Block, Record, Stretch

#: The reaction to a finding: "stop" ends the training at an error; a function gets each finding and may return True
#: to end the training; a URL receives each finding as JSON.
OnFinding = Literal["stop"] | Callable[[Finding], bool | None] | str

LEAST_PAUSE = 2.0  #: the least seconds between two judgements,
MOST_PAUSE = 60.0  #: and the most, if the process mostly waits for data or for an accelerator
SHARE = 0.01  #: the share of the process's CPU time that judging may take
FIRST = 1.0  #: CPU seconds of the process before the first judgement
PATIENCE = 10.0  #: seconds to wait for a webhook

log = logging.getLogger("fitscope")


class Diagnosis:
    """The diagnosis of one training so far."""

    def __init__(
        self,
        info: Mapping[str, Any],
        *,
        on_finding: OnFinding | None = None,
        thresholds: Given = None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.evidence = Evidence(info.get("model"), info.get("configuration"))
        self.evidence.notes = info.get("notes")
        self.failed: Callable[[str], None] = lambda text: None  # noqa: ARG005
        self.stop = stop
        self.found: Findings | None = None  #: the findings of the newest judgement
        self.drawn = False  #: whether a picture in the notebook shows them
        self._on_finding, self._thresholds = on_finding, thresholds
        self.cpu = 0.0  #: seconds that judging took
        # When to judge again, by the clock and by the CPU time of the process: on a busy machine two seconds bring little new evidence.
        self._next, self._latest = 0.0, time.monotonic() + MOST_PAUSE
        self._next_cpu = time.process_time() + FIRST
        self._before: set[tuple[str, str | None]] = set()  # the findings of the previous judgement
        self._told: set[tuple[str, str | None]] = set()
        self._new = False  # whether evidence has come since
        self.fired: list[Finding] = []  #: logged by the newest judgement

    def take(self, blocks: Iterable[Block], records: Iterable[Record] = ()) -> None:
        """Takes the records of some steps."""
        for block in (*blocks, *Block.of(records)):
            self.evidence.take(block)
            self._new = True

    def take_losses(self, some: Stretch) -> None:
        """Takes the losses of steps that were not captured."""
        known = ~(np.isnan(some.values) & np.isinf(some.errors))
        self.evidence.take_values(some.head.site, some.head.dtype, some.steps[known], some.values[known])
        self._new = True

    def judge(self, *, last: bool = False) -> dict[str, Any] | None:
        """Applies the rules if they are due. Returns the facts for the run; None if the rules did not run."""
        self.fired = []
        if self.evidence.last_step is None or not (last or self._due()):
            return None
        begun = time.thread_time()
        found = self.found = diagnose(self.evidence, thresholds=self._thresholds)
        self._new = False
        took, now = time.thread_time() - begun, time.monotonic()
        self.cpu += took
        self._next, self._latest = now + LEAST_PAUSE, now + max(MOST_PAUSE, took / SHARE)
        self._next_cpu = time.process_time() + took / SHARE
        for finding in found:
            self._tell(finding, last=last)
        self._before = {_key(finding) for finding in found}
        return stored(found, self.evidence.last_step)

    def _due(self) -> bool:
        now = time.monotonic()
        worked = time.process_time() >= self._next_cpu
        return self._new and now >= self._next and (worked or now >= self._latest)

    def _tell(self, finding: Finding, *, last: bool) -> None:
        """Logs a warning or error once. A warning must appear twice, or at the end, because the next steps may disprove it."""
        sure = finding.severity == "error" or last or _key(finding) in self._before
        if finding.severity == "note" or not sure or _key(finding) in self._told:
            return
        self._told.add(_key(finding))
        self.fired.append(finding)
        if (
            log.hasHandlers() or not self.drawn
        ):  # without a handler Python would print it again below the picture
            log.warning("%s: %s %s", finding.title, finding.message, finding.cure)
        try:
            self._act(finding, last=last)
        except Exception as error:  # the user's function raised, or the URL does not answer
            self.failed(f"on_finding: {type(error).__name__}: {error}")

    def _act(self, finding: Finding, *, last: bool) -> None:
        action = self._on_finding
        if callable(action):
            if action(finding) is True and not last:
                self.stop()
        elif action == "stop":
            if finding.severity == "error" and not last:
                self.stop()
        elif action is not None:
            threading.Thread(target=self._send, args=(action, finding), daemon=not last).start()

    def _send(self, address: str, finding: Finding) -> None:
        body = json.dumps(finding.as_dict()).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except Exception as error:
            self.failed(f"on_finding: {address} could not be notified: {error}")


def stored(found: Findings, step: int | None) -> dict[str, Any]:
    """Findings as stored in the run."""
    return {**found.as_dict(), "step": step, "version": __version__}


def _key(finding: Finding) -> tuple[str, str | None]:
    return finding.rule, finding.layer
