"""`MultiWorkerMirroredStrategy` in two processes: `fit` fails there in Keras 3.15, and where it works fitscope records its logs."""

from __future__ import annotations

import json
from pathlib import Path

from fitscope import read
from multiprocess import processes


def test_unsupported_strategies_are_refused_with_the_reason(tmp_path: Path) -> None:
    ports = [processes.free_port() for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    each = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": n}})}
        for n in range(2)
    ]
    said = processes.run("workers_program.py", [[str(tmp_path)]] * 2, each, KERAS_BACKEND="tensorflow")
    for one in said:
        alone, watched = one["as it is"]
        assert "PerReplica" in alone, "Keras mended it: fitscope can record it now"
        assert watched == alone, "your own error reaches you"
        alone, watched = one["mended"]
        assert watched == alone
        assert len(alone) == 64, "a digest, not an error"
        assert any("keras#20585" in text for text in one["warned"])
    run = read.open(tmp_path / "mended")
    assert run.ranks["status"].tolist() == ["complete"] * 2
    assert run.sites == ["logs/loss"]
    assert len(run.series("logs/loss")) == 1
    assert "several workers" in run.unseen["activations/h"]
