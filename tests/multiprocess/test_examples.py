"""The examples in examples/distributed run as they say, in two processes or on two devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitscope import read
from multiprocess import processes

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"


def test_every_example_of_the_docs_is_run_in_this_file() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == {
        "jax_processes.py",
        "mirrored.py",
        "torch_ddp.py",
    }


@pytest.mark.parametrize("example", ["jax_processes.py", "torch_ddp.py"])
def test_an_example_runs_in_two_processes(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = str(processes.free_port())
    commands = [[str(rank), port] for rank in range(2)]
    if example.startswith("jax"):
        said = processes.outputs(EXAMPLES / example, commands, KERAS_BACKEND="jax")
    else:  # what torchrun sets
        shared = {
            "KERAS_BACKEND": "torch",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": "2",
        }
        each = [{"RANK": str(rank)} for rank in range(2)]
        said = processes.outputs(EXAMPLES / example, commands, each, **shared)
    assert "rank" in said[0]
    assert len(read.runs("runs")) == 1
    run = read.open("runs")
    assert run.ranks["status"].tolist() == ["complete"] * 2
    assert run.last_step == 7
    assert not run.series("activations/hidden", "rms", by="rank").isna().any(axis=None)


def test_an_example_runs_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (said,) = processes.outputs(EXAMPLES / "mirrored.py", [[]], KERAS_BACKEND="tensorflow")
    assert "(16, 16)" in said
    assert "proven ['complete']" in said
