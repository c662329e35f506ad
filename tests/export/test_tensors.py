"""npz and npy: the kept tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fitscope as fs
from fitscope.errors import FitscopeWarning
from fitscope.export import export_run, kept

pytestmark = pytest.mark.once


def test_npz_holds_the_tensors_of_the_run(small: fs.Run, tmp_path: Path) -> None:
    out = tmp_path / "tensors.npz"
    assert export_run(small, "npz", out) == [out]
    with np.load(out) as archive:
        assert archive["predictions"].dtype == np.float32
        np.testing.assert_array_equal(archive["predictions"][:, 0, 0], range(6))
        assert archive["predictions@epoch"].tolist() == [0, 0, 0, 1, 1, 1]
        for site in ("predictions", "validation/predictions"):
            tensor = small.tensor(site)
            np.testing.assert_array_equal(archive[site], tensor.values)
            batch = "batches" if site.startswith("validation") else "batch"
            for name in ("step", "epoch", batch, "size", "batch_size"):
                np.testing.assert_array_equal(archive[f"{site}@{name}"], tensor[name].values)
        assert archive["validation/predictions@size"].tolist() == [6, 6]
        index = json.loads(archive["@index.json"])
    assert [entry["site"] for entry in index["arrays"]] == ["predictions", "validation/predictions"]


def test_npz_is_written_in_blocks(
    write: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [np.full((4, 8), step, np.float32) for step in range(200)]  # 128 bytes each
    run = fs.open(write([make("a", s, t, keep="tensor") for s, t in enumerate(tensors)]).path)
    monkeypatch.setattr(kept, "BLOCK_BYTES", 1000)
    told: list[tuple[int, int]] = []
    export_run(run, "npz", tmp_path / "a.npz", progress=lambda *at: told.append(at))
    assert len(told) == 200 // (1000 // 128) + 1, "seven captures at a time"
    assert told[-1] == (200, 200)
    with np.load(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(archive["a"], tensors)


def test_npy_is_the_last_of_each_epoch(small: fs.Run, tmp_path: Path) -> None:
    out = tmp_path / "arrays"
    written = export_run(small, "npy", out)
    assert sorted(path.name for path in written) == sorted(path.name for path in out.iterdir())
    assert {path.name for path in written} == {
        "epoch_0000_predictions.npy",
        "epoch_0001_predictions.npy",
        "epoch_0000_validation~predictions.npy",
        "epoch_0001_validation~predictions.npy",
        "index.json",
    }
    np.testing.assert_array_equal(np.load(out / "epoch_0000_predictions.npy"), np.full((2, 3), 2.0))
    np.testing.assert_array_equal(np.load(out / "epoch_0001_predictions.npy"), np.full((2, 3), 5.0))
    for epoch in (0, 1):  # both batches of the validation, in order
        seen = np.load(out / f"epoch_{epoch:04d}_validation~predictions.npy")
        assert seen.shape == (6, 3)
        assert seen[:, 0].tolist() == [100 * epoch] * 4 + [100 * epoch + 1] * 2
    entry = next(
        e for e in json.loads((out / "index.json").read_text())["files"] if e["site"].startswith("val")
    )
    assert entry == {
        "site": "validation/predictions", "epoch": 0, "file": "epoch_0000_validation~predictions.npy",
        "step": 3, "batches": [0, 1], "shape": [6, 3], "dtype": "float32",
    }  # fmt: skip


def test_npy_exports_the_chosen_sites(small: fs.Run, tmp_path: Path) -> None:
    export_run(small, "npy", tmp_path / "some", "pred*")
    assert len(list((tmp_path / "some").glob("*.npy"))) == 2


def test_npy_again_replaces_its_own_files_only(small: fs.Run, tmp_path: Path) -> None:
    out = tmp_path / "arrays"
    export_run(small, "npy", out)
    (out / "epoch_0009_mine.npy").write_bytes(b"mine")
    (out / "notes.txt").write_text("mine")
    index = json.loads((out / "index.json").read_text())
    index["files"].append({"file": "../runs/first/run.json"})
    index["files"].append({"file": "notes.txt"})
    (out / "index.json").write_text(json.dumps(index))
    export_run(small, "npy", out, "predictions", force=True)
    assert {path.name for path in out.iterdir()} == {
        "epoch_0000_predictions.npy", "epoch_0001_predictions.npy", "index.json", "epoch_0009_mine.npy", "notes.txt"
    }  # fmt: skip
    assert (Path(small.path) / "run.json").exists()


def test_of_two_evaluations_npy_keeps_the_last(write: Any, make: Any, tmp_path: Path) -> None:
    def passes(first: float) -> list[Any]:
        return [make("evaluate/v", 9, np.full((2, 1), first + b), batch=b, keep="tensor") for b in range(3)]

    run = fs.open(write([*passes(0), *passes(10)]).path)
    export_run(run, "npy", tmp_path / "o")
    assert np.load(tmp_path / "o/epoch_0000_evaluate~v.npy")[:, 0].tolist() == [10, 10, 11, 11, 12, 12]


def test_npy_exports_captures_of_odd_shapes(write: Any, make: Any, tmp_path: Path) -> None:
    """Scalars, weights, other lengths, and types that NumPy does not have."""
    half = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    records = [
        make("half", 0, half, keep="tensor"),
        make("kernel", 0, np.eye(2), keep="tensor", batched=False),
        make("empty", 0, np.zeros((0, 3), np.int32), keep="tensor"),
        *(make("validation/scalar", 0, np.float64(b), batch=b, keep="tensor") for b in range(2)),
        *(
            make("validation/long", 0, np.ones((2, 3 + b), np.float32), batch=b, keep="tensor")
            for b in range(2)
        ),
        *(
            make("validation/state", 0, np.full(3, b), batch=b, keep="tensor", batched=False)
            for b in range(2)
        ),
    ]
    run = fs.open(write(records).path)
    export_run(run, "npy", tmp_path / "o")
    got = {p.stem[11:]: np.load(p, allow_pickle=False) for p in (tmp_path / "o").glob("*.npy")}
    assert got["half"].dtype == np.float32
    np.testing.assert_array_equal(got["half"], half.astype(np.float32))
    np.testing.assert_array_equal(got["kernel"], np.eye(2))
    assert got["empty"].shape == (0, 3)
    assert got["validation~scalar"].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(got["validation~long"], [[1, 1, 1, np.nan]] * 2 + [[1, 1, 1, 1]] * 2)
    assert got["validation~state"].tolist() == [[0, 0, 0], [1, 1, 1]]
    export_run(run, "npz", tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz", allow_pickle=False) as archive:
        assert archive["half"].dtype == np.float32
        for site in run.sites:
            np.testing.assert_array_equal(archive[site], run.tensor(site).values.astype(archive[site].dtype))


def test_hostile_names_become_safe_file_names(write: Any, make: Any, tmp_path: Path) -> None:
    names = [
        "../../up", "/abs", "..", "a\x00b\x1b[31m\n", "x/y", "x~y", "x%2Fy", "Case", "case", "s p a c e",
        "n" * 3000, "n" * 2999 + "m", "z/" * 200, "index.json", "a@step", "schön/層",
    ]  # fmt: skip
    records = [make(name, 0, np.full((1, 1), i), keep="tensor") for i, name in enumerate(names)]
    run = fs.open(write(records).path)
    out = tmp_path / "o" / "inner"
    export_run(run, "npy", out)
    assert list(out.parent.iterdir()) == [out], "nothing was written elsewhere"
    files = json.loads((out / "index.json").read_text())["files"]
    assert len({entry["file"].casefold() for entry in files}) == len(names)
    assert {e["site"]: np.load(out / e["file"]).item() for e in files} == {n: i for i, n in enumerate(names)}
    export_run(run, "npz", tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz") as archive:
        arrays = json.loads(archive["@index.json"])["arrays"]
        assert {e["site"]: archive[e["key"]].item() for e in arrays} == {n: i for i, n in enumerate(names)}
        assert not [key for key in archive.files if key.startswith(("/", "..")) or "/../" in key]


def test_a_damaged_capture_is_named_and_the_others_are_written(write: Any, make: Any, tmp_path: Path) -> None:
    records = [make("a", epoch, np.ones((2, 2)) * epoch, epoch=epoch, keep="tensor") for epoch in range(2)]
    writer = write([*records, make("b", 0, np.ones((1, 1)), keep="tensor")], flush_every=1)
    run = fs.open(writer.path)
    chunk = next(Path(writer.path).glob("**/b/data/c.*"))
    chunk.unlink()
    with pytest.warns(FitscopeWarning, match="'b' is not exported"):
        export_run(run, "npy", tmp_path / "o")
    index = json.loads((tmp_path / "o/index.json").read_text())
    assert [entry["site"] for entry in index["missing"]] == ["b"]
    assert len(index["files"]) == 2


def test_the_tensors_of_a_live_run_are_exported(write: Any, make: Any, tmp_path: Path) -> None:
    writer = write([make("a", 0, np.ones((2, 2)), keep="tensor")], close=False)
    run = fs.open(writer.path)
    export_run(run, "npz", tmp_path / "a.npz")
    writer.write([make("a", 1, np.zeros((2, 2)), epoch=1, keep="tensor")])
    writer.flush()
    assert len(export_run(run, "npy", tmp_path / "a")) == 3
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["a@step"].tolist() == [0]
    writer.close()
