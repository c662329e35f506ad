"""The steps of a black box come back as they were, and a forged box is refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fitscope import read
from fitscope.errors import RunError
from fitscope.read.black_box import KeptStep, ranges
from fitscope.store import RunWriter
from fitscope.store import black_box as stored
from fitscope.store.structure import Absent, put_together, taken_apart

STATE = [
    np.arange(6, dtype="float32").reshape(2, 3), np.array(3, "int64"), np.array([np.nan, -0.0]),
    np.array([1.5, -2], ml_dtypes.bfloat16), np.array([True, False]), np.array([b"ab", b"c"]),
]  # fmt: skip


def laps() -> list[stored.Lap]:
    lap = stored.Lap(4, STATE, [("trainable", f"v{n}") for n in range(len(STATE))])
    for step in (4, 5):
        leaves: list[Any] = []
        form = taken_apart(({"x": np.full((2, 2), step)}, None), np.asarray, leaves)
        changed, random = {1: np.array(7)}, {"torch": np.zeros(3, "uint8")}
        facts = {"given": ["numpy"]}
        logs = {"loss": np.float32(step)} if step == 4 else None
        lap.add(stored.KeptCall(step, 0, step, [form], leaves, changed, random, facts, logs))
    return [lap]


ABOUT = {"backend": "jax", "software": {"keras": "3"}, "why": ["nonfinite: NaN born here"], "odd_step": 5}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    writer = RunWriter.create(tmp_path, "one")
    writer.boxes.write(laps(), ABOUT, b'{"class_name": "Model"}')
    writer.close()
    return tmp_path


def kept(runs: Path, step: int = 5) -> KeptStep:
    (box,) = read.open(runs).black_box
    return box.step(step)


def test_a_step_comes_back_as_it_was(runs: Path) -> None:
    step = kept(runs)
    for found, put in zip(step.state(), STATE, strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (put.dtype, put.shape, put.tobytes())
    first, last = step.calls()
    (batch,) = (put_together(form, last.arrays) for form in last.forms)
    assert np.array_equal(batch[0]["x"], [[5, 5], [5, 5]])
    assert batch[1] is None
    assert last.logs is None
    assert first.logs is not None
    assert first.logs["loss"] == 4
    assert last.changed[1] == 7
    assert step.box.model() == {"class_name": "Model"}
    assert (step.box.steps, step.box.why, step.box.odd_step) == ([4, 5], ABOUT["why"], 5)


def test_a_large_state_is_split_into_volumes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "VOLUME", 30)
    writer = RunWriter.create(runs, "two")
    writer.boxes.write(laps(), ABOUT, None)
    writer.close()
    step = read.open(runs / "two").black_box[0].step(4)
    assert len({one["file"] for one in step.variables}) > 2
    assert [found.tobytes() for found in step.state()] == [put.tobytes() for put in STATE]


def test_a_black_box_stays_within_the_limit_of_its_run(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "one", limit=3_000)
    with pytest.raises(stored.NoRoomError):
        writer.boxes.write(laps(), ABOUT, None)
    writer.close()
    assert read.open(tmp_path).black_box == []


def test_a_box_without_its_document_does_not_exist(runs: Path) -> None:
    next(runs.rglob("box.json")).unlink()
    assert read.open(runs).black_box == []


@pytest.mark.parametrize(
    "forge",
    [
        lambda box: box.pop("laps"),
        lambda box: box.update(laps=[{}]),
        lambda box: box.update(backend=3),
        lambda box: box["laps"][0]["calls"][0].update(forms="many"),
        lambda box: box["laps"][0]["state"][0].update(file="../../../run.json"),
        lambda box: box["laps"][0]["calls"][1].pop("facts"),
    ],
)
@pytest.mark.filterwarnings("ignore::fitscope.FitscopeWarning")
def test_a_forged_document_is_damage(runs: Path, forge: Callable[[Any], Any]) -> None:
    _forge(runs, forge)
    run = read.open(runs)
    assert run.black_box == []
    assert "box.json" in run.damaged[0].name


def _forge(runs: Path, forge: Callable[[Any], Any]) -> None:
    path = next(runs.rglob("box.json"))
    document = json.loads(path.read_text())
    forge(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "forge",
    [
        lambda one: one.update(shape=[10**12]),
        lambda one: one.update(dtype="object"),
        lambda one: one.update(dtype="finfo"),
        lambda one: one.update(dtype="float64"),
        lambda one: one.update(name="nothing"),
        lambda one: one.update(file="gone.npz"),
    ],
)
def test_a_forged_array_is_refused(runs: Path, forge: Callable[[Any], Any]) -> None:
    _forge(runs, lambda box: forge(box["laps"][0]["state"][0]))
    with pytest.raises(RunError, match="damaged or forged"):
        kept(runs).state()


@pytest.mark.parametrize("form", [{"array": 99}, {"float": "x"}, {"eval": "1"}, {"dict": [["a"]]}, {}])
def test_a_forged_batch_is_refused(runs: Path, form: Any) -> None:
    _forge(runs, lambda box: box["laps"][0]["calls"][0].update(forms=[form]))
    with pytest.raises(RunError, match=r"batches of step 4.*damaged or forged"):
        list(kept(runs, 4).calls())


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a":' * 3000 + b"1" + b"}" * 3000])
def test_a_damaged_model_is_refused(runs: Path, data: bytes) -> None:
    next(runs.rglob("model.json")).write_bytes(data)
    with pytest.raises(RunError, match=r"model\.json.*damaged or forged.*pass it"):
        kept(runs).box.model()


def test_pickles_and_compressed_arrays_are_refused(runs: Path) -> None:
    archive = next(runs.rglob("lap-0.0.npz"))
    np.savez(archive, allow_pickle=True, **{str(n): np.array([print], object) for n in range(len(STATE))})
    with pytest.raises(RunError, match="of type"):
        kept(runs).state()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as forged:
        forged.writestr("0.npy", b"\0" * 1_000_000)
    with pytest.raises(RunError, match="compressed"):
        kept(runs).state()


@pytest.mark.parametrize(
    "form", [None, 3, {}, {"array": 1}, {"array": -1}, {"eval": "1"}, {"tuple": 3}, {"dict": [[1, 2]]}]
)
def test_an_invalid_structure_is_refused(form: Any) -> None:
    with pytest.raises(ValueError, match="form of a batch"):
        put_together(form, [0])


def test_a_structure_keeps_every_kind_of_container() -> None:
    leaves: list[Any] = []
    batch = ([1, 2.5, float("inf"), None, "text"], {"a": (np.ones(2),), "b": b"gone"})
    form = taken_apart(batch, lambda leaf: Absent() if isinstance(leaf, bytes) else leaf, leaves)
    again = put_together(json.loads(json.dumps(form)), leaves, "absent")
    assert again == (batch[0], {"a": (leaves[0],), "b": "absent"})


def test_steps_are_listed_in_words() -> None:
    assert ranges([3, 1, 2, 7]) == "1–3, 7"
    assert ranges([]) == "none"
