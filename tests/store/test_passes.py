"""Validation, evaluation and prediction: many batches at one step, read as one pass each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fitscope import read
from fitscope.errors import RunError
from fitscope.record import Record
from fitscope.sites import pass_of
from fitscope.store import Memory, RunWriter

from .conftest import stats_of

Make = Callable[..., Record]
SITE = "validation/predictions"
RNG = np.random.default_rng(5)


def one_pass(
    make: Make, step: int, batches: list[Any], *, site: str = SITE, epoch: int = 0, **how: Any
) -> list[Record]:
    return [make(site, step, tensor, batch=b, epoch=epoch, **how) for b, tensor in enumerate(batches)]


def ragged(*sizes: int, width: int = 3) -> list[np.ndarray[Any, Any]]:
    return [RNG.normal(size=(size, width)).astype(np.float32) for size in sizes]


@pytest.fixture
def store() -> Memory:
    return Memory()


def test_the_pass_is_read_from_the_name_of_a_site() -> None:
    assert [pass_of(site) for site in ("validation/loss", "evaluate/a/b", "predict/predictions")] == [
        "validation", "evaluate", "predict"
    ]  # fmt: skip
    assert [pass_of(site) for site in ("loss", "validation", "activations/validation", "predictions/a")] == [
        None
    ] * 4


def test_the_batches_of_a_pass_are_concatenated(store: Memory, make: Make) -> None:
    passes = {3: ragged(4, 4, 2), 6: ragged(4, 4, 2), 9: ragged(4, 1)}
    writer = RunWriter.create(store, "r")
    for epoch, (step, batches) in enumerate(passes.items()):
        writer.write(one_pass(make, step, batches, epoch=epoch))
    writer.close()
    tensor = read.open(store).tensor(SITE)
    assert tensor.dims == ("step", "sample", "dim_1")
    assert tensor.shape == (3, 10, 3)
    assert tensor["step"].values.tolist() == [3, 6, 9]
    assert tensor["epoch"].values.tolist() == [0, 1, 2]
    assert tensor["size"].values.tolist() == tensor["batch_size"].values.tolist() == [10, 10, 5]
    assert tensor["batches"].values.tolist() == [3, 3, 2]
    values = tensor.values
    for place, (step, batches) in enumerate(passes.items()):
        whole = np.concatenate(batches)
        np.testing.assert_array_equal(values[place, : len(whole)], whole)
        assert np.isnan(values[place, len(whole) :]).all()
        np.testing.assert_array_equal(read.open(store).array(SITE, step), whole)
    # any slice of it, read for itself, is the same
    for key in (
        np.s_[1], np.s_[:, 5], np.s_[2, 3:6], np.s_[::-1, ::3, 1], np.s_[[2, 0], 4:, [2, 0]], np.s_[1:1], np.s_[0, 9, 2]
    ):  # fmt: skip
        np.testing.assert_array_equal(tensor[key].values, tensor.copy(data=values)[key].values)


def test_a_slice_reads_only_the_chunks_it_needs(store: Memory, make: Make, spy: Callable[..., Any]) -> None:
    batches = [np.full((4, 1 << 16), b, np.float32) for b in range(6)]  # 1 MB: a chunk each
    writer = RunWriter.create(store, "r")
    writer.write(one_pass(make, 1, batches, keep="tensor"))
    writer.close()
    got: list[str] = []
    run = read.open(spy(store, on_get=lambda key: got.append(key)))
    tensor = run.tensor(SITE)
    got.clear()
    assert tensor[0, 9, 5].item() == 2
    assert [key.rpartition("/")[2] for key in got] == ["c.2.0.0"]


def test_batches_of_several_ranks_are_ordered_by_number(store: Memory, make: Make) -> None:
    batches = {rank: ragged(3, 2) for rank in (0, 1)}
    writers = [RunWriter.create(store, "r", world=2)]
    writers.append(RunWriter.join(store, "r", 0, 1))
    for rank in (1, 0):
        writers[rank].write(one_pass(make, 5, batches[rank]))
        writers[rank].write(
            one_pass(make, 5, [np.float32(rank), np.float32(rank + 1)], site="validation/loss")
        )
        writers[rank].close()
    run = read.open(store)
    wanted = np.concatenate([batches[0][0], batches[1][0], batches[0][1], batches[1][1]])
    np.testing.assert_array_equal(run.array(SITE, 5), wanted)
    np.testing.assert_array_equal(run.tensor(SITE).values[0], wanted)
    means = run.series(SITE, "mean")
    assert means.index.tolist() == [(5, 0), (5, 1)]
    np.testing.assert_allclose(means, [wanted[:6].mean(), wanted[6:].mean()], rtol=1e-6)
    assert run.series("validation/loss").tolist() == [0, 1], "a scalar is the first rank's"
    assert run.histogram(SITE).sum("bucket").values.tolist() == [wanted.size]


def test_series_and_frame_have_step_and_batch(store: Memory, make: Make) -> None:
    writer = RunWriter.create(store, "r")
    for epoch, step in enumerate((4, 8)):
        losses = [np.float32(10 * epoch + b) for b in range(3)]
        writer.write(one_pass(make, step, losses, site="validation/loss", epoch=epoch, batched=False))
        writer.flush()
    writer.close()
    series = read.open(store).series("validation/loss")
    assert series.index.names == ["step", "batch"]
    assert series.loc[8].tolist() == [10, 11, 12]
    assert series.groupby("step").mean().tolist() == [1, 11]
    frame = read.open(store).frame("validation/loss")
    assert frame.index.equals(series.index)
    assert frame.loc[(4, 2), "epoch"] == 0
    histogram = read.open(store).histogram("validation/loss")
    assert histogram["step"].values.tolist() == [4, 8]
    assert histogram["epoch"].values.tolist() == [0, 1]


def test_tensors_without_samples_are_stacked_by_batch(store: Memory, make: Make) -> None:
    writer = RunWriter.create(store, "r")
    how: dict[str, Any] = {"site": "evaluate/loss", "batched": False, "keep": "tensor"}
    writer.write(one_pass(make, 2, [np.float32(1), np.float32(2), np.float32(3)], **how))
    writer.write(one_pass(make, 4, [np.float32(4), np.float32(5)], **how))
    writer.close()
    run = read.open(store)
    tensor = run.tensor("evaluate/loss")
    assert tensor.dims == ("step", "batch")
    np.testing.assert_array_equal(tensor.values, [[1, 2, 3], [4, 5, np.nan]])
    assert run.array("evaluate/loss", 4).tolist() == [4, 5]


def test_two_passes_at_one_step_are_two_entries(store: Memory, make: Make) -> None:
    """evaluate() called twice, the first time cut short."""
    first, second = ragged(2, 2), ragged(2, 2, 2)
    writer = RunWriter.create(store, "r")
    for batches in (first, second):
        writer.write(one_pass(make, 7, batches, site="evaluate/predictions"))
    writer.close()
    run = read.open(store)
    tensor = run.tensor("evaluate/predictions")
    assert tensor["size"].values.tolist() == [4, 6]
    np.testing.assert_array_equal(tensor.values[0, :4], np.concatenate(first))
    np.testing.assert_array_equal(tensor.values[1], np.concatenate(second))
    np.testing.assert_array_equal(run.array("evaluate/predictions", 7), np.concatenate(second))
    assert run.series("evaluate/predictions", "mean").index.get_level_values("batch").tolist() == [
        0,
        1,
        0,
        1,
        2,
    ]
    assert run.histogram("evaluate/predictions").sum("bucket").values.tolist() == [12, 18]


def test_a_pass_at_the_step_where_the_next_attempt_starts_counts(store: Memory, make: Make) -> None:
    """It describes the weights that both share; a training step of that number belongs to the later one."""
    batches = {step: ragged(2, 2) for step in (4, 8, 12)}
    writer = RunWriter.create(store, "r")
    for step, pass_ in batches.items():
        writer.write([make("loss", step - 1, np.float32(step - 1)), make("loss", step, np.float32(step))])
        writer.write(one_pass(make, step, pass_))
    writer.close("interrupted")
    later = RunWriter.attempt(store, "r", start_step=8)
    later.write([make("loss", 8, np.float32(80))])
    again = ragged(2, 2)
    later.write(one_pass(make, 12, again))
    later.close()
    run = read.open(store)
    tensor = run.tensor(SITE)
    assert tensor["step"].values.tolist() == [4, 8, 12]
    for step, wanted in ((4, batches[4]), (8, batches[8]), (12, again)):
        np.testing.assert_array_equal(run.array(SITE, step), np.concatenate(wanted))
    assert run.series(SITE, "mean").index.get_level_values("step").tolist() == [4, 4, 8, 8, 12, 12]
    assert run.series("loss").to_dict() == {3: 3, 4: 4, 7: 7, 8: 80}
    asked = run.sql("select site, step, attempt from stats order by site, step, attempt")
    counted = run.stats[["site", "step", "attempt"]].sort_values(
        ["site", "step", "attempt"], ignore_index=True
    )
    pd.testing.assert_frame_equal(asked, counted, check_dtype=False)
    assert counted[counted["site"] == SITE]["attempt"].tolist() == [0, 0, 0, 0, 1, 1]


def test_batches_of_several_kinds_are_taken_one_by_one(store: Memory, make: Make) -> None:
    writer = RunWriter.create(store, "r")
    writer.write(one_pass(make, 1, [np.ones((2, 3)), np.ones((2, 5))], keep="tensor"))
    writer.close()
    array = read.open(store).array(SITE, 1)
    assert array.shape == (4, 5)
    assert np.isnan(array[:2, 3:]).all()
    other = Memory()
    writer = RunWriter.create(other, "r")
    writer.write(one_pass(make, 1, [np.ones((2, 3)), np.ones((2, 3, 1))], keep="tensor"))
    writer.close()
    with pytest.raises(RunError, match="one number of dimensions"):
        read.open(other).tensor(SITE)


class TestByEpoch:
    def test_stats_by_epoch_are_those_of_the_whole_epoch(self, store: Memory, make: Make) -> None:
        """Against NumPy on the raw values, NaN and all."""
        epochs = [[RNG.normal(100 * e, 1 + e, (size, 5)) for size in (8, 8, 3)] for e in range(3)]
        epochs[1][0][2, 3] = np.nan
        epochs[2][1][:] = np.inf
        writer = RunWriter.create(store, "r")
        step = 0
        for epoch, tensors in enumerate(epochs):
            for batch, tensor in enumerate(tensors):
                writer.write([make("a", step, tensor, epoch=epoch, batch=batch, keep="stats")])
                writer.flush()
                step += 1
        writer.close()
        frame = read.open(store).frame("a", by="epoch")
        assert frame.index.tolist() == [0, 1, 2]
        assert frame["captures"].tolist() == [3, 3, 3]
        assert frame["step"].tolist() == [2, 5, 8]
        for epoch, tensors in enumerate(epochs):
            wanted = stats_of(np.concatenate(tensors))
            for name in ("mean", "std", "min", "max", "rms"):
                np.testing.assert_allclose(frame.loc[epoch, name], getattr(wanted, name), rtol=1e-12)
            for name in ("count", "zeros", "negatives", "nans", "infs"):
                assert frame.loc[epoch, name] == getattr(wanted, name)

    def test_epochs_merge_samples_of_ranks_and_take_weights_once(self, store: Memory, make: Make) -> None:
        writers = [RunWriter.create(store, "r", world=2), RunWriter.join(store, "r", 0, 1)]
        seen = []
        for step in range(4):
            kernel = RNG.normal(size=(3, 3))
            for writer in writers:
                seen.append(RNG.normal(step, 2, (5, 2)))
                writer.write([make("a", step, seen[-1], epoch=step // 2, keep="stats")])
                writer.write([make("w", step, kernel, epoch=step // 2, keep="stats", batched=False)])
        for writer in writers:
            writer.close()
        run = read.open(store)
        for epoch in (0, 1):
            wanted = stats_of(np.concatenate(seen[4 * epoch : 4 * epoch + 4]))
            got = run.frame("a", by="epoch").loc[epoch]
            np.testing.assert_allclose([got["mean"], got["std"]], [wanted.mean, wanted.std], rtol=1e-12)
            assert got["count"] == 40
        assert run.frame("w", by="epoch")["count"].tolist() == [18, 18], "the weights of a rank are not two"

    def test_stats_by_epoch_are_those_of_a_validation_pass(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        passes = [ragged(4, 4, 1), ragged(4, 4, 1)]
        for epoch, batches in enumerate(passes):
            writer.write(one_pass(make, 9 * epoch, batches, epoch=epoch))
        writer.close()
        frame = read.open(store).frame(SITE, by="epoch")
        np.testing.assert_allclose(frame["mean"], [np.concatenate(p).mean(dtype=np.float64) for p in passes])

    def test_grouping_by_anything_else_is_an_error(self, store: Memory, make: Make) -> None:
        writer = RunWriter.create(store, "r")
        writer.write([make("a", 0, np.ones(2))])
        writer.close()
        with pytest.raises(RunError, match="'step' or 'epoch'"):
            read.open(store).frame("a", by="batch")
