"""Reads the data of one process of one attempt. A run is merged from all of them.

Final documents are read once. A document that may still change is read at every access, and parsed again only if it changed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

from fitscope.read import untrusted
from fitscope.read.black_box import Box
from fitscope.read.damage import DamageReport
from fitscope.read.stored import StoredArray
from fitscope.read.untrusted import UNREADABLE
from fitscope.reduce.average import Average
from fitscope.store import averages, schema
from fitscope.store._base import Objects
from fitscope.store.black_box import BOX, folders
from fitscope.store.liveness import is_alive
from fitscope.store.memory import Memory
from fitscope.store.pace import LIGHT_SECONDS

LIGHT_LOOK = LIGHT_SECONDS / 3  #: seconds between two looks at the status of a light rank
_NOWHERE: Objects = Memory()  #: stands in for the folder of a rank that has none


class Rank:
    """The folder of one rank."""

    def __init__(
        self,
        run: Objects | None,
        attempt: int,
        number: int,
        damaged: DamageReport,
        *,
        light: bool = False,
    ) -> None:
        self.number = number
        self.light = light  #: a light rank writes only its status, and rarely
        self._started = run is not None  # otherwise the rank has no folder yet, and fitscope reads nothing
        self._looked = -math.inf
        self.folder = schema.rank_folder(attempt, number)
        self.end: int | None = None  #: the step from which on a later attempt counts, as of the last look
        self.settled = False  #: whether it has ended and everything it wrote is known
        self._objects = _NOWHERE if run is None else run.folder(self.folder)
        self._damaged = damaged
        self._seen: dict[str, tuple[bytes, Any]] = {}  # documents by key, with their parsed form

    def settle(self) -> None:
        """Marks the rank as final: every document is read at most once more."""
        self._seen = {key: seen for key, seen in self._seen.items() if key == schema.STATUS}
        self.settled = True

    def status(self) -> dict[str, Any]:
        """The rank's status document; it says "running" only while the process is alive. Empty if there is none."""
        document = self.said() or {}
        if document.get("status") != "running":
            return document
        return {**document, "status": "running" if is_alive(document) else "interrupted"}

    def arrays(self) -> dict[str, list[str]]:
        """The paths of all arrays of tensors, by site."""
        if self.light:
            return {}
        found = self._document(f"{schema.TENSORS}/zarr.json", _listed)
        return found if isinstance(found, dict) else {}

    def array(self, path: str) -> StoredArray | None:
        """One array as committed so far; None if it cannot be read, which is then reported."""
        key = f"{schema.TENSORS}/{path}/{schema.DATA}/zarr.json"
        report = functools.partial(self._damaged.add_told, self.folder)
        found = self._document(key, lambda data: StoredArray(self._objects, path, data, report))
        if found is None and f"{self.folder}/{key}" not in self._damaged:
            self._damaged.add(f"{self.folder}/{key}", "it is missing")
        return found if isinstance(found, StoredArray) else None

    def averages(self) -> dict[str, str]:
        """The path of each average, by site."""
        found = (self.said() or {}).get("averages")
        return found if isinstance(found, dict) else {}

    def average(self, path: str) -> Average | None:
        """One average as written so far; None if it cannot be read, which is then reported."""
        key = f"{schema.AVERAGES}/{path}.npz"
        try:
            return averages.decode(self._objects.get(key, averages.MOST_BYTES))
        except UNREADABLE as problem:
            self._damaged.add(f"{self.folder}/{key}", problem)
            return None

    def boxes(self) -> list[Box]:
        """The steps that the black box wrote, in order. An unreadable box is reported."""
        found = []
        try:
            there = [] if self.light else list(folders(self._objects))
        except OSError as problem:
            self._damaged.add(f"{self.folder}/{schema.BLACK_BOX}", problem)
            return []
        for folder in there:
            try:
                found.append(Box(self._objects, folder, self.end))
            except UNREADABLE as problem:
                self._damaged.add(f"{self.folder}/{folder}/{BOX}", problem)
        return found

    def said(self) -> dict[str, Any] | None:
        """The rank's status document as of the last look: the same object while it does not change. None if there is none."""
        known = self._seen.get(schema.STATUS)
        return self.look() if known is None else known[1]

    def due(self, light_wait: float = 0.0) -> bool:
        """Whether the rank may have written something new. Readers check a light rank rarely, because it writes rarely."""
        wait = max(LIGHT_LOOK, light_wait)
        if self.light and schema.STATUS in self._seen and time.monotonic() < self._looked + wait:
            return False
        return not self.settled

    def look(self) -> dict[str, Any] | None:
        """Reads the status document."""
        if not self._started:
            return None
        self._looked = time.monotonic()
        document = self._document(schema.STATUS, self._status)
        return document if isinstance(document, dict) else None

    def _status(self, data: bytes) -> dict[str, Any]:
        document = untrusted.parse(data)
        wrong = untrusted.cleaned(document, untrusted.STATUS)
        if wrong:
            self._damaged.add(f"{self.folder}/{schema.STATUS}", wrong[0])
        return document

    def _document(self, key: str, parse: Callable[[bytes], Any]) -> Any:
        """A parsed document, or None. The same object as before if it did not change."""
        before = self._seen.get(key)
        if before is not None and self.settled:
            return before[1]
        try:
            data = self._objects.get(key, untrusted.MOST_BYTES)
            if before is None or before[0] != data:
                before = self._seen[key] = (data, parse(data))
            return before[1]
        except FileNotFoundError:
            return None
        except UNREADABLE as problem:
            self._damaged.add(f"{self.folder}/{key}", f"{type(problem).__name__}: {problem}")
            return None


def _listed(root: bytes) -> dict[str, list[str]]:
    arrays = untrusted.parse(root)["attributes"]["arrays"]
    entry = untrusted.fields({"site": untrusted.text, "path": untrusted.key}, "site", "path")
    if not untrusted.listing(entry)(arrays):
        raise ValueError("its attribute `arrays` is not a list of sites with their paths")
    if not untrusted.distinct(untrusted.listing(untrusted.key))([one["path"] for one in arrays]):
        raise ValueError(
            f"its attribute `arrays` lists a path twice, or more than {untrusted.MOST_ARRAYS:,} paths"
        )
    found: dict[str, list[str]] = {}
    for one in arrays:
        found.setdefault(one["site"], []).append(one["path"])
    return found
