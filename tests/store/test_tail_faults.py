"""Rows that wait for a part, where something fails: puts, damage, several attempts and ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.errors import FitscopeWarning
from fitscope.record import Moment, Record, Samples
from fitscope.store import Memory, RunWriter
from fitscope.store.tail import CHECKSUM

from .waiting import RANK, TAIL, Make, expected, parts_of, records, seen, tail_of


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
    def test_a_store_that_fails_for_a_while_loses_no_rows(self, make: Make, spy: Any, what: str) -> None:
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
    def test_a_store_that_fails_for_good_keeps_the_rows_of_the_tail(self, make: Make, spy: Any) -> None:
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
    def test_the_limit_keeps_flushed_rows_of_a_tail(self, make: Make) -> None:
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
    def test_rows_that_cannot_be_encoded_do_not_block_a_tail(self, make: Make) -> None:
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
    @pytest.mark.parametrize("how", ["cut", "empty", "flipped", "text", "other rows"])
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
        # Rows that Arrow can read, but that are not those of the checksum.
        checksum = pa.ipc.read_schema(pa.ipc.read_message(pa.BufferReader(whole))).metadata[CHECKSUM]
        other = whole.replace(checksum, b"%08x" % (int(checksum, 16) ^ 1))
        damaged = {
            "cut": whole[:-100], "empty": b"", "flipped": flipped, "text": b"hello", "other rows": other,
        }[how]  # fmt: skip
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
    def test_tails_of_killed_attempts_are_read(self, make: Make) -> None:
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
    def test_tails_of_several_ranks_are_read(self, make: Make) -> None:
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
    def test_samples_wait_in_a_tail_too(self) -> None:
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
