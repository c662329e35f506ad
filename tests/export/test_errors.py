"""What cannot be exported, or not there, is said in three clauses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.errors import RunError, StoreError, WatchError
from fitscope.export import FORMATS, export_run

pytestmark = pytest.mark.once


def test_an_unknown_format_is_an_error(small: fs.Run, tmp_path: Path) -> None:
    with pytest.raises(WatchError, match="Did you mean 'parquet'"):
        export_run(small, "parket", tmp_path / "x")


def test_an_unknown_stat_is_an_error(small: fs.Run, tmp_path: Path) -> None:
    with pytest.raises(WatchError, match="Did you mean 'mean'"):
        export_run(small, "csv", tmp_path / "x", stats=["maen"])
    with pytest.raises(WatchError, match="npz, which holds tensors"):
        export_run(small, "npz", tmp_path / "x", stats="mean")


def test_sites_that_match_nothing_are_an_error(small: fs.Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Did you mean 'activations/a'"):
        export_run(small, "csv", tmp_path / "x.csv", ["loss", "activation/a*"])
    with pytest.raises(RunError, match=r"with kept tensors. Received: 'loss'"):
        export_run(small, "npy", tmp_path / "x", "loss")
    assert not list(tmp_path.glob("x*"))


def test_exporting_a_run_without_that_kind_of_data_is_an_error(write: Any, make: Any, tmp_path: Path) -> None:
    run = fs.open(write([make("loss", 0, np.float32(1))]).path)
    for kind in ("npz", "npy"):
        with pytest.raises(RunError, match="keep='tensor'"):
            export_run(run, kind, tmp_path / "x")
    empty = fs.open(write([], name="empty").path)
    with pytest.raises(RunError, match="a run with statistics"):
        export_run(empty, "csv", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
def test_an_existing_file_is_not_replaced(small: fs.Run, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "file"
    out.write_text("mine")
    with pytest.raises(StoreError, match=r"which exists.*--force"):
        export_run(small, kind, out)
    assert out.read_text() == "mine"
    export_run(small, kind, out, force=True)
    assert out.read_bytes()[:4] != b"mine"
    with pytest.raises(StoreError, match="Name a file in it"):
        export_run(small, kind, tmp_path, force=True)
    with pytest.raises(StoreError, match="a device"):
        export_run(small, kind, "/dev/null", force=True)


def test_a_directory_that_is_not_empty_is_not_replaced(small: fs.Run, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"which is not empty.*--force"):
        export_run(small, "npy", tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="a file"):
        export_run(small, "npy", tmp_path / "file", force=True)


def test_exporting_to_a_url_is_an_error(small: fs.Run) -> None:
    with pytest.raises(StoreError, match="a path on this machine"):
        export_run(small, "csv", "s3://bucket/stats.csv")


def test_a_failed_export_leaves_no_file(
    small: fs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("fitscope.export.csv.with_texts", fails)
    out = tmp_path / "o" / "s.csv"
    with pytest.raises(StoreError, match=r"Received: .*s.csv' \(the disk is full\)"):
        export_run(small, "csv", out)
    assert list(out.parent.rglob("*")) == []


def test_exporting_without_the_tensorboard_package_is_an_error(
    small: fs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(StoreError, match=re.escape("pip install 'fitscope[tensorboard]'")):
        export_run(small, "tensorboard", tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_exporting_imports_no_framework(small: fs.Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the tensorboard package")
    code = (
        "import sys; from fitscope.export import FORMATS, export_run\n"
        f"for f in FORMATS: export_run({small.path!r}, f, {str(tmp_path)!r} + '/o-' + f)\n"
        "print(sorted({'keras', 'jax', 'tensorflow', 'torch', 'numba', 'fitscope.scope'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert len(list(tmp_path.glob("o-*"))) == len(FORMATS)
