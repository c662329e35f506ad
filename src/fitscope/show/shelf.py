"""Keeps the runs that a server shows. It opens a run at the first request for it, and lends it to one thread at a time.

A request holds the locks of the runs it reads, and no other, so a slow request never delays a request for another run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from fitscope.errors import RunError, one_of
from fitscope.read import Brief, Run
from fitscope.read import open as open_run
from fitscope.read.find import in_order
from fitscope.read.listing import Listed
from fitscope.read.state import each
from fitscope.show.data.gather import Gathered
from fitscope.show.data.runs import RunTable
from fitscope.store import Files, Objects, schema
from fitscope.store import place as find_place
from fitscope.store.places import is_local

PARTS = (
    128  #: parts that one answer reads: the first rank of a large run at once, the others with the next ticks
)
PAUSE = 0.5  #: seconds after that in which an answer uses the parts already read
KEEP = 4  #: runs that stay open without a page
OPEN = 32  #: runs that stay open between two lists of all runs


class Shelved:
    """A run, for one thread at a time."""

    def __init__(self, opened: Callable[[], Run], lock: threading.RLock) -> None:
        self._opened = opened
        self._gathered: Gathered | None = None
        self._next = 0.0  # the time at which more of a large run is read
        self.lock = lock  # a reentrant lock: the same request may take it twice

    def updated(self) -> Gathered:
        """The run's numbers, up to date. The caller must hold the lock."""
        if self._gathered is None:
            self._gathered = Gathered(self._opened(), quiet=True)
        if not self._gathered.behind or time.monotonic() >= self._next:
            self._gathered.update(most=PARTS)
            self._next = time.monotonic() + PAUSE
        return self._gathered


class Shelf:
    """The runs of one place, each opened at the first request for it. The last used runs stay open, and those that a request holds."""

    def __init__(self, place: str | os.PathLike[str] | Objects) -> None:
        found = find_place(place, writing=False)
        self.place = Files(found.root, links=False) if isinstance(found, Files) else found
        self._listed: dict[str, Listed] = {}  # listed runs by folder
        self._known: WeakValueDictionary[str, Shelved] = WeakValueDictionary()
        self._kept: OrderedDict[str, Shelved] = OrderedDict()  # open runs, the least recently used first
        self._lock = threading.Lock()  # guards these three, but not the reading of a run

    def briefs(self) -> dict[str, Brief]:
        """The runs by the names they are opened with, the newest first.

        A run that another request is reading has its previous brief.
        """
        found: list[Brief] = []

        def look(listed: Listed) -> None:
            with contextlib.suppress(FileNotFoundError):  # a folder without a run
                if listed.lock.acquire(blocking=False):
                    try:
                        found.append(listed.look())
                    finally:
                        listed.lock.release()
                else:
                    found.append(listed.brief or Listed(listed.objects).look())

        listed = self._list()
        each(look, list(listed.values()), remote=is_local(self.place) is None)
        for one in [one for _, one in sorted(listed.items()) if one.run is not None][:-OPEN]:
            one.run = None
        if "" in listed:  # the place is itself a run
            return {brief.id: brief for brief in found}
        return {_folder(brief): brief for brief in in_order(found)[::-1]}

    def _list(self) -> dict[str, Listed]:
        """The possible runs, by folder."""
        names = self.place.list()
        folders = [""] if schema.RUN in names else [name[:-1] for name in names if name.endswith("/")]
        with self._lock:
            self._listed = {
                name: self._listed.get(name) or Listed(self.place.folder(name) if name else self.place)
                for name in folders
            }
            return dict(self._listed)

    def name(self, wanted: str | None) -> str:
        """The name of the requested run: the newest readable one if the request names none."""
        if wanted:
            return wanted
        return next((name for name, brief in self.briefs().items() if not brief.problem), "")

    @contextlib.contextmanager
    def run(self, wanted: str | None) -> Iterator[Gathered]:
        """One run, up to date, for one thread at a time."""
        with self.both(wanted, None) as (gathered, _):
            yield gathered

    @contextlib.contextmanager
    def both(self, wanted: str | None, other: str | None) -> Iterator[tuple[Gathered, Gathered | None]]:
        """A run, and another to compare it with, if one is named."""
        first = self.shelved(self.name(wanted))
        second = self.shelved(other) if other is not None else None
        # Always in the same order, so that no two requests wait for each other.
        locks = sorted({shelved.lock for shelved in (first, second) if shelved is not None}, key=id)
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            found = [shelved.updated() for shelved in (first, second) if shelved is not None]
            for gathered in found:
                held.enter_context(gathered.held())
            yield found[0], found[1] if second is not None else None

    def shelved(self, name: str) -> Shelved:
        """The run of that name, readable or not."""
        listed = self._listed_as(name)
        with self._lock:
            known = self._known.get(name)
            if known is None:
                lock = threading.RLock() if listed is None else listed.lock
                known = self._known[name] = Shelved(lambda: self._find(name, lock), lock)
            self._kept[name] = known
            self._kept.move_to_end(name)
            while len(self._kept) > KEEP:
                self._kept.popitem(last=False)
            return known

    def table(self, rows: RunTable) -> list[dict[str, Any]]:
        """The table of runs. While another request reads a run, its row has the previous facts."""

        @contextlib.contextmanager
        def held(name: str) -> Iterator[Run | None]:
            listed = self._listed_as(name)
            if listed is None or not listed.lock.acquire(blocking=False):
                yield None
                return
            try:
                yield listed.opened()
            finally:
                listed.lock.release()

        return rows.rows(self.briefs(), held)

    def _listed_as(self, name: str) -> Listed | None:
        """The listed run of a name."""
        listed = self._listed
        if name not in listed or "" in listed:
            listed = self._list()
        itself = listed.get("")
        if itself is None:
            return listed.get(name)
        brief = itself.brief or Listed(itself.objects).look()
        return itself if brief.id == name else None

    def _find(self, name: str, lock: threading.RLock) -> Run:
        if not name:
            return open_run(self.place)  # this raises the reason
        listed = self._listed_as(name)
        try:
            if listed is None:
                raise FileNotFoundError(name)
            if listed.lock is lock:
                return listed.opened()
            return Listed(listed.objects).opened()  # the run did not exist at the first request
        except FileNotFoundError:
            raise RunError(
                "the name of a run that is served", repr(name), one_of(self.briefs(), name)
            ) from None


def _folder(brief: Brief) -> str:
    """The name of the folder that a run is in."""
    return brief.path.replace("\\", "/").rstrip("/").rpartition("/")[2]
