"""The current state of a run: its attempts, their ranks, and the tables they write.

`look` finds new data and skips ranks that have ended. An attempt counts up to the step at which a later one started, unless that one ended
before it recorded anything. A pass or a checkpoint at that step describes weights that both share, so it belongs to both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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

READERS = (
    32  #: ranks that are looked at at once in an object store; in a directory one by one, which is faster
)

TOGETHER = 4  #: of them in one task
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
        self._ranks: dict[tuple[int, int], Rank] = {}
        self._held = 0
        self._memo: dict[bool, list[dict[str, Any]]] = {}  # statuses, while it is held
        self._begun: set[int] = set()  # attempts that have recorded something

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
        """All ranks, in the order of attempts and then of ranks."""
        return [rank for _, rank in sorted(self._ranks.items())]

    @property
    def several_ranks(self) -> bool:
        """Whether one step may have data of several ranks."""
        return any(len(self.numbers(document)) > 1 for document in self._attempts.values())

    @property
    def shards(self) -> bool:
        """Whether ranks hold parts of one tensor, each element once."""
        return any(document.get("shards") for document in self._attempts.values())

    def numbers(self, document: dict[str, Any]) -> list[int]:
        """The numbers of the ranks of an attempt, as far as they count."""
        world = range(int(document.get("world") or 1))
        return list(world) if self._only is None else [self._only] if self._only in world else []

    @property
    def ends(self) -> dict[int, int | None]:
        """By attempt, the step at which it stops counting because a later one started there."""
        starts = {
            int(document["attempt"]): int(document["start_step"]) for document in self._attempts.values()
        }
        last = max(starts, default=0)
        taking_over = {number: start for number, start in starts.items() if self._recorded(number, last)}
        return {
            attempt: min((start for later, start in taking_over.items() if later > attempt), default=None)
            for attempt in starts
        }

    def _recorded(self, attempt: int, last: int) -> bool:
        """Whether an attempt takes over. It does not if it ended or was killed before it recorded anything."""
        if attempt not in self._begun:
            if not last:  # the only one has nobody to take over from
                return True
            folder = schema.attempt_folder(attempt)
            ranks = [name[:-1] for name in self.objects.list(folder) if name.endswith("/")]
            if any(set(self.objects.list(f"{folder}/{rank}")) - {schema.STATUS} for rank in ranks):
                self._begun.add(attempt)
        said = [rank.status() for (number, _), rank in self._ranks.items() if number == attempt]
        trained = any(each.get("status") == "running" or each.get("checkpoints") for each in said)
        return attempt in self._begun or trained

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
    def held(self) -> Iterator[None]:
        """Inside, everything stays as of the last look: an answer made of many facts needs one."""
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
        for name in self.objects.list(schema.ATTEMPTS):
            key = f"{schema.ATTEMPTS}/{name}"
            if name.endswith(".json") and key not in self._attempts and key not in self.damaged:
                self._read_attempt(key)
        for document in self._attempts.values():
            attempt = int(document["attempt"])
            for number in self.numbers(document):
                if (attempt, number) not in self._ranks:
                    light = number not in document.get("sampled", [number])
                    self._ranks[attempt, number] = Rank(
                        self.objects, attempt, number, self.damaged, light=light
                    )
        ends = self.ends
        todo = [
            (rank, ends[attempt])
            for (attempt, _), rank in sorted(self._ranks.items())
            if rank.due() or rank.end != ends[attempt]
        ]
        each(lambda both: self._read_rank(*both), todo, remote=is_local(self.objects) is None)

    def _read_rank(self, rank: Rank, end: int | None) -> None:
        """Finds what is new in the folder of one rank."""
        # Asked before the tables are listed: who has ended by then adds nothing afterwards.
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
        """The ranks of the newest attempt, each with its number."""
        last = max((attempt for attempt, _ in self._ranks), default=0)
        return [(attempt, rank) for (attempt, _), rank in sorted(self._ranks.items()) if attempt == last]

    def pulses(self) -> dict[int, dict[str, Any]]:
        """By rank of the newest attempt: the pulse in its status."""
        said = {rank.number: (rank.said() or {}).get("pulse") for _, rank in self.newest_ranks()}
        return {number: pulse for number, pulse in said.items() if isinstance(pulse, dict)}

    def statuses(self, *, newest: bool = False) -> list[dict[str, Any]]:
        """The status of every rank that has one, of all attempts or of the newest."""
        if self._held and newest in self._memo:
            return self._memo[newest]
        found = [rank.status() for rank in ([r for _, r in self.newest_ranks()] if newest else self.ranks)]
        self._memo[newest] = there = [status for status in found if "heartbeat" in status]
        return there

    def _read_attempt(self, key: str) -> None:
        try:
            document = untrusted.read(self.objects, key)
        except untrusted.UNREADABLE as problem:
            self.damaged.add(key, problem)
            return
        wrong = untrusted.cleaned(document, untrusted.ATTEMPT)
        wrong += [f"it has no {name!r}" for name in ("attempt", "start_step") if name not in document]
        numbers = {one["attempt"] for one in self._attempts.values()}
        if document.get("attempt") in numbers:
            wrong.append(f"attempt {document['attempt']} is there already")
            del document["attempt"]
        if wrong:
            self.damaged.add(key, wrong[0])
        if "attempt" in document and "start_step" in document:
            self._attempts[key] = document


def each(action: Callable[[T], object], items: Sequence[T], *, remote: bool) -> None:
    """Does something with each item; in a remote store with many of them at once."""
    if remote and len(items) > 1:
        some = [items[at : at + TOGETHER] for at in range(0, len(items), TOGETHER)]
        with ThreadPoolExecutor(min(READERS, len(some))) as pool:
            list(pool.map(lambda chunk: [action(item) for item in chunk], some))
    else:
        for item in items:
            action(item)
