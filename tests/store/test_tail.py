"""Rows that wait for a part: seen once by everybody, at every moment, whatever happens then."""

from __future__ import annotations

import io
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
from fitscope.errors import FitscopeWarning
from fitscope.read.follow import Follow
from fitscope.read.parts import Part
from fitscope.record import Moment, Record, Samples
from fitscope.store import Files, Memory, Objects, RunWriter
from fitscope.store import parts as parts_module
from fitscope.store import tail as tail_module
from fitscope.store.tail import PART

Make = Callable[..., Record]

RANK = "r/a0000/r00000"
TAIL = f"{RANK}/tail/stats.arrow"
SITES = ("activations/a", "activations/b", "loss", "validation/loss")


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait from the third flush on, and a part of a hundred rows has several row groups."""
    monkeypatch.setattr(parts_module, "SHARE", 2)
    monkeypatch.setattr(parts_module, "LONG_STRETCH", 2)
    monkeypatch.setattr(tail_module, "GROUP_ROWS", 8)


def records(make: Make, step: int) -> list[Record]:
    """Every third step lacks a site, one has a site of its own."""
    found = [
        make(site, step, np.full((2, 3), step * 10 + place, np.float32), keep="stats")
        for place, site in enumerate(SITES)
        if step % 3 or place != 1
    ]
    return [*found, make("late", step, np.full((2,), step, np.float32), keep="stats")] if step == 7 else found


def expected(make: Make, steps: range) -> Counter[tuple[str, int]]:
    return Counter((record.site, step) for step in steps for record in records(make, step))


def seen(run: read.Run) -> Counter[tuple[str, int]]:
    """Every row there is, as the table, as series and as SQL have it, which must be the same."""
    table = run.stats
    found = Counter(zip(table["site"], table["step"], strict=True))
    series = Counter((site, int(step)) for site in run.sites for step in _steps(run, site))
    asked = run.sql("select site, step from stats")
    assert found == series == Counter(zip(asked["site"], asked["step"], strict=True))
    assert table["mean"].tolist() == [
        _value(site, step) for site, step in zip(table["site"], table["step"], strict=True)
    ]
    assert run.damaged == []
    return found


def _steps(run: read.Run, site: str) -> list[int]:
    series = run.series(site, "mean")
    assert (series == [_value(site, step) for step in series.index.get_level_values("step")]).all()
    return series.index.get_level_values("step").tolist()


def _value(site: str, step: int) -> float:
    return step if site == "late" else step * 10 + SITES.index(site)


def parts_of(store: Objects, rank: str = RANK) -> Counter[tuple[str, int]]:
    """What somebody sees who reads all parts with a tool of their own."""
    found: Counter[tuple[str, int]] = Counter()
    for name in store.list(f"{rank}/stats"):
        table = pq.read_table(io.BytesIO(store.get(f"{rank}/stats/{name}")))
        found.update(zip(table["site"].to_pylist(), table["step"].to_pylist(), strict=True))
    return found


def tail_of(store: Objects) -> Counter[tuple[str, int]]:
    """What is in the tail, for those who follow the rule in docs/layout.md."""
    try:
        stream = pa.ipc.open_stream(store.get(TAIL))
    except FileNotFoundError:
        return Counter()
    if stream.schema.metadata[PART].decode() in store.list(f"{RANK}/stats"):
        return Counter()
    table = stream.read_all()
    return Counter(zip(table["site"].to_pylist(), table["step"].to_pylist(), strict=True))


@pytest.mark.usefixtures("_short")
def test_rows_wait_and_become_parts(objects: Objects, make: Make) -> None:
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


def test_every_row_once_after_every_put(diary: tuple[Puts, list[tuple[int, int]]], make: Make) -> None:
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
def test_a_tail_becomes_a_part_while_somebody_looks(make: Make, when: str) -> None:
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
def test_following_part_by_part(make: Make) -> None:
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
def test_who_follows_begins_anew_where_another_attempt_takes_over(make: Make) -> None:
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


class TestFailures:
    """What cannot be put waits, and is lost only where it is said to be."""

    @staticmethod
    def writer(spy: Any, broken: set[str]) -> tuple[Memory, RunWriter]:
        def on_put(key: str, _: Any) -> None:
            if any(word in key for word in broken):
                raise OSError(28, "No space left on device")

        store = Memory()
        return store, RunWriter.create(spy(store, on_put=on_put), "r")

    @staticmethod
    def record(writer: RunWriter, make: Make, steps: range) -> int:
        """Writes and flushes step by step. Returns how many flushes failed."""
        failed = 0
        for step in steps:
            writer.write(records(make, step))
            try:
                writer.flush()
            except OSError:
                failed += 1
        return failed

    @pytest.mark.usefixtures("_short")
    @pytest.mark.parametrize("what", ["tail/", "stats/"])
    def test_for_a_while(self, make: Make, spy: Any, what: str) -> None:
        broken: set[str] = set()
        store, writer = self.writer(spy, broken)
        self.record(writer, make, range(9))
        broken.add(what)
        assert self.record(writer, make, range(9, 16)) > 0
        before = seen(read.open(store))
        assert expected(make, range(9)) <= before <= expected(make, range(16))
        broken.clear()
        assert self.record(writer, make, range(16, 18)) == 0
        assert seen(read.open(store)) == expected(make, range(18))
        writer.close()
        assert writer.lost == {}
        assert parts_of(store) == expected(make, range(18))

    @pytest.mark.usefixtures("_short")
    def test_for_good(self, make: Make, spy: Any) -> None:
        """What the tail has is not lost, though it never becomes a part."""
        broken: set[str] = set()
        store, writer = self.writer(spy, broken)
        step = -1
        while not tail_of(store):
            step += 1
            assert self.record(writer, make, range(step, step + 1)) == 0
        kept = expected(make, range(step + 1))
        broken |= {"stats/", "tail/"}
        writer.write(records(make, step + 1))
        with pytest.raises(OSError, match="No space"):
            writer.close()
        assert seen(read.open(store)) == kept
        assert writer.lost == dict(Counter(site for site, _ in expected(make, range(step + 1, step + 2))))
        assert read.open(store).lost == writer.lost

    @pytest.mark.usefixtures("_short")
    def test_the_limit(self, make: Make) -> None:
        """The tail counts, and what was flushed stays, whatever the limit."""
        for limit in range(20_000, 60_000, 2_500):
            store = Memory()
            writer = RunWriter.create(store, "r", limit=limit)
            flushed: Counter[tuple[str, int]] = Counter()
            for step in range(40):
                writer.write(records(make, step))
                writer.flush()
                now = parts_of(store) + tail_of(store)
                assert flushed <= now
                flushed = now
                taken = sum(len(data) for key, data in store._objects.items() if key.startswith(RANK))
                assert taken == writer.bytes <= limit + store.size(f"{RANK}/status.json")
            writer.close()
            now = parts_of(store) + tail_of(store)
            assert flushed <= now
            assert now.total() + sum(writer.lost.values()) == expected(make, range(40)).total()
            assert seen(read.open(store)) == now

    @pytest.mark.usefixtures("_short")
    def test_rows_that_cannot_be_encoded(self, make: Make) -> None:
        """Only those are given up; what waits with them is kept."""
        store = Memory()
        writer = RunWriter.create(store, "r")
        step = -1
        while not tail_of(store):
            step += 1
            self.record(writer, make, range(step, step + 1))
        bad = make("loss", step + 1, np.zeros(3, np.float32), keep="stats")
        writer.write([Record("loss", Moment(1 << 70, 0, 0, 0.0), bad.shape, bad.dtype, bad.stats)])
        with pytest.raises(OSError, match="rows that fit the stats table"):
            writer.flush()
        assert writer.lost == {"loss": 1}
        self.record(writer, make, range(step + 1, step + 3))
        writer.close()
        assert seen(read.open(store)) == parts_of(store) == expected(make, range(step + 3))


class TestDamage:
    @pytest.mark.usefixtures("_short")
    @pytest.mark.parametrize("how", ["cut", "empty", "flipped", "text"])
    def test_a_damaged_tail_is_named_and_the_parts_are_read(self, make: Make, how: str) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        step = -1
        while tail_of(store).total() < 8:
            step += 1
            writer.write(records(make, step))
            writer.flush()
        whole = store.get(TAIL)
        middle = len(whole) - 200
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        damaged = {"cut": whole[:-100], "empty": b"", "flipped": flipped, "text": b"hello"}[how]
        store.put(TAIL, damaged)
        run = read.open(store)
        with pytest.warns(FitscopeWarning, match=r"tail/stats\.arrow of run 'r' cannot be read"):
            table = run.stats
        assert Counter(zip(table["site"], table["step"], strict=True)) == parts_of(store)
        assert [damage.name for damage in run.damaged] == ["a0000/r00000/tail/stats.arrow"]
        assert all(damage.reason for damage in run.damaged)
        writer.write(records(make, step + 1))
        writer.close()
        assert seen(read.open(store)) == expected(make, range(step + 2))

    @pytest.mark.usefixtures("_short")
    def test_damage_in_one_row_group_spares_the_others(self, make: Make, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        for step in range(40):
            writer.write(records(make, step))
            writer.flush()
        writer.close()
        parts = sorted((tmp_path / RANK / "stats").glob("*.parquet"))
        large = max(parts, key=lambda part: pq.read_metadata(part).num_row_groups)
        meta = pq.read_metadata(large)
        assert meta.num_row_groups > 2
        chunk = next(
            c for c in map(meta.row_group(0).column, range(meta.num_columns)) if c.path_in_schema == "mean"
        )
        data = bytearray(large.read_bytes())
        for place in range(
            chunk.data_page_offset + chunk.total_compressed_size - 8,
            chunk.data_page_offset + chunk.total_compressed_size,
        ):
            data[place] ^= 0xFF
        large.write_bytes(data)
        run = read.open(tmp_path)
        assert len(run.series("validation/loss", "mean")) == 40  # the last range
        with pytest.warns(FitscopeWarning, match=large.name):
            assert len(run.series("activations/a", "mean")) < 40


class TestSeveral:
    """Ranks, attempts, tables."""

    @pytest.mark.usefixtures("_short")
    def test_attempts_that_were_killed(self, make: Make) -> None:
        """An attempt counts up to where the next one started, with its tail."""
        store = Memory()
        first = RunWriter.create(store, "r")
        for step in range(20):
            first.write(records(make, step))
            first.flush()
        assert tail_of(store)
        run = read.open(store)
        assert seen(run) == expected(make, range(20))
        for start in (19, 17, 3):  # within the tail, in the last part, far back
            again = RunWriter.attempt(store, "r", start_step=start)
            for step in range(start, start + 5):
                again.write(records(make, step))
                again.flush()
            whole = expected(make, range(start + 5))
            whole["validation/loss", start] += 1  # a pass at the step they share counts in both
            for one in (run, read.open(store)):
                table = one.stats
                now = Counter(zip(table["site"], table["step"], strict=True))
                assert {key: now[key] for key in whole if key[0] != "validation/loss"} == {
                    key: whole[key] for key in whole if key[0] != "validation/loss"
                }
                assert now["validation/loss", start] == 2
                assert one.series("activations/a", "mean").index.tolist() == list(range(start + 5))
                assert one.sql("select count(*) as n from stats where site = 'loss'")["n"][0] == start + 5

    @pytest.mark.usefixtures("_short")
    def test_ranks(self, make: Make) -> None:
        store = Memory()
        ranks = [RunWriter.create(store, "r", world=2), RunWriter.join(store, "r", 0, 1)]
        run = read.open(store)
        for step in range(15):
            for number, writer in enumerate(ranks):
                writer.write([make("a", step, np.full((2, 2), 2 * step + number, np.float32), keep="stats")])
                if step % (number + 1) == 0:
                    writer.flush()
            series = run.series("a", "mean")
            assert (
                series.iloc[: step // 2 * 2] == [2 * s + 0.5 for s in series.index[: step // 2 * 2]]
            ).all()
            assert series.index.tolist() == list(range(step + 1))
        for writer in ranks:
            writer.close()
        assert run.series("a", "mean").tolist() == [2 * step + 0.5 for step in range(15)]
        assert run.frame("a")["count"].tolist() == [8] * 15

    @pytest.mark.usefixtures("_short")
    def test_samples_wait_likewise(self) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        run = read.open(store)
        for step in range(20):
            loss = np.arange(4.0) + step
            writer.write([], [Samples(Moment(step, 0, step, 0.0), "train", "", ids=None, loss=loss)])
            writer.flush()
            frame = run.samples
            assert frame["loss"].tolist() == [s + n for s in range(step + 1) for n in range(4)]
            assert frame["sample"].tolist() == [0, 1, 2, 3] * (step + 1)
        assert "samples.arrow" in store.list(f"{RANK}/tail")
        assert run.sql("select count(*) as n from samples")["n"][0] == 80
        writer.close()
        assert len(store.list(f"{RANK}/samples")) < 10
        assert len(read.open(store).samples) == 80


def test_a_part_for_every_flush_as_before(
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
def test_large_parts_are_sorted_and_say_where_sites_lie(make: Make, tmp_path: Path) -> None:
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
    loaded = [group for part in run._now.stats.parts for group, _ in part._columns]
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
