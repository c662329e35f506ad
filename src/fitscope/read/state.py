"""The current state of a run: its attempts, their ranks, and the tables they write.

`look` finds new data and skips ranks that have ended. An attempt counts up to the step at which a later one started, unless the later
one ended before it recorded anything. A pass or a checkpoint at that step describes weights that both share, so it belongs to both.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from fitscope.read import untrusted
from fitscope.read.damage import DamageReport
from fitscope.read.ranks import Rank
from fitscope.read.tables import Table
from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.places import is_local

READERS = 64  #: ranks that are read at once in an object store; in a directory, one by one is faster

SELDOM = 10  #: a slow look at light ranks is repeated only after this many times its duration
TOGETHER = 4  #: light ranks in one task, if there are many
T = TypeVar("T")


class RunState:
    """The parts that a run is merged from, kept up to date."""

    def __init__(
        self, objects: Objects, run_id: str, written_as: int = schema.FORMAT, only: int | None = None
    ) -> None:
        self.objects = objects
        self._only = only  # the rank that counts; None: all
        self.damaged = DamageReport(run_id)
        older = written_as < schema.FORMAT
        self.tables = {name: Table(name, objects, self.damaged, older=older) for name in schema.TABLES}
        self._attempts: dict[str, dict[str, Any]] = {}
        self._numbers: set[int] = set()  # the numbers of these attempts
        self._ranks: dict[tuple[int, int], Rank] = {}
        self._light_wait = 0.0  # the least seconds between two looks at a light rank
        self._held = 0
        self._memo: dict[bool, list[dict[str, Any]]] = {}  # the statuses, while the state is held
        self._begun: set[int] = set()  # attempts that have recorded something
        self._absent: dict[tuple[int, int], Rank] = {}  # the ranks of the newest attempt without a folder
        self._known: dict[int, set[int]] = {}  # for each attempt of several ranks, the ranks with a folder

    @property
    def stats(self) -> Table:
        return self.tables[schema.STATS]

    @property
    def samples(self) -> Table:
        return self.tables[schema.SAMPLES]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The documents of the attempts, in order."""
        return sorted(self._attempts.values(), key=lambda document: int(document["attempt"]))

    @property
    def ranks(self) -> list[Rank]:
        """All ranks that have a folder, in the order of attempts and then of ranks."""
        return [rank for _, rank in sorted(self._ranks.items())]

    @property
    def several_ranks(self) -> bool:
        """Whether one step may have data of several ranks."""
        return any(len(self.numbers(document)) > 1 for document in self._attempts.values())

    @property
    def shards(self) -> bool:
        """Whether ranks hold parts of one tensor, each element once."""
        return any(document.get("shards") for document in self._attempts.values())

    def numbers(self, document: dict[str, Any]) -> Sequence[int]:
        """The numbers of the ranks of an attempt that count. Its document has their number; some may lack a folder."""
        world = range(int(document.get("world") or 1))
        return world if self._only is None else [self._only] if self._only in world else []

    @property
    def ends(self) -> dict[int, int | None]:
        """For each attempt, the step at which it stops counting because a later one started there."""
        starts = {
            int(document["attempt"]): int(document["start_step"]) for document in self._attempts.values()
        }
        ranks: dict[int, list[Rank]] = {}
        for (attempt, _), rank in self._ranks.items():
            ranks.setdefault(attempt, []).append(rank)
        ends: dict[int, int | None] = {}
        end: int | None = None
        for attempt in sorted(starts, reverse=True):
            ends[attempt] = end
            # The first attempt has no earlier one to take over from.
            if attempt and self._recorded(attempt, ranks.get(attempt, ())):
                end = starts[attempt] if end is None else min(end, starts[attempt])
        return ends

    def _recorded(self, attempt: int, ranks: Sequence[Rank]) -> bool:
        """Whether an attempt takes over from earlier ones. It does not if it ended before it recorded anything."""
        if attempt not in self._begun:
            folder = schema.attempt_folder(attempt)
            there = [name[:-1] for name in self._list(folder) if name.endswith("/")]
            if any(set(self._list(f"{folder}/{rank}")) - {schema.STATUS} for rank in there):
                self._begun.add(attempt)
        if attempt in self._begun:
            return True
        said = [rank.status() for rank in ranks]
        return any(each.get("status") == "running" or each.get("checkpoints") for each in said)

    def rows(self, table: str) -> Iterator[pa.Table]:
        """The rows of a table that count, part by part. A damaged part is skipped and reported."""
        self.look()
        found = self.tables[table]
        for part in found.parts:
            rows = found.take(part, found.form.names)
            if rows is not None:
                yield rows
        self.damaged.warn()

    @contextlib.contextmanager
    def looked(self) -> Iterator[None]:
        """Looks once, and keeps that state inside the block: each look at a growing run takes several requests."""
        self.look()
        with self.held():
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the state of the last look inside the block, so that an answer made of many facts is consistent."""
        if not self._held:
            self._memo = {}
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def look(self) -> None:
        """Finds new attempts, ranks and parts."""
        if self._held:
            return
        for name in (name.rstrip("/") for name in self._list(schema.ATTEMPTS)):
            key = f"{schema.ATTEMPTS}/{name}"
            if name.endswith(".json") and key not in self._attempts and key not in self.damaged:
                self._read_attempt(key)
        for document in self._attempts.values():
            attempt = int(document["attempt"])
            for number in self._started(attempt, self.numbers(document)):
                if (attempt, number) not in self._ranks:
                    light = number not in document.get("sampled", [number])
                    self._ranks[attempt, number] = Rank(
                        self.objects, attempt, number, self.damaged, light=light
                    )
        ends = self.ends
        todo = [
            (rank, ends[attempt])
            for (attempt, _), rank in sorted(self._ranks.items())
            if rank.due(self._light_wait) or rank.end != ends[attempt]
        ]
        began = time.monotonic()
        each(lambda both: self._read_rank(*both), todo, remote=is_local(self.objects) is None)
        if any(rank.light for rank, _ in todo):
            self._light_wait = SELDOM * (time.monotonic() - began)

    def _started(self, attempt: int, numbers: Sequence[int]) -> Iterable[int]:
        """The ranks that have a folder. A forged document may name 65,536 ranks, and looking for missing folders takes time."""
        if len(numbers) <= 1:
            return numbers
        known = self._known.setdefault(attempt, set())
        if len(known) < len(numbers):
            there = self._list(schema.attempt_folder(attempt))
            known.update(
                number
                for name in there
                if (number := schema.rank_of(name.rstrip("/"))) is not None and number in numbers
            )
        return known

    def _read_rank(self, rank: Rank, end: int | None) -> None:
        """Finds what is new in the folder of one rank."""
        # Read the status before listing the tables: a rank that has ended by then adds nothing afterwards.
        said = rank.look()
        rank.end = end
        if not rank.light:
            for table in self.tables.values():
                table.follow(rank.folder, rank.end, said)
        if said is not None and said.get("status", "running") != "running":
            rank.settle()

    def last_step(self) -> int | None:
        """The last step recorded by an attempt that it belongs to; None before the first."""
        found = (((rank.said() or {}).get("step"), rank.end) for rank in self.ranks)
        return max(
            (min(step, end - 1) if end is not None else step for step, end in found if step is not None),
            default=None,
        )

    def newest_ranks(self) -> list[tuple[int, Rank]]:
        """The ranks of the newest attempt, each with the number of the attempt; also those that have not started."""
        newest = self._newest()
        if newest is None:
            return []
        attempt, numbers = int(newest["attempt"]), self.numbers(newest)
        sampled = frozenset(newest.get("sampled", numbers))
        for number in numbers:
            if (attempt, number) not in self._ranks and (attempt, number) not in self._absent:
                light = number not in sampled
                self._absent[attempt, number] = Rank(None, attempt, number, self.damaged, light=light)
        return [
            (attempt, self._ranks.get((attempt, number)) or self._absent[attempt, number])
            for number in numbers
        ]

    def _newest(self) -> dict[str, Any] | None:
        """The document of the newest attempt with a rank that counts."""
        return next((one for one in reversed(self.attempts) if self.numbers(one)), None)

    def _newest_started(self) -> list[Rank]:
        """The ranks of the newest attempt that have a folder."""
        newest = self._newest()
        ranks = sorted(self._ranks.items())
        return [rank for (attempt, _), rank in ranks if newest is not None and attempt == newest["attempt"]]

    def pulses(self) -> dict[int, dict[str, Any]]:
        """The pulse of each rank of the newest attempt, from its status."""
        said = {rank.number: (rank.said() or {}).get("pulse") for rank in self._newest_started()}
        return {number: pulse for number, pulse in said.items() if isinstance(pulse, dict)}

    def statuses(self, *, newest: bool = False) -> list[dict[str, Any]]:
        """The status of every rank that has one, of all attempts or of the newest."""
        if self._held and newest in self._memo:
            return self._memo[newest]
        found = [rank.status() for rank in (self._newest_started() if newest else self.ranks)]
        self._memo[newest] = there = [status for status in found if "heartbeat" in status]
        return there

    @property
    def silence(self) -> float:
        """The seconds for which no process has written: infinite if all have ended, 0 if one may be running. As of the last look."""
        ranks = self.ranks
        if ranks and all(rank.settled for rank in ranks):
            return math.inf
        said = self.statuses()
        if not said or any(status.get("status") == "running" for status in said):
            return 0.0
        return time.time() - max(float(status["heartbeat"]) for status in said)

    def _list(self, folder: str) -> list[str]:
        """The entries of a folder; none if it cannot be listed, which is reported."""
        try:
            return self.objects.list(folder)
        except OSError as problem:
            self.damaged.add(folder, problem)
            return []

    def _read_attempt(self, key: str) -> None:
        try:
            document = untrusted.read(self.objects, key)
        except untrusted.UNREADABLE as problem:
            self.damaged.add(key, problem)
            return
        wrong = untrusted.cleaned(document, untrusted.ATTEMPT)
        wrong += [f"it has no {name!r}" for name in ("attempt", "start_step") if name not in document]
        if document.get("attempt") in self._numbers:
            wrong.append(f"attempt {document['attempt']} is there already")
            del document["attempt"]
        if wrong:
            self.damaged.add(key, wrong[0])
        if "attempt" in document and "start_step" in document:
            self._attempts[key] = document
            self._numbers.add(document["attempt"])


def each(action: Callable[[T], object], items: Sequence[T], *, remote: bool) -> None:
    """Calls a function with each item; in a remote store with many at once."""
    if remote and len(items) > 1:
        size = min(TOGETHER, -(-len(items) // READERS))
        some = [items[at : at + size] for at in range(0, len(items), size)]
        with ThreadPoolExecutor(min(READERS, len(some))) as pool:
            list(pool.map(lambda chunk: [action(item) for item in chunk], some))
    else:
        for item in items:
            action(item)
