"""Rows that wait for a part: seen once by everybody, at every moment, whatever happens then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.read.follow import Follow
from fitscope.read.parts import Part
from fitscope.record import Moment, Record
from fitscope.store import Files, Memory, Objects, RunWriter
from fitscope.store import parts as parts_module
from fitscope.store import tail as tail_module

from .waiting import RANK, TAIL, Make, expected, parts_of, records, seen, tail_of


@pytest.mark.usefixtures("_short")
def test_rows_wait_in_the_tail_and_become_parts(objects: Objects, make: Make) -> None:
    writer = RunWriter.create(objects, "r")
    run = read.open(objects)
    waited = 0
    for step in range(14):
        writer.write(records(make, step))
        writer.flush()
        assert seen(run) == expected(make, range(step + 1))
        assert parts_of(objects) + tail_of(objects) == expected(make, range(step + 1))
        waited += tail_of(objects).total() > 0
    assert seen(read.open(objects)) == expected(make, range(14))
    assert waited > 5
    assert len(objects.list(f"{RANK}/stats")) < 8
    writer.close()
    assert parts_of(objects) == seen(run) == seen(read.open(objects)) == expected(make, range(14))
    assert not tail_of(objects)
    assert objects.size(TAIL) < 3_000


def test_a_run_of_few_flushes_has_no_tail(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    for step in range(parts_module.SHARE):
        writer.write(records(make, step + 1))
        writer.flush()
    assert "tail/" not in store.list(RANK)
    assert len(store.list(f"{RANK}/stats")) == parts_module.SHARE
    writer.close()


def test_the_number_of_parts_grows_as_the_logarithm(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    record = make("a", 0, np.ones((2, 2), np.float32), keep="stats")
    counts = []
    for step in range(1600):
        writer.write([Record("a", Moment(step, 0, step, 0.0), record.shape, record.dtype, record.stats)])
        writer.flush()
        if step in (199, 399, 799, 1599):
            counts.append(len(store.list(f"{RANK}/stats")))
    writer.close()
    more = np.diff(counts)
    assert (more < 60).all(), counts  # 64 ln 2 for each doubling
    assert max(more) - min(more) < 8
    assert len(read.open(store).series("a", "mean")) == 1600


Puts = list[tuple[str, bytes]]


@pytest.fixture
def diary(make: Make, spy: Any, _short: None) -> tuple[Puts, list[tuple[int, int]]]:
    """The puts of a run, and for each flush how many there were by then and the last step it acknowledged."""
    puts: Puts = []
    store = spy(Memory(), on_put=lambda key, data: puts.append((key, bytes(data))))
    writer = RunWriter.create(store, "r")
    acknowledged = [(len(puts), -1)]
    for step in range(30):
        writer.write(records(make, step))
        if step % 2:
            writer.flush()
            acknowledged.append((len(puts), step))
    writer.close()
    return puts, [*acknowledged, (len(puts), 29)]


def test_every_put_leaves_each_row_readable_once(
    diary: tuple[Puts, list[tuple[int, int]]], make: Make
) -> None:
    """A crash between any two puts leaves the objects put before; and so does a look between them."""
    puts, acknowledged = diary
    assert sum(key == TAIL for key, _ in puts) > 5
    state = Memory()
    follower = None
    for count, (key, data) in enumerate(puts, 1):
        state.put(key, data)
        if not state.list("r/attempts"):
            continue
        follower = follower or read.open(state)
        promised = max((step for at, step in acknowledged if at <= count), default=-1)
        fresh = seen(read.open(state))
        assert fresh in (expected(make, range(promised + 1)), expected(make, range(promised + 3))), key
        assert set(parts_of(state).values()) <= {1}
        assert parts_of(state) + tail_of(state) == fresh
        now = seen(follower)
        assert now <= fresh
        assert expected(make, range(promised + 1)) <= now


def test_parts_are_put_once(diary: tuple[Puts, list[tuple[int, int]]]) -> None:
    parts = [key for key, _ in diary[0] if key.endswith(".parquet")]
    assert len(parts) == len(set(parts)) > 5


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_tail_becomes_a_part_during_reading(make: Make, when: str) -> None:
    """Just before the parts are listed, or just after: its rows are seen once."""
    store = Memory()
    writer = RunWriter.create(store, "r")
    step = -1
    while not tail_of(store):
        step += 1
        writer.write(records(make, step))
        writer.flush()
    assert seen(read.open(_Listing(store, when, writer.close))) == expected(make, range(step + 1))
    assert not tail_of(store)


class _Listing(Memory):
    """A store in which something happens when the parts are listed for the first time."""

    def __init__(self, store: Memory, when: str, happens: Callable[[], None]) -> None:
        super().__init__()
        self._objects = store._objects
        self._when = when
        self._happens: list[Callable[[], None]] = [happens]

    def folder(self, name: str) -> Memory:
        inner = _Listing(self, self._when, lambda: None)
        inner._prefix = f"{self._prefix}{name.rstrip('/')}/"
        inner._happens = self._happens
        return inner

    def list(self, folder: str = "") -> list[str]:
        happens = self._happens.pop() if folder.endswith("/stats") and self._happens else None
        if happens is not None and self._when == "before":
            happens()
        found = super().list(folder)
        if happens is not None and self._when == "after":
            happens()
        return found


@pytest.mark.usefixtures("_short")
def test_a_follower_reads_part_by_part(make: Make) -> None:
    """Who takes parts as they come, and of a part that others have become only the rest, has every row once."""
    store = Memory()
    writer = RunWriter.create(store, "r")
    follow = Follow(read.open(store))
    taken: set[Part] = set()
    rows: Counter[tuple[str, int]] = Counter()
    exchanges = rests = 0
    for step in range(40):
        writer.write(records(make, step))
        writer.close() if step == 39 else writer.flush()
        if step % 5 == 3 and step != 39:
            continue  # not every look comes in time
        parts = follow.parts()
        exchanged = follow.exchanged(taken.difference(parts))
        assert exchanged is not None
        exchanges += len(exchanged)
        rest = {exchange.whole: exchange.rest for exchange in exchanged}
        for part in parts:
            if part not in taken:
                table = follow.rows(rest.get(part, part), ["site", "step"])
                assert table is not None
                rows.update(zip(table["site"].to_pylist(), table["step"].to_pylist(), strict=True))
                rests += part in rest and table.num_rows > 0
        taken = set(parts)
        assert rows == expected(make, range(step + 1))
    assert exchanges > 3
    assert rests > 3


@pytest.mark.usefixtures("_short")
def test_a_follower_starts_again_when_another_attempt_takes_over(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    follow = Follow(read.open(store))
    step = -1
    while not tail_of(store):
        step += 1
        writer.write(records(make, step))
        writer.flush()
    before = follow.parts()
    assert any(part.becomes for part in before)
    RunWriter.attempt(store, "r", start_step=2)
    assert follow.exchanged(set(before).difference(follow.parts())) is None


def test_parts_of_runs_without_tails_are_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs that were written before there were tails, and parts that say nothing about where sites lie."""
    monkeypatch.setattr(parts_module, "SHARE", 1000)
    monkeypatch.setattr(parts_module, "LONG_STRETCH", 10**9)
    writer = RunWriter.create(Files(tmp_path), "r")
    for step in range(12):
        writer.write(records(make, step))
        writer.flush()
    writer.close()
    parts = sorted((tmp_path / RANK / "stats").glob("*.parquet"))
    assert len(parts) == 12
    assert not any(b"fitscope" in part.read_bytes() for part in parts)
    assert not (tmp_path / RANK / "tail").exists()
    assert seen(read.open(tmp_path)) == expected(make, range(12))


@pytest.mark.usefixtures("_short")
def test_large_parts_are_sorted_and_index_their_sites(make: Make, tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "r")
    for step in range(60):
        writer.write(records(make, step))
        writer.flush()
    writer.close()
    several = 0
    for part in (tmp_path / RANK / "stats").glob("*.parquet"):
        table = pq.read_table(part).to_pandas()
        assert table["site"].is_monotonic_increasing
        assert table.groupby("site")["step"].is_monotonic_increasing.all()
        several += pq.read_metadata(part).num_row_groups > 1
    assert several > 2
    run = read.open(tmp_path)
    assert seen(run) == expected(make, range(60))
    loaded = [group for part in run._state.stats.parts for group, _ in part._columns]
    assert any(group is not None for group in loaded)


def test_waiting_rows_are_cut_into_ranges_of_sites() -> None:
    """Each row group has about as many rows, and no site is in two."""
    from fitscope.store.schema import STATS_SCHEMA

    waiting = tail_module.Waiting(STATS_SCHEMA, "site")
    sites = Counter({f"s{n:03d}": 1 + n % 5 * 100 for n in range(100)})
    waiting.expect(200_000, sites)
    names = [name for name in sorted(sites) for _ in range(sites[name])]
    columns = {"site": pa.array(names), "step": pa.array(range(len(names)))}
    table = pa.table(
        [columns.get(field.name, pa.nulls(len(names), field.type)) for field in STATS_SCHEMA],
        schema=STATS_SCHEMA,
    )
    for _ in range(3):
        waiting.add(table, sites)
    groups = list(waiting.groups())
    assert len(groups) == 200_000 // tail_module.GROUP_ROWS
    sizes = [group.num_rows for group in groups]
    assert sum(sizes) == 3 * len(names) == len(waiting)
    assert max(sizes) < 1.3 * np.mean(sizes)
    within = [set(group["site"].to_pylist()) for group in groups]
    assert sum(map(len, within)) == len(sites)
    assert all(max(a) < min(b) for a, b in pairwise(within))


def test_a_part_is_never_more_than_a_reader_decodes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are all alike take next to nothing when compressed, and as much memory as any others."""
    monkeypatch.setattr(parts_module, "SHARE", 1)
    store = Memory()
    writer = RunWriter.create(store, "r")
    rows = parts_module.parquet
    sizes: list[int] = []

    def encoded(tables: Any, *args: Any) -> bytes:
        kept = list(tables)
        sizes.append(sum(table.nbytes for table in kept))
        return rows(iter(kept), *args)

    monkeypatch.setattr(parts_module, "parquet", encoded)
    monkeypatch.setattr(parts_module, "MOST_DECODED", 100_000)
    like = make("loss", 0, np.float32(1.0), keep="stats")
    for step in range(4000):
        writer.write([Record("loss", Moment(step, 0, step, 1.0), like.shape, like.dtype, like.stats)])
        if step % 50 == 49:
            writer.flush()
    writer.close()
    assert len(sizes) > 4
    assert max(sizes) < 150_000
    assert len(read.open(store).series("loss")) == 4000
