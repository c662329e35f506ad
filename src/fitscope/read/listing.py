"""Keeps one run of a repeated listing, as a server makes: it opens a run that has ended only once.

`fs.runs` opens every run whenever it is called, and a run of a thousand processes has a thousand statuses. Here two small requests
find out whether a known run is still the same: one for `run.json`, one for the list of its attempts. A run that may still grow stays
open, so fitscope reads only what is new.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

from fitscope.errors import RunError
from fitscope.read.find import Brief, brief_of, fetched, parsed, run_of
from fitscope.read.run import Run
from fitscope.store import schema
from fitscope.store._base import Objects

SILENT = 600.0  #: seconds after which a run without a living process is checked less often


class Listed:
    """One run of a listing. Whoever calls its methods, or uses `run`, holds the lock."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.lock = threading.RLock()
        self.run: Run | None = None  #: the run, while it is open
        self.brief: Brief | None = None  #: the brief as of the last look
        self._document = b""
        self._attempts: list[str] = []
        self._until = -math.inf  # when the brief expires even if nothing has changed

    def opened(self) -> Run:
        """The run. It stays open."""
        self._read()
        if self.run is None:
            self.run = run_of(self.objects, parsed(self.objects, self._document))
        return self.run

    def look(self) -> Brief:
        """The brief as of now. FileNotFoundError if there is no run."""
        try:
            self._read()
        except FileNotFoundError:
            raise
        except (RunError, OSError):  # a broken run must not hide the others
            self.brief = brief_of(self.objects, self.opened)
            return self.brief
        attempts = self.objects.list(schema.ATTEMPTS)  # listed first: the next look finds a later attempt
        if self.brief is None or attempts != self._attempts or time.monotonic() >= self._until:
            brief = brief_of(self.objects, self.opened)
            silence = brief.run._state.silence if brief.run is not None else 0.0
            self._until = time.monotonic() + silence if silence > SILENT else -math.inf
            self.brief, self._attempts = replace(brief, run=None), attempts
        return self.brief

    def _read(self) -> None:
        """Reads `run.json`, and forgets everything if it is another one."""
        data = fetched(self.objects)
        if data != self._document:
            self._document, self.run, self.brief = data, None, None
