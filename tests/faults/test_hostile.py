"""Forged documents, tensors and averages: each file costs at most itself, and nothing outside the run is read."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from campaign.ground import write
from faults.forged import gathered, used
from fitscope import read
from fitscope.errors import RunError
from fitscope.read import untrusted
from fitscope.record import Moment
from fitscope.reduce.average import Average
from fitscope.show.app import app
from fitscope.store import Files, Memory, RunWriter

#: Damage is warned about, and these tests make it.
pytestmark = pytest.mark.filterwarnings("ignore::fitscope.errors.FitscopeWarning")

# ---- documents ---------------------------------------------------------------------------------------

DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000
ODD: dict[str, Any] = {
    "status": 3, "heartbeat": "now", "pid": "x", "started": [], "step": "many", "rows": -1, "bytes": {}, "lost": [1],
    "dropped": {"a": "b"}, "unseen": 5, "errors": "no", "errors_total": [], "averages": {"a": "../../../x"},
    "identity": {"train": {"status": [], "steps": "x"}}, "checkpoints": [{"step": "a", "path": 1}], "full_at": "x",
    "overhead": {"steps": "x", "cpu_share": [], "compile_seconds": "x", "budget": {"every": "x", "decisions": 3}}, "ended_by": [],
    "created_ns": "yesterday", "software": 4, "model": {"name": [], "layers": [{"path": [], "from": 3}], "parameters": "x"},
    "id": 17, "attempt": "x", "start_step": [], "world": 10**12, "format": "two", "backend": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ["run.json", "attempts/0000.json", "a0000/r00000/status.json"])
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000, b'"text"', b"3", b"[]", b"{", b"\xff\xfe{}", b"",
        b'{"format": 1e400}', b'{"created_ns": ' + b"9" * 5000 + b"}", b'{"format": NaN, "world": Infinity}', DEEP,
        b'{"format": 2, "x": [' + b"[]," * 3_000_000 + b"[]]}",
    ],
    ids=lambda data: f"{data[:12]!r}x{len(data)}",
)  # fmt: skip
def test_an_invalid_document_is_damage(rank: Path, name: str, data: bytes) -> None:
    (rank.parents[1] / name).write_bytes(data)
    used(rank.parents[2])


OF = {
    "run.json": untrusted.RUN,
    "attempts/0000.json": untrusted.ATTEMPT,
    "a0000/r00000/status.json": untrusted.STATUS,
}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, form in OF.items() for field in form if field in ODD]
)
def test_a_field_of_the_wrong_type_raises_no_error(rank: Path, name: str, field: str) -> None:
    path = rank.parents[1] / name
    path.write_text(json.dumps({**json.loads(path.read_text()), field: ODD[field]}))
    used(rank.parents[2])


@pytest.mark.parametrize("written", [None, "two", 2.5, []])
def test_a_run_without_a_format_number_is_damaged_not_newer(rank: Path, written: Any) -> None:
    path = rank.parents[1] / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": written}))
    with pytest.raises(RunError, match=r"damaged one at .* \(it has no format number\)"):
        read.open(rank.parents[1])


def test_a_field_of_the_wrong_type_is_named_and_the_others_are_used(rank: Path) -> None:
    path = rank / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bytes": "many"}))
    run = read.open(rank.parents[2], "run")
    assert run.last_step == 5
    assert run.bytes == 0
    assert [(d.name, d.reason) for d in run.damaged] == [
        ("a0000/r00000/status.json", "its field 'bytes' is 'many'")
    ]


@pytest.mark.parametrize(
    "name", ["run.json", "a0000/r00000/stats/part-000000.parquet", "a0000/r00000/tail/stats.arrow"]
)
def test_a_named_pipe_is_not_read(rank: Path, name: str) -> None:
    path = rank.parents[1] / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    used(rank.parents[2])


@pytest.mark.parametrize(
    "name",
    [
        "run.json", "attempts", "attempts/0000.json", "a0000", "a0000/r00000", "a0000/r00000/status.json",
        "a0000/r00000/stats", "a0000/r00000/stats/part-000000.parquet", "a0000/r00000/tensors.zarr",
    ],
)  # fmt: skip
def test_a_link_to_itself_is_not_followed(rank: Path, name: str) -> None:
    path = rank.parents[1] / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path.name)
    if name != "run.json":  # a folder without a readable one is listed with its problem or not at all
        used(rank.parents[2])
    assert len(read.open(rank.parents[2], "other").series("activations/small", "mean")) == 6


LINKED = (
    "run.json", "notes.json", "attempts", "attempts/0000.json", "a0000", "a0000/r00000", "a0000/r00000/status.json",
    "a0000/r00000/stats", "a0000/r00000/stats/part-000000.parquet", "a0000/r00000/tensors.zarr", "a0000/r00000/averages",
)  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_inside_a_run_is_not_followed(rank: Path, tmp_path: Path, name: str) -> None:
    """Whoever made the run made the link, and the file may be any of the reader's: it counts as missing."""

    def seen() -> object:
        sql = read.runs(rank.parents[2]).sql("SELECT count(*) AS n FROM stats WHERE run = 'run'")["n"][0]
        try:
            run = read.open(rank.parents[2], "run")
        except RunError:
            return sql
        return sql, len(run.stats), run.sites, run.averages, run.notes, run.status, run.last_step, run.bytes

    path = rank.parents[1] / name
    if name == "notes.json":
        path.write_text('{"notes": "secret"}')
    path.rename(tmp_path / "outside")
    missing = seen()
    path.symlink_to(tmp_path / "outside")
    assert seen() == missing


def test_a_run_may_be_named_by_a_link(rank: Path) -> None:
    """The user made that one."""
    (rank.parents[2] / "linked").symlink_to(rank.parents[1])
    for run in (read.open(rank.parents[2] / "linked"), read.open(rank.parents[2], "linked")):
        assert len(run.series("activations/small", "mean")) == 6


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    files = Files(tmp_path)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("socket", "device", "pipe"):
        for look in (files.get, files.size):
            with pytest.raises(OSError, match=r"not a regular file|No such device"):
                look(name)


def test_no_key_leads_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "runs" / "run" / "a").mkdir(
        parents=True
    )  # a path through a folder that is missing leads nowhere
    files = Files(tmp_path / "runs" / "run")
    for key in ("../../secret", "a/../../../secret"):
        assert (files.root / key).read_text() == "x", "the key leads there"
        for read_it in (files.get, files.size):
            with pytest.raises(FileNotFoundError):
                read_it(key)
    assert files.list("a") == []
    with pytest.raises(FileNotFoundError, match="a null character"):
        files.get("a\0")


def test_a_large_document_is_not_read(rank: Path) -> None:
    with open(rank.parents[1] / "run.json", "ab") as file:
        file.truncate(300 << 20)
    (found,) = (brief for brief in read.runs(rank.parents[2]) if brief.status == "unreadable")
    assert "314,572,800 bytes" in str(found.problem)
    used(rank.parents[2])


# ---- tensors and averages ------------------------------------------------------------------------------

FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a shape of terabytes": lambda m: m.update(shape=[6, 1 << 40, 16]),
    "rows of terabytes": lambda m: (m.update(shape=[6, 1 << 40, 16]), m["attributes"].update(size=[1 << 40] * 6)),
    "a length of millions": lambda m: m.update(shape=[10**9, 8, 16]),
    "a shape of text": lambda m: m.update(shape="abc"),
    "a negative shape": lambda m: m.update(shape=[6, -8, 16]),
    "chunks of nothing": lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 0, 0]),
    "chunks of terabytes": lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[1, 1 << 20, 1 << 20]),
    "other dimensions": lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[1]),
    "objects": lambda m: m.update(data_type="O"),
    "a type of another kind": lambda m: m.update(data_type="V1000000000"),
    "steps of text": lambda m: m["attributes"].update(step=["a"] * 6),
    "sizes beyond": lambda m: m["attributes"].update(size=[2**62] * 6),
    "negative sizes": lambda m: m["attributes"].update(size=[-1] * 6),
    "no attributes": lambda m: m.update(attributes=[]),
    "a site of numbers": lambda m: m["attributes"].update(site=3),
    "an odd dtype": lambda m: m["attributes"].update(dtype="__loader__"),
    "a dtype of numbers": lambda m: m["attributes"].update(dtype=3),
    "shards of terabytes": lambda m: m["attributes"].update(offset=[[1 << 39, 1 << 39]] * 6),
    "shards far apart": lambda m: m["attributes"].update(offset=[[10**6, 10**3]] * 6),
    "shapes of text": lambda m: m["attributes"].update(shapes=["ab"] * 6),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_array_is_refused(rank: Path, forgery: str) -> None:
    path = rank / "tensors.zarr" / "activations" / "small" / "data" / "zarr.json"
    document = json.loads(path.read_text())
    FORGED[forgery](document)
    path.write_text(json.dumps(document))
    used(rank.parents[2])
    with pytest.raises(RunError):
        read.open(rank.parents[2], "run").array("activations/small", 3)
    with pytest.raises(RunError):
        read.open(rank.parents[2], "run").tensor("activations/small").isel(step=0).to_numpy()


@pytest.mark.parametrize("path", ["../../../../../../etc", "/etc", "a/../../b", "", "a\0b", 5, None])
def test_an_array_outside_the_run_is_not_read(rank: Path, path: Any) -> None:
    root = rank / "tensors.zarr" / "zarr.json"
    document = json.loads(root.read_text())
    document["attributes"]["arrays"][0]["path"] = path
    root.write_text(json.dumps(document))
    used(rank.parents[2])


class Boom:
    def __reduce__(self) -> Any:
        return (os._exit, (3,))


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, data in members.items():
            made.writestr(f"{name}.npy", data)
    return file.getvalue()


def npy(array: Any, shape: tuple[int, ...] | None = None) -> bytes:
    file = io.BytesIO()
    array = np.asarray(array)
    header = {
        "descr": array.dtype.str,
        "fortran_order": False,
        "shape": array.shape if shape is None else shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def pickled() -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return file.getvalue() + pickle.dumps(Boom())


ONE = {name: npy(np.int64(1)) for name in ("count", "captures", "first_step", "last_step")}
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "a pickle": lambda: pickle.dumps(Boom()),
    "a pickle within": lambda: archive(**ONE, mean=pickled(), std=pickled()),
    "a shape of terabytes": lambda: archive(**ONE, mean=npy(np.zeros(4), (1 << 40,)), std=npy(np.zeros(4))),
    "shapes that differ": lambda: archive(**ONE, mean=npy(np.zeros(4)), std=npy(np.zeros(5))),
    "counts of many": lambda: archive(
        **{**ONE, "count": npy(np.ones(5, np.int64))}, mean=npy(0.0), std=npy(0.0)
    ),
    "negative counts": lambda: archive(**{**ONE, "count": npy(np.int64(-1))}, mean=npy(0.0), std=npy(0.0)),
    "text": lambda: archive(**ONE, mean=npy("abc"), std=npy("abc")),
    "nothing in it": lambda: archive(),
    "no archive": lambda: b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_invalid_average_is_damage(rank: Path, name: str) -> None:
    (path,) = (rank / "averages").rglob("*.npz")
    path.write_bytes(ARCHIVES[name]())
    used(rank.parents[2])
    with pytest.raises(RunError, match="average"):
        read.open(rank.parents[2], "run").average("activations/small")


def test_a_compressed_average_is_not_unpacked(rank: Path) -> None:
    (path,) = (rank / "averages").rglob("*.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in {**ONE, "mean": npy(np.zeros(1 << 20)), "std": npy(np.zeros(1 << 20))}.items():
            made.writestr(f"{name}.npy", data)
    with pytest.raises(RunError, match="average"):
        read.open(rank.parents[2], "run").average("activations/small")


def test_an_average_too_large_to_be_read_is_not_written(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "run")
    average = Average(np.zeros(0), np.zeros(0), 1, 1, (0, 0))
    average._mean = np.lib.stride_tricks.as_strided(
        np.zeros(1), (1 << 25,), (0,)
    )  # 256 MB, of which there are 8 bytes
    writer.average("weights/huge", average)
    writer.close()
    run = read.open(tmp_path)
    assert run.lost == {"weights/huge": 1}
    assert "weights/huge" in run.errors[0]
    assert run.limit_reached_at is None


def test_a_model_of_5000_layers_in_a_chain_can_be_read(tmp_path: Path, child: ModuleType) -> None:
    layers = [{"path": f"l{n}", "from": [f"l{n + 1}"]} for n in range(5000)]
    writer = RunWriter.create(tmp_path, "run", {"model": {"name": "net", "layers": layers}})
    stats = child.records(0)[0].stats
    from fitscope.record import Record

    for name in ("l0", "l4999"):
        writer.write([Record(f"activations/{name}", Moment(0, 0, 0, 1.0), (4, 4), "float32", stats)])
    writer.close()
    found = gathered(read.open(tmp_path))
    assert [row.after for row in found.rows] == [("l4999",), ()]  # there is no l5000


@pytest.mark.parametrize("name", ["run.json", "attempts/0000.json", "a0000/r00000/status.json"])
@pytest.mark.parametrize("half", [b"\\ud800", b"\\udfff\\ud800", b"\xed\xa0\x80"])
def test_a_lone_surrogate_in_a_document_costs_no_other_field(rank: Path, name: str, half: bytes) -> None:
    path = rank.parents[1] / name
    document = json.loads(path.read_text())
    document |= {
        "id": "@",
        "host": "@",
        "status": "@",
        "unseen": {"@": "@"},
        "model": {"name": "@", "layers": [{"path": "@"}]},
    }
    path.write_bytes(json.dumps(document).encode().replace(b"@", half))
    used(rank.parents[2])
    asked = TestClient(app(rank.parents[2], token="t"), base_url="http://127.0.0.1")
    asked.get("/?token=t")
    for question in ("runs", "table", "head?run=run"):
        assert asked.get(f"/api/{question}").status_code in (200, 404)


@pytest.mark.parametrize("name", ["run.json", "attempts/0000.json"])
@pytest.mark.parametrize("field", ["model", "configuration"])
@pytest.mark.parametrize(
    "odd",
    [
        "x", 3, [1], {"layers": [1]}, {"layers": [{"path": "a", "weights": ["kernel"]}]}, {"layers": [{"inbound": [[]]}]},
        {"layers": [{"path": "a", "weights": {"kernel": None}}]}, {"layers": [{"path": "a", "weights": {"k": {"shape": ["x"]}}}]},
        {"outputs": [3]}, {"outputs": [{"layer": []}]},
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::fitscope.FitscopeWarning")
def test_a_forged_description_does_not_break_the_findings(
    rank: Path, name: str, field: str, odd: Any
) -> None:
    path = rank.parents[1] / name
    path.write_text(json.dumps({**json.loads(path.read_text()), field: odd}))
    used(rank.parents[2])
    read.open(rank.parents[2], "run").findings()


@pytest.mark.filterwarnings("ignore::fitscope.FitscopeWarning")
def test_an_average_marked_as_encrypted_is_damage() -> None:
    store = Memory()
    write(store, steps=3)
    key = "run/a0000/r00000/averages/activations/a.npz"
    data = bytearray(store.get(key))
    for match in list(re.finditer(b"PK\x01\x02", bytes(data))):
        data[match.start() + 8] |= 1
    store.put(key, bytes(data))
    with pytest.raises(RunError, match="a damaged file"):
        read.open(store, "run").average("activations/a")
