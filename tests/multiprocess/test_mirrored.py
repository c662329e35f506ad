"""`tf.distribute.MirroredStrategy` with two replicas, in one process. One program, many questions to what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.pipeline.handover import ReplicaRows, Thin
from fitscope.pipeline.replicas import together
from fitscope.reduce import host
from multiprocess import processes
from multiprocess.reference import BATCH, steps, uneven

REPLICAS = 2
PLAIN = ("graph", "eager", "in step", "twin")
Ran = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("mirrored")
    (said,) = processes.run("mirrored_program.py", [[str(out)]], KERAS_BACKEND="tensorflow")
    return out, said


@pytest.fixture
def expected(name: str) -> list[dict[str, Any]]:
    x, y = uneven(1 if name == "twin" else 3)
    return list(steps([(x[at : at + BATCH], y[at : at + BATCH]) for at in (0, BATCH, 2 * BATCH)], REPLICAS))


@pytest.mark.parametrize("name", [*PLAIN, "deep", "own", "loop"])
def test_training_is_bit_identical(ran: Ran, name: str) -> None:
    alone, watched = ran[1][name]
    assert watched == alone
    run = read.open(ran[0] / name)
    assert run.identity == ("twin" if name == "twin" else "proven")
    assert run.status == "complete"
    assert run.ranks["status"].tolist() == ["complete"], "one process is one rank"


@pytest.mark.parametrize("name", PLAIN)
def test_rows_of_all_replicas_are_in_the_order_of_the_batch(
    ran: Ran, name: str, expected: list[dict[str, Any]]
) -> None:
    """Compared with one process that computes the same by hand: each element once, also of the uneven last batch. Where that has one
    row ("twin"), the second replica has none.
    """
    run = read.open(ran[0] / name)
    assert run.unseen == {}
    for step, values in enumerate(expected):
        for site, value in values.items():
            if site != "loss":
                seen = run.array(site, step)
                assert seen.shape == value.shape, site
                np.testing.assert_allclose(seen, value, rtol=2e-5, atol=2e-6, err_msg=f"{site} {step}")
            frame = run.frame(site).loc[step]
            assert frame["count"] == value.size, site
            for stat in ("mean", "std", "min", "max"):
                found = getattr(np, stat)(value)
                np.testing.assert_allclose(frame[stat], found, rtol=1e-4, atol=2e-6, err_msg=f"{site} {stat}")


@pytest.mark.parametrize("name", PLAIN)
def test_loss_is_what_the_training_minimises(ran: Ran, name: str, expected: list[dict[str, Any]]) -> None:
    """The mean of the replicas' means, of which the recorded gradients are; a metric is that of all rows."""
    run = read.open(ran[0] / name)
    np.testing.assert_allclose(run.series("loss"), [step["loss"] for step in expected], rtol=1e-5)
    errors = [np.abs(step["activations/out"] - step["targets"]).mean() for step in expected]
    np.testing.assert_allclose(run.series("metrics/mae"), errors, rtol=1e-5)


@pytest.mark.parametrize("name", ["graph", "eager"])
def test_validation_on_several_replicas_is_recorded(ran: Ran, name: str) -> None:
    run = read.open(ran[0] / name)
    rows = run.tensor("validation/inputs").values.reshape(-1, 6)
    np.testing.assert_array_equal(rows[~np.isnan(rows).any(axis=1)], uneven()[0])
    assert "validation/loss" in run.sites


def test_layers_that_replicas_share_are_recorded(ran: Ran) -> None:
    """Batch norm makes replicas take turns in the middle of a layer."""
    run = read.open(ran[0] / "deep")
    assert run.errors == []
    assert list(run.unseen) == ["gradients/two"], "its logits have one"
    for site in ("activations/wide", "activations/moments", "gradients/norm", "activations/drop"):
        assert [run.array(site, step).shape for step in range(3)] == [(8, 300), (8, 300), (3, 300)], site
    np.testing.assert_array_equal(run.array("inputs", 1), uneven()[0][8:16])
    wide, moments = (run.array(f"activations/{name}", 0) for name in ("wide", "moments"))
    for rows in (slice(0, 4), slice(4, 8)):  # each replica normalizes its own rows
        np.testing.assert_allclose(moments[rows].mean(axis=0), 0, atol=1e-4)
    assert np.abs(wide[:4].mean(axis=0) - wide[4:].mean(axis=0)).max() > 1e-3
    whole = host.reduce(run.array("activations/wide", 1))
    assert run.frame("activations/wide")["zeros"].loc[1] == whole.zeros


def test_a_custom_step_with_taps_is_recorded_on_several_replicas(ran: Ran) -> None:
    run = read.open(ran[0] / "own")
    assert run.array("taps/pooled", 2).shape == (6, 300), "the rows of both replicas"
    here = run.array("taps/loss_here", 0)
    assert here.shape == (REPLICAS,), "a number of each replica"
    np.testing.assert_allclose(run.series("loss").loc[0], here.sum(), rtol=1e-6)
    gradient, update = (
        run.array("weight_gradients/table/embeddings", 0),
        run.array("updates/table/embeddings", 0),
    )
    np.testing.assert_allclose(update, -0.1 * gradient, rtol=1e-5, atol=1e-7)
    parts = [run.array(f"weight_gradients/table/embeddings/local[{number}]", 0) for number in range(REPLICAS)]
    np.testing.assert_allclose(sum(parts), gradient, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(*parts)
    assert any("tf.distribute" in text for text in run.errors), "no black box"
    assert ran[1]["traced"] == 3 * REPLICAS, (
        "alone, watched, with taps: a proof does not trace the user's own step again"
    )


def test_custom_loops_are_recorded_on_several_replicas(ran: Ran) -> None:
    """Keras gives train_on_batch's whole batch to every replica. A step that calls the strategy itself is refused."""
    out, said = ran
    run = read.open(out / "loop")
    assert run.array("activations/out", 0).shape == (4 * REPLICAS, 4)
    custom = read.open(out / "custom")
    assert "calls tf.distribute itself" in custom.unseen["activations/out"]
    assert any("calls tf.distribute itself" in text for text in said["loop warned"])


def test_rows_of_different_shapes_are_recorded_on_several_replicas() -> None:
    """A replica with few rows hands out all of them, and another only some."""
    adapter: Any = type("Host", (), {"to_numpy": staticmethod(np.asarray)})
    some, few = np.arange(8.0).reshape(2, 4), np.arange(4.0).reshape(1, 2, 2)
    found = together(ReplicaRows((Thin(some, np.array([4, 2, 2])), few)), adapter)
    assert found.shape.tolist() == [5, 2, 2]
    np.testing.assert_array_equal(found.rows, [*some, few.reshape(4)])
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)) for n in (4, 0, 2)]
    moments = [
        {"shape": np.array(p.shape), "like": p[:0], "moments": (p.mean(0), ((p - p.mean(0)) ** 2).sum(0))}
        for p in parts
        if len(p)
    ]
    empty = {"shape": np.array([0, 3]), "like": parts[1], "moments": (np.full(3, np.nan), np.full(3, np.nan))}
    whole = np.concatenate(parts)
    mean, m2 = together(ReplicaRows((moments[0], empty, moments[1])), adapter)["moments"]
    np.testing.assert_allclose(mean, whole.mean(0))
    np.testing.assert_allclose(m2, ((whole - whole.mean(0)) ** 2).sum(0))
