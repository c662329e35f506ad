"""Single samples, running averages, checkpoints and the cosine: written, read back, limited, damaged."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.errors import FitscopeWarning, RunError
from fitscope.record import Moment, Record, Samples
from fitscope.reduce.average import Average
from fitscope.store import Memory, Objects, RunWriter
from fitscope.store import averages as averages_module
from fitscope.store import parts as parts_module

Make = Callable[..., Record]
RNG = np.random.default_rng(7)


def some(step: int, n: int = 4, *, phase: str = "train", batch: int | None = None, **columns: Any) -> Samples:
    columns = columns or {"loss": np.arange(n) + 10.0 * step}
    return Samples(Moment(step, 0, step if batch is None else batch, 1.7e9 + step), phase, **columns)


@pytest.fixture
def store() -> Memory:
    return Memory()


def written(store: Objects, *samples: Samples, start: int | None = None) -> read.Run:
    writer = (
        RunWriter.create(store, "r") if start is None else RunWriter.attempt(store, "r", start_step=start)
    )
    for one in samples:
        writer.write([], [one])
    writer.close()
    assert writer.lost == {}
    return read.open(store)


class TestSamples:
    def test_samples_are_read_back(self, objects: Objects) -> None:
        prediction = RNG.normal(size=(3, 2)).astype(np.float32)
        first = some(
            0, ids=["a", "b", "c"], loss=np.array([1.0, np.nan, np.inf]), weight=np.array([1, 2, 3.0]),
            target=np.array([5, 6, 7]), prediction=prediction,
        )  # fmt: skip
        run = written(objects, first, some(1, 2))
        frame = run.samples
        assert frame.columns.tolist() == [
            "step", "epoch", "batch", "sample", "pass", "output", "id", "loss", "weight", "target", "prediction",
            "time",
        ]  # fmt: skip
        assert frame["step"].tolist() == [0, 0, 0, 1, 1]
        assert frame["sample"].tolist() == [0, 1, 2, 0, 1]
        np.testing.assert_array_equal(frame["loss"], [1, np.nan, np.inf, 10, 11])
        np.testing.assert_array_equal(frame["target"], [5, 6, 7, np.nan, np.nan])
        assert frame["id"].tolist()[:3] == ["a", "b", "c"]
        assert frame["id"].isna().tolist() == [False] * 3 + [True] * 2
        np.testing.assert_array_equal(np.stack(frame["prediction"][:3]), prediction.astype(np.float64))
        asked = run.sql("select sum(weight) as w, sum(prediction[1]) as p from samples where step = 0")
        assert asked["w"].item() == 6
        assert asked["p"].item() == pytest.approx(prediction[:, 0].sum())
        assert run.last_step == 1

    def test_other_tools_read_the_parts(self, tmp_path: Path) -> None:
        written_at = tmp_path / "runs"
        writer = RunWriter.create(written_at, "r")
        writer.write([], [some(0, loss=np.arange(3.0), target=np.eye(3), ids=list("xyz"))])
        writer.close()
        part = next(written_at.glob("**/samples/*.parquet"))
        assert pd.read_parquet(part)["target"][1].tolist() == [0, 1, 0]
        assert pl.read_parquet(part)["target"].to_list()[2] == [0, 0, 1]
        assert duckdb.sql(f"select target[1], id from '{part}' where sample = 0").fetchall() == [(1.0, "x")]

    def test_a_run_without_samples_has_an_empty_table(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        writer.write([make("a", 0, np.ones(2))])
        writer.close()
        run = read.open(store)
        assert run.samples.empty
        assert "loss" in run.samples
        assert run.sql("select count(*) as n from samples")["n"].item() == 0

    def test_values_of_many_numbers_are_left_to_the_tensors(self, store: Memory) -> None:
        wide = some(0, loss=np.ones(2), target=np.ones((2, 8, 8)), prediction=np.ones((2, 65)))
        frame = written(store, wide).samples
        assert len(frame["target"][0]) == 64
        assert frame["prediction"].isna().all()

    def test_samples_are_ordered_by_pass_and_rank(self, store: Memory) -> None:
        writers = [RunWriter.create(store, "r", world=2), RunWriter.join(store, "r", 0, 1)]
        for rank, writer in enumerate(writers):
            for one in (
                some(3, 2),
                some(3, 2, phase="validation", batch=0),
                some(3, 1, phase="validation", batch=1),
            ):
                writer.write([], [Samples(one.at, one.in_pass, loss=one.loss + 100 * rank)])
            writer.close()
        frame = read.open(store).samples
        assert frame["pass"].tolist() == ["validation"] * 6 + ["train"] * 4
        assert frame["batch"].tolist() == [0, 0, 0, 0, 1, 1, 3, 3, 3, 3]
        assert frame["sample"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
        assert frame["loss"].tolist() == [30, 31, 130, 131, 30, 130, 30, 31, 130, 131]

    def test_repeated_steps_come_from_the_later_attempt_and_passes_from_both(self, store: Memory) -> None:
        written(store, some(7, 1), some(8, 1), some(8, 1, phase="validation"), some(9, 1, phase="validation"))
        run = written(store, some(8, 1, loss=np.array([-1.0])), start=8)
        wanted = [(7, "train", 70), (8, "validation", 80), (8, "train", -1)]
        assert list(run.samples[["step", "pass", "loss"]].itertuples(index=False, name=None)) == wanted
        asked = run.sql("select step, pass, loss from samples order by step, pass desc")
        assert list(asked.itertuples(index=False, name=None)) == wanted

    def test_samples_stop_at_the_limit_and_the_rest_is_counted(self, store: Memory) -> None:
        writer = RunWriter.create(store, "r", limit=60_000)
        for step in range(200):
            writer.write([], [some(step, 64, loss=RNG.normal(size=64), prediction=RNG.normal(size=(64, 4)))])
            writer.flush()
        writer.close()
        assert writer.full
        assert writer.bytes <= 60_000
        assert len(read.open(store).samples) + writer.lost["samples"] == 200 * 64
        assert len(read.open(store).samples) > 500

    def test_a_dead_store_costs_bounded_memory(
        self, store: Memory, spy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parts_module, "MOST_MEMORY", 20_000)
        dead = False

        def fail(*_: Any) -> None:
            if dead:
                raise OSError(28, "No space left on device")

        writer = RunWriter.create(spy(store, on_put=fail), "r")
        dead = True
        for step in range(100):
            writer.write([], [some(step, 50, phase="validation")])
        lost = writer.lost["validation/samples"]
        assert lost > 4000
        with pytest.raises(OSError, match="No space"):
            writer.flush()
        dead = False
        writer.close()
        frame = read.open(store).samples
        assert len(frame) == 5000 - lost
        assert frame["step"].is_monotonic_increasing

    def test_columns_that_do_not_fit_are_refused_and_the_rest_is_kept(self, store: Memory) -> None:
        writer = RunWriter.create(store, "r")
        with pytest.raises(OSError, match="differ in length"):
            writer.write([], [some(0, loss=np.ones(3), weight=np.ones(2)), some(1, 2)])
        writer.close()
        assert writer.lost == {"samples": 3}
        assert read.open(store).samples["step"].tolist() == [1, 1]

    def test_a_damaged_part_is_left_out(self, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        for step in range(3):
            writer.write([], [some(step, 50)])
            writer.flush()
        writer.close()
        part = tmp_path / "r/a0000/r00000/samples/part-000001.parquet"
        data = bytearray(part.read_bytes())
        columns = pq.read_metadata(part).row_group(0)
        loss = next(c for c in map(columns.column, range(columns.num_columns)) if c.path_in_schema == "loss")
        data[loss.data_page_offset + loss.total_compressed_size - 3] ^= 255
        part.write_bytes(data)
        run = read.open(tmp_path)
        with pytest.warns(FitscopeWarning, match="part-000001"):
            assert sorted(set(run.samples["step"])) == [0, 2]


class TestCosine:
    def test_cosines_are_read_back_and_missing_ones_are_nan(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        for step in range(3):
            plain = make("changes/predictions", step, np.ones(3), keep="stats", epoch=step // 2)
            change = Record(plain.site, plain.at, plain.shape, plain.dtype, plain.stats, cosine=step / 4)
            writer.write([change, make("a", step, np.ones(3), keep="stats")])
        writer.close()
        run = read.open(store)
        assert run.series("changes/predictions", "cosine").to_dict() == {0: 0, 1: 0.25, 2: 0.5}
        assert run.frame("changes/predictions", by="epoch")["cosine"].tolist() == [0.125, 0.5]
        assert "cosine" not in run.frame("a")
        with pytest.raises(RunError, match=r"a site under changes/"):
            run.series("a", "cosine")

    def test_an_undefined_cosine_of_a_change_is_explained(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        for name in ("changes/predictions", "validation/changes/predictions"):
            writer.write([make(name, 0, np.zeros(3), keep="stats")])
        writer.close()
        run = read.open(store)
        for name in ("changes/predictions", "validation/changes/predictions"):
            with pytest.raises(RunError, match="two batches that are not all zero"):
                run.series(name, "cosine")

    def test_parts_without_a_cosine_column_are_read(self, tmp_path: Path, make: Make) -> None:
        writer = RunWriter.create(tmp_path, "r")
        for step in range(2):
            writer.write([make("a", step, np.ones(3), keep="stats")])
            writer.flush()
        writer.close()
        part = tmp_path / "r/a0000/r00000/stats/part-000000.parquet"
        pq.write_table(pq.read_table(part).drop_columns(["cosine"]), part)
        run = read.open(tmp_path)
        assert run.series("a", "mean").tolist() == [1, 1]
        assert run.stats["cosine"].isna().all()
        assert run.sql("select count(cosine) as n, count(*) as m from stats").to_numpy().tolist() == [[0, 2]]


def average(*batches: Any, first: int = 0) -> Average:
    found = Average.empty()
    for step, batch in enumerate(batches, first):
        found.add(np.asarray(batch), step, batched=True)
    return found


class TestAverages:
    def test_averages_of_ranks_and_attempts_are_merged(self, objects: Objects) -> None:
        batches = [RNG.normal(5, 2, (6, 3, 2)) for _ in range(5)]
        writer = RunWriter.create(objects, "r", world=2)
        other = RunWriter.join(objects, "r", 0, 1)
        later = RunWriter.attempt(objects, "r", start_step=2)
        writer.average("activations/head", average(*batches[:2]))
        other.average("activations/head", average(*batches[2:4]))
        later.average("activations/head", average(batches[4], first=2))
        later.average("odd name/Ä", average([[1.0]], first=2))
        for one in (writer, other, later):
            one.close()
        run = read.open(objects)
        assert run.averages == ["activations/head", "odd name/Ä"]
        assert "activations/head" in run.sites
        got, rows = run.average("head"), np.concatenate(batches)
        np.testing.assert_allclose(got.mean, rows.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(got.std, rows.std(axis=0), rtol=1e-12)
        assert (got.count, got.captures, got.first_step, got.last_step) == (30, 5, 0, 2)
        assert run.average("odd name/Ä").mean.tolist() == [1.0]
        assert "2 sites" in repr(run)

    def test_repeated_steps_are_warned_about_or_left_out(self, store: Memory) -> None:
        first = RunWriter.create(store, "r")
        first.average("a", average([[1.0]], [[3.0]]))
        first.average("b", average([[9.0]], first=1))
        first.average("validation/a", average([[2.0]], first=1))
        first.close()
        later = RunWriter.attempt(store, "r", start_step=1)
        for site in ("a", "b", "validation/a"):
            later.average(site, average([[5.0]], first=1))
        later.close()
        run = read.open(store)
        with pytest.warns(FitscopeWarning, match="'a'.*a later attempt repeated"):
            assert run.average("a").mean.tolist() == [3.0]
        assert run.average("b").mean.tolist() == [5.0]
        assert run.average("validation/a").mean.tolist() == [3.5]

    def test_averages_are_written_only_after_a_change_and_not_too_often(
        self, store: Memory, spy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put: list[str] = []
        writer = RunWriter.create(spy(store, on_put=lambda key, _: put.append(key)), "r")
        found = average([[1.0]])
        writer.average("a", found)

        def puts() -> int:
            return sum(key.endswith("averages/a.npz") for key in put)

        writer.flush()
        assert puts() == 1
        found.add(np.array([[3.0]]), 1, batched=True)
        writer.flush()
        assert puts() == 1, "not due yet"
        monkeypatch.setattr(averages_module, "PUT_SECONDS", 0.0)
        writer.flush()
        writer.flush()
        assert puts() == 2, "nothing new the second time"
        monkeypatch.setattr(averages_module, "PUT_SECONDS", 1e9)
        found.add(np.array([[5.0]]), 2, batched=True)
        writer.close()
        assert puts() == 3
        assert read.open(store).average("a").mean.tolist() == [3.0]

    def test_averages_count_towards_the_limit(self, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r", limit=100_000)
        writer.average("small", average(np.ones((2, 100))))
        writer.average("large", average(np.ones((2, 100_000))))
        writer.close()
        assert writer.lost == {"large": 1}
        assert writer.full
        size = sum(path.stat().st_size for path in (tmp_path / "r/a0000").rglob("*") if path.is_file())
        assert abs(writer.bytes - size) < 200  # status.json counts as of the one before
        assert read.open(tmp_path).averages == ["small"]

    def test_sites_that_differ_in_case_have_separate_files(self, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        writer.average("Dense", average([[1.0]]))
        writer.average("dense", average([[2.0]]))
        writer.close()
        paths = [path.name.casefold() for path in (tmp_path / "r/a0000/r00000/averages").iterdir()]
        assert len(set(paths)) == 2
        run = read.open(tmp_path)
        assert [run.average(name).mean.item() for name in ("Dense", "dense")] == [1, 2]

    def test_numpy_reads_an_average(self, store: Memory) -> None:
        writer = RunWriter.create(store, "r")
        writer.average("a/b", average([[1.0, 2.0]], [[3.0, 6.0]]))
        writer.close()
        with np.load(io.BytesIO(store.get("r/a0000/r00000/averages/a/b.npz"))) as archive:
            assert archive["mean"].tolist() == [2, 4]
            assert archive["std"].tolist() == [1, 2]
            assert (archive["site"].item(), archive["count"].item(), archive["last_step"].item()) == (
                "a/b",
                2,
                1,
            )

    def test_a_site_without_an_average_is_an_error(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        writer.write([make("a", 0, np.ones(2))])
        writer.average("b", average([[1.0]]))
        writer.close()
        run = read.open(store)
        with pytest.raises(RunError, match=r"a site with an average.*'a'.*There are: 'b'"):
            run.average("a")
        with pytest.raises(RunError, match=r"only averages.*run.average\('b'\)"):
            run.series("b", "mean")

    def test_a_damaged_average_is_named(self, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        writer.average("a", average([[1.0]]))
        writer.close()
        file = tmp_path / "r/a0000/r00000/averages/a.npz"
        file.write_bytes(file.read_bytes()[:300])
        with pytest.warns(FitscopeWarning, match="averages/a.npz"), pytest.raises(RunError, match="damaged"):
            read.open(tmp_path).average("a")


def test_checkpoints_are_listed(store: Memory) -> None:
    def told(*steps: int) -> list[dict[str, Any]]:
        return [{"path": f"{s}.keras", "step": s, "epoch": s // 10, "time": 1.7e9 + s} for s in steps]

    first = RunWriter.create(store, "r")
    first.note(checkpoints=told(10, 20, 30))
    first.close()
    later = RunWriter.attempt(store, "r", start_step=20)
    later.note(checkpoints=told(40))
    later.close()
    run = read.open(store)
    assert run.checkpoints.columns.tolist() == ["step", "epoch", "path", "time"]
    assert run.checkpoints["step"].tolist() == [10, 20, 40], (
        "the one at 30 is of a training that was done again"
    )
    assert [run.checkpoint(step) for step in (10, 15, 20, 39, 1000)] == [
        "10.keras", "10.keras", "20.keras", "20.keras", "40.keras"
    ]  # fmt: skip
    with pytest.raises(RunError, match=r"step 9.*'10', '20', '40'"):
        run.checkpoint(9)


def test_a_run_without_checkpoints_has_an_empty_table(store: Memory) -> None:
    RunWriter.create(store, "r").close()
    run = read.open(store)
    assert run.checkpoints.empty
    with pytest.raises(RunError, match="There are none"):
        run.checkpoint(3)
