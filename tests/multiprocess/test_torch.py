"""torch's DistributedDataParallel around a Keras model, in two processes that train with half of every batch each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from multiprocess import processes
from multiprocess.reference import BATCH, STEPS, expected

WORLD = 2
Ran = tuple[read.Run, list[Any]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    out: Path = tmp_path_factory.mktemp("ddp")
    port = processes.free_port()
    commands = [[str(rank), str(WORLD), str(port), str(out)] for rank in range(WORLD)]
    return out, processes.run("torch_program.py", commands, KERAS_BACKEND="torch")


@pytest.fixture(scope="module", params=["loop", "fit"])
def ran(request: pytest.FixtureRequest, both: tuple[Path, list[Any]]) -> Ran:
    out, said = both
    assert len(read.runs(out / request.param)) == 1, "both processes write one run"
    before = "fit " if request.param == "fit" else ""
    short = [{word: one[before + word] for word in ("alone", "watched")} for one in said]
    return read.open(out / request.param), short


def test_training_is_bit_identical(ran: Ran) -> None:
    run, said = ran
    assert [one["watched"] for one in said] == [one["alone"] for one in said]
    assert run.identity == "proven"
    assert run.status == "complete"
    assert run.ranks["status"].tolist() == ["complete"] * WORLD
    assert run.errors == []


def test_rows_of_all_processes_are_in_order(ran: Ran) -> None:
    run, _ = ran
    for site in ("activations/h", "activations/out"):
        values = expected()[site]
        np.testing.assert_allclose(run.tensor(site).values, values, rtol=2e-5, atol=2e-6, err_msg=site)
        frame = run.frame(site)
        assert frame["count"].tolist() == [values[0].size] * STEPS
        np.testing.assert_allclose(frame["mean"], values.reshape(STEPS, -1).mean(1), rtol=2e-5, atol=2e-6)


def test_gradients_of_outputs_are_local(ran: Ran) -> None:
    """Those of the loss of one process, which is the mean over its own rows."""
    for site in ("gradients/h", "gradients/out"):
        local = WORLD * expected()[site]
        np.testing.assert_allclose(ran[0].tensor(site).values, local, rtol=2e-5, atol=2e-6, err_msg=site)


def test_gradients_of_weights_are_reduced(ran: Ran) -> None:
    """The optimizer's: the same in every process, and those of the whole batch."""
    for site, values in expected().items():
        if site.startswith(("weight_gradients/", "weights/", "updates/")):
            for rank in range(WORLD):
                seen = ran[0].rank(rank).tensor(site).values
                np.testing.assert_allclose(seen, values, rtol=2e-5, atol=2e-6, err_msg=site)
            assert ran[0].frame(site)["count"].tolist() == [values[0].size] * STEPS


def test_uneven_shares_and_several_backward_passes(both: tuple[Path, list[Any]]) -> None:
    """One process has 5 rows of a batch, the other 3; autograd hands the unused output no gradient."""
    out, said = both
    assert all(one["parts watched"] == one["parts alone"] for one in said)
    run = read.open(out / "parts")
    assert run.errors == []
    assert run.identity == "proven"
    assert "computes no gradient of it" in run.unseen["gradients/aux"]
    for step in range(STEPS):
        assert [len(run.array(f"activations/wide{number}", step)) for number in ("", "#2")] == [2, BATCH - 2]
        local = [run.rank(rank).array("weight_gradients/out/kernel/local", step) for rank in range(WORLD)]
        whole = run.array("weight_gradients/out/kernel", step)
        np.testing.assert_allclose(sum(local) / WORLD, whole, rtol=1e-4, atol=1e-6)
        assert not np.array_equal(*local)
    for weight in ("wider/kernel", "wider/bias"):
        site = f"weight_gradients/{weight}"
        local = run.series(f"{site}/local", "mean", by="rank")
        assert (local[0] != local[1]).all()
        np.testing.assert_allclose(local.mean(axis=1), run.series(site, "mean"), rtol=1e-3, atol=1e-7)


def test_local_gradients_of_weights_are_recorded_before_they_are_reduced(ran: Ran) -> None:
    """Those of the loss of one process, before they are averaged; computed by hand from its rows."""
    by_hand = expected()
    for rank in range(WORLD):
        run = ran[0].rank(rank)
        hidden, d_out = (mine_of(by_hand[site], rank) for site in ("activations/h", "gradients/out"))
        local = WORLD * np.einsum("sri,sro->sio", hidden, d_out)
        seen = run.tensor("weight_gradients/out/kernel/local").values
        np.testing.assert_allclose(seen, local, rtol=2e-5, atol=2e-6)
    for name in ("h/kernel", "h/bias", "out/kernel", "out/bias"):
        each = [ran[0].rank(rank).tensor(f"weight_gradients/{name}/local").values for rank in range(WORLD)]
        assert np.abs(each[0] - each[1]).max() > 1e-3
        np.testing.assert_allclose(
            sum(each) / WORLD, ran[0].tensor(f"weight_gradients/{name}").values, rtol=1e-5, atol=1e-6
        )


def mine_of(values: Any, rank: int) -> Any:
    """The rows of one process in each step."""
    share = values.shape[1] // WORLD
    return values[:, rank * share : (rank + 1) * share]


def test_fully_shard_has_no_effect_and_is_a_warning(both: tuple[Path, list[Any]]) -> None:
    """Keras computes with its own weights. Each process trains by itself, and is recorded so."""
    out, said = both
    assert [one["sharded watched"] for one in said] == [one["sharded alone"] for one in said]
    assert said[0]["sharded alone"] != said[1]["sharded alone"]
    for one in said:
        assert any("no gradient is exchanged" in text for text in one["sharded warned"])
    assert read.open(out / "sharded").series("activations/h", "rms").size == STEPS


def test_each_process_records_its_own_loss(ran: Ran) -> None:
    losses = ran[0].series("loss", by="rank")
    np.testing.assert_allclose(losses.mean(axis=1), expected()["loss"], rtol=1e-5)
    assert (losses[0] != losses[1]).all()
    np.testing.assert_array_equal(ran[0].series("loss"), losses[0])
