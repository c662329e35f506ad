"""The runs that a server shows: opened when first asked for, each used by one thread at a time.

A request holds the locks of the runs it reads, and no other, so a slow request never delays one about another run.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from fitscope.errors import RunError, one_of
from fitscope.read import Brief, Run
from fitscope.read import open as open_run
from fitscope.read import runs as list_runs
from fitscope.show.data.gather import Gathered
from fitscope.store import Files, Objects
from fitscope.store import place as find_place

PARTS = (
    128  #: that one answer takes in: the first rank of a large run at once, the others with the next ticks
)
KEEP = 4  #: runs that are kept though nobody looks at them


class Shelved:
    """A run, for one thread at a time."""

    def __init__(self, opened: Callable[[], Run]) -> None:
        self._opened = opened
        self._gathered: Gathered | None = None
        self.lock = threading.RLock()  # the same request may use one run twice

    def updated(self) -> Gathered:
        """The run's numbers, up to date. The caller must hold the lock."""
        if self._gathered is None:
            self._gathered = Gathered(self._opened(), quiet=True)
        self._gathered.update(most=PARTS)
        return self._gathered


class Shelf:
    """The runs of one place, each opened when first asked for. The last used runs are kept, and those that a request holds."""

    def __init__(self, place: str | os.PathLike[str] | Objects) -> None:
        found = find_place(place, writing=False)
        self.place = Files(found.root, links=False) if isinstance(found, Files) else found
        self._known: WeakValueDictionary[str, Shelved] = WeakValueDictionary()
        self._kept: OrderedDict[str, Shelved] = OrderedDict()  # the longest unused first
        self._lock = threading.Lock()  # over these two, never while a run is read

    def briefs(self) -> dict[str, Brief]:
        """The runs by the names they are opened with, the newest first."""
        found = list_runs(self.place)[::-1]
        if [brief.path for brief in found] == [self.place.describe()]:  # the place is itself a run
            return {found[0].id: found[0]}
        return {brief.path.replace("\\", "/").rstrip("/").rpartition("/")[2]: brief for brief in found}

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
        # In the same order whoever asks: two that wait for each other would wait for ever.
        locks = sorted({shelved.lock for shelved in (first, second) if shelved is not None}, key=id)
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            found = [shelved.updated() for shelved in (first, second) if shelved is not None]
            for gathered in found:
                held.enter_context(gathered.held())
            yield found[0], found[1] if second is not None else None

    def shelved(self, name: str) -> Shelved:
        """The run of that name, whether it can be read or not."""
        with self._lock:
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = Shelved(lambda: self._find(name))
            self._kept[name] = known
            self._kept.move_to_end(name)
            while len(self._kept) > KEEP:
                self._kept.popitem(last=False)
            return known

    def _find(self, name: str) -> Run:
        names = self.briefs()
        if not name:
            return open_run(self.place)  # which says why there is none
        if name not in names:
            raise RunError("the name of a run that is served", repr(name), one_of(names, name))
        itself = names[name].path == self.place.describe()
        return open_run(self.place) if itself else open_run(self.place, name)
