"""JAX on four devices: in one process, and in two. One program for each, many questions to what they left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from multiprocess import processes
from multiprocess.reference import BATCH, STEPS, data, expected

Ran = tuple[Path, list[Any]]


@pytest.fixture(scope="module", params=["1x4", "2x2"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp(request.param)
    world, devices = map(int, request.param.split("x"))
    port = processes.free_port()
    commands = [[str(rank), str(world), str(port), str(out)] for rank in range(world)]
    flags = f"--xla_force_host_platform_device_count={devices}"
    return out, processes.run("jax_program.py", commands, KERAS_BACKEND="jax", XLA_FLAGS=flags)


@pytest.fixture(params=["data", "model"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(ran: Ran, kind: str) -> read.Run:
    found = read.runs(ran[0] / kind)
    assert len(found) == 1, "all processes write one run"
    return read.open(ran[0] / kind)


def test_training_is_bit_identical(ran: Ran) -> None:
    for said in ran[1]:
        for name in ("data", "model", "default"):
            assert said[f"{name} watched"] == said[f"{name} alone"]
        assert said.get("one scope", said["default alone"]) == said["default alone"]


def test_every_element_is_recorded_once(run: read.Run) -> None:
    """Compared with one process that computes the same by hand."""
    for site, values in expected().items():
        if site == "loss":
            np.testing.assert_allclose(run.series("loss"), values, rtol=1e-5)
        if site in ("loss", "inputs", "targets"):
            continue
        lazy = run.tensor(site)
        assert lazy.shape == values.shape, site
        np.testing.assert_allclose(lazy.values, values, rtol=2e-5, atol=2e-6, err_msg=site)
        np.testing.assert_array_equal(lazy[:, :3].values, lazy.values[:, :3])
        stored = np.stack([run.array(site, step) for step in range(STEPS)])
        np.testing.assert_array_equal(stored, lazy.values)


def test_statistics_are_those_of_the_whole_tensor(run: read.Run) -> None:
    for site, values in expected().items():
        if site in ("inputs", "targets"):
            continue
        frame = run.frame(site)
        flat = values.reshape(STEPS, -1)
        assert frame["count"].tolist() == [flat.shape[1]] * STEPS, site
        computed = {
            "mean": flat.mean(1), "std": flat.std(1), "min": flat.min(1), "max": flat.max(1),
            "rms": np.sqrt((flat**2).mean(1)),
        }  # fmt: skip
        for stat, numbers in computed.items():
            np.testing.assert_allclose(frame[stat], numbers, rtol=2e-5, atol=2e-6, err_msg=f"{site} {stat}")
        histogram = run.histogram(site)
        assert histogram.sum("bucket").values.tolist() == [flat.shape[1]] * STEPS


def test_the_loss_of_every_sample(run: read.Run) -> None:
    """Each process computes it for the rows that it holds; together they are in the order of the batch."""
    by_hand = expected()
    targets = data()[1].reshape(by_hand["activations/out"].shape)
    losses = ((by_hand["activations/out"] - targets) ** 2).mean(axis=-1)
    samples = run.samples
    trained = samples[samples["pass"] == "train"]
    assert trained["step"].tolist() == [step for step in range(STEPS) for _ in range(BATCH)]
    assert trained["sample"].tolist() == [*range(BATCH)] * STEPS
    np.testing.assert_allclose(trained["loss"], losses.ravel(), rtol=2e-5)
    np.testing.assert_allclose(np.stack(trained["target"]), targets.reshape(-1, 4), rtol=1e-6)
    assert (samples["pass"] == "validation").sum() == STEPS * BATCH


def test_validation_is_recorded_across_processes(run: read.Run) -> None:
    whole = run.array("validation/activations/out", STEPS)
    assert whole.shape == (STEPS * BATCH, 4)
    assert not np.isnan(whole).any()
    lazy = run.tensor("validation/activations/out")
    np.testing.assert_array_equal(lazy.values[0], whole)
    assert lazy["batch_size"].item() == STEPS * BATCH


def test_each_process_records_its_own_shards(ran: Ran, run: read.Run, kind: str) -> None:
    world = len(ran[1])
    assert run.status == "complete"
    assert run.errors == []
    assert set(run.unseen.values()) == {"the loss is not one of classes", "the loss is not a cross-entropy"}
    assert run.ranks["status"].tolist() == ["complete"] * world
    rows = run.sql("select rank, site, sum(count) as n from stats where pass = 'train' group by all")
    by_rank = rows.pivot_table(index="site", columns="rank", values="n")
    halves = STEPS * BATCH * 8 // world
    assert by_rank.loc["activations/h"].tolist() == [halves] * world
    if world > 1:
        assert by_rank.loc["loss"].isna().tolist() == [False, True], "what all have, one records"
        shape = [BATCH // 2, 8] if kind == "data" else [BATCH, 4]
        assert [said[f"{kind} batch"][0] for said in ran[1]] == [shape] * 2, "a process reads its own part"
        parts = [np.array(said[f"{kind} batch"][1], np.float32) for said in ran[1]]
        whole = np.concatenate(parts, axis=0 if kind == "data" else 1)
        np.testing.assert_array_equal(run.array("activations/h", STEPS - 1), whole)
        for rank in range(world):
            np.testing.assert_array_equal(
                run.rank(rank).tensor("activations/h").values[-1][tuple(slice(-n, None) for n in shape)],
                parts[rank],
            )
        assert by_rank.loc["weights/h/kernel"].isna().tolist() == [False, kind == "data"]
    assert run.identity in (("twin",) if world > 1 else ("proven", "twin"))


def test_without_a_schedule_all_processes_capture_the_same_steps(ran: Ran) -> None:
    run = read.open(ran[0] / "default")
    assert run.status == "complete"
    steps = run.series("activations/h", "rms", by="rank")
    assert not steps.isna().any(axis=None)
    if len(ran[1]) > 1:
        assert steps.index.tolist() == [*range(11)]
    assert run.series("loss").index.tolist() == [*range(4 * STEPS)]


def test_a_scope_in_only_one_process_records_no_step_and_warns(ran: Ran) -> None:
    if len(ran[1]) == 1:
        return
    run = read.open(ran[0] / "one")
    assert run.sites == ["logs/loss"]
    assert "process 1 has no scope" in run.unseen["activations/h"]
    assert run.ranks["status"].tolist() == ["complete", "not started"]
    (warning,) = ran[1][0]["warned"]
    assert "process 1 has no scope" in warning
    assert ran[1][1]["warned"] == []
