"""Runs that somebody forged: each file costs at most itself, in bounded time and memory, and nothing outside is read.

The memory is measured in a process of its own, so that what was used before does not hide what a file takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.errors import FitscopeWarning, RunError
from fitscope.read import untrusted
from fitscope.record import Moment
from fitscope.reduce.average import Average
from fitscope.show.app import Asked, Pages, Shelf
from fitscope.show.data.gather import Gathered
from fitscope.show.report import report
from fitscope.store import Files, RunWriter, decoded, schema
from fitscope.store.tail import Waiting

MOST_MEMORY = 500 << 20  #: bytes that one file may take


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitscopeWarning)  # of damage, which these tests make
        yield


@pytest.fixture
def rank(tmp_path: Path, child: ModuleType) -> Path:
    """A run with rows, tensors and an average, beside a sound one called `other`."""
    for name in ("run", "other"):
        writer = RunWriter.create(tmp_path, name, {"model": {"name": "net", "layers": []}})
        average = Average.empty()
        for step in range(6):
            writer.write([record for record in child.records(step) if "large" not in record.site])
            average.add(child.value("activations/small", step), step, batched=True)
            writer.average("activations/small", average)
            if step % 3 == 2:
                writer.flush()
        writer.close()
    return tmp_path / "run" / "a0000" / "r00000"


def used(runs: Path) -> None:
    """Everything that reads a run, on all runs of a directory. RunErrors are fine, anything else is not."""
    assert {brief.path.rpartition("/")[2] for brief in read.runs(runs)} == {"run", "other"}
    assert len(read.open(runs, "other").series("activations/small", "mean")) == 6
    pages = Pages(Shelf(runs), 1.0, lambda: False)
    for query in ({"run": "run"}, {"run": "other"}):
        try:
            with pages._shelf.run(query["run"]) as g:
                measure = g.measures[0].key if g.measures else ""
                row = g.rows[0].name if g.rows else ""
        except RunError:
            assert query["run"] == "run"
            continue
        for answer in (
            pages.head,
            pages.matrix,
            pages.series,
            pages.moment,
            pages.distribution,
            pages.samples,
        ):
            try:
                answer(Asked({**query, "measure": measure, "row": row}))
            except RunError:
                assert query["run"] == "run"
    try:
        run = read.open(runs, "run")
    except RunError:
        return
    looks: list[Callable[[], Any]] = [
        lambda: repr(run), lambda: run.stats, lambda: run.samples, lambda: run.checkpoints, lambda: run.overhead,
        lambda: run.identity.sentence, lambda: (run.lost, run.dropped, run.unseen, run.errors, run.attempts),
        lambda: run.sql("select count(*) from stats"), lambda: run.average("activations/small"),
        *(lambda site=site: run.histogram(site) for site in run.sites),  # type: ignore[misc]
        *(lambda site=site: run.frame(site) for site in run.sites),  # type: ignore[misc]
        *(lambda site=site: run.tensor(site).values for site in run.sites),  # type: ignore[misc]
    ]  # fmt: skip
    for look in looks:
        with contextlib.suppress(RunError):
            look()


def _gathered(run: read.Run) -> Gathered:
    gathered = Gathered(run)
    gathered.update()
    return gathered


def in_bounds(runs: Path) -> None:
    """`used`, in a process of its own that counts its memory and ends after a minute."""
    here = Path(__file__)
    code = (
        f"import sys, resource, warnings; sys.path[:0] = [{str(here.parent)!r}, {str(here.parents[1])!r}]\n"
        "warnings.simplefilter('ignore')\n"
        "import test_hostile; from pathlib import Path\n"
        f"test_hostile.used(Path({str(runs / 'sound')!r}))\n"  # what all of it takes without any harm
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"test_hostile.used(Path({str(runs)!r}))\n"
        "print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < MOST_MEMORY


# ---- documents ---------------------------------------------------------------------------------------

DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000
ODD: dict[str, Any] = {
    "status": 3, "heartbeat": "now", "pid": "x", "started": [], "step": "many", "rows": -1, "bytes": {}, "lost": [1],
    "dropped": {"a": "b"}, "unseen": 5, "errors": "no", "errors_total": [], "averages": {"a": "../../../x"},
    "identity": {"train": {"status": [], "steps": "x"}}, "checkpoints": [{"step": "a", "path": 1}], "full_at": "x",
    "overhead": {"steps": "x", "cpu_share": [], "budget": {"every": "x", "decisions": 3}}, "ended_by": [],
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
def test_a_field_of_another_type(rank: Path, name: str, field: str) -> None:
    path = rank.parents[1] / name
    path.write_text(json.dumps({**json.loads(path.read_text()), field: ODD[field]}))
    used(rank.parents[2])


def test_a_field_of_another_type_is_named_and_the_others_are_used(rank: Path) -> None:
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
def test_a_pipe_is_not_read(rank: Path, name: str) -> None:
    path = rank.parents[1] / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    used(rank.parents[2])


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
    files = Files(tmp_path / "runs" / "run")
    for key in ("../../secret", "a/../../../secret"):
        with pytest.raises(FileNotFoundError):
            files.get(key)


def test_a_large_document_is_not_read(rank: Path) -> None:
    with open(rank.parents[1] / "run.json", "ab") as file:
        file.truncate(300 << 20)
    (found,) = (brief for brief in read.runs(rank.parents[2]) if brief.status == "unreadable")
    assert "314,572,800 bytes" in str(found.problem)
    used(rank.parents[2])


# ---- rows --------------------------------------------------------------------------------------------


def row(**columns: Any) -> pa.Table:
    """A row of the stats table."""
    made = {
        "step": 0, "epoch": 0, "batch": 0, "time": 1.0, "attempt": 0, "rank": 0, "site": "loss", "kind": "loss",
        "layer": None, "weight": None, "pass": "train", "dtype": "float32", "shape": [], "batched": False, "value": 1.0,
        "count": 1, "mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0, "rms": 1.0, "cosine": None, "zeros": 0,
        "negatives": 0, "nans": 0, "infs": 0, "buckets": [129], "counts": [1],
    } | columns  # fmt: skip
    return pa.Table.from_pylist([made], schema=schema.STATS_SCHEMA)


ROWS: dict[str, Callable[[], pa.Table]] = {
    "buckets beyond the last": lambda: row(buckets=[3000]),
    "buckets below the first": lambda: row(buckets=[-300]),
    "more buckets than counts": lambda: row(buckets=[1, 2], counts=[1]),
    "no buckets": lambda: row(buckets=None),
    "a step that is none": lambda: row(step=None),
    "a site without a name": lambda: row(site=None),
    "the last step there can be": lambda: row(step=2**63 - 1),
    "the first": lambda: row(step=-(2**63)),
    "another attempt": lambda: row(attempt=7, rank=99),
    "epochs far apart": lambda: pa.concat_tables([row(epoch=-(2**31)), row(epoch=2**31 - 1)]),
    "numbers as text": lambda: row().set_column(0, "step", pa.array(["x"])),
    "text as numbers": lambda: row().set_column(6, "site", pa.array([3])),
    "no columns": lambda: pa.table({"x": [1]}),
    "columns more": lambda: row().append_column("y", pa.array([[{"a": 1}]])),
    "a column twice": lambda: pa.table([pa.array([1]), pa.array([2])], names=["step", "step"]),
    "no rows": lambda: schema.STATS_SCHEMA.empty_table(),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_no_writer_writes(rank: Path, name: str) -> None:
    pq.write_table(ROWS[name](), rank / "stats" / "part-000001.parquet")
    used(rank.parents[2])


@pytest.mark.parametrize("said", [b"[]", b"{}", b"[[1,2]]", b'[["a",-5]]', b'[["a",1e9]]', b"x", b"[" * 5000])
def test_a_footer_with_wrong_sites_is_damage(rank: Path, said: bytes) -> None:
    table = row().replace_schema_metadata({"fitscope.sites": said})
    pq.write_table(table, rank / "stats" / "part-000001.parquet")
    used(rank.parents[2])


def bomb_of_values(path: Path) -> None:
    """1.9 MB of Parquet that become 4 GB: rows that are all alike."""
    table = row()
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        many = pa.concat_tables([table] * 1000).combine_chunks()
        many = pa.concat_tables([many] * 1000).combine_chunks()
        for _ in range(8):
            writer.write_table(many, row_group_size=1_000_000)


def bomb_of_names(path: Path) -> None:
    """A name of a megabyte, which a million rows share."""
    names = pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), pa.array(["x" * (1 << 20)]))
    table = pa.concat_tables([row()] * 1000).take(pa.array(np.zeros(1_000_000, np.int64)))
    pq.write_table(
        table.set_column(6, "site", names), path, use_dictionary=["site", "layer"], compression="zstd"
    )


def bomb_of_lists(path: Path) -> None:
    """One histogram with a hundred million buckets."""
    long = pa.array([np.zeros(100_000_000, np.int64)], pa.list_(pa.int64()))
    pq.write_table(row().set_column(27, "counts", long), path, use_dictionary=["counts.list.element"])


def bomb_in_a_page(path: Path) -> None:
    """A footer that says little, and a page that becomes a gigabyte."""
    table = pa.table({"step": np.zeros(1 << 27, np.int64)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    path.write_bytes(sink.getvalue())


@pytest.mark.parametrize("bomb", [bomb_of_values, bomb_of_names, bomb_of_lists, bomb_in_a_page])
def test_a_bomb_of_rows_takes_little_memory(
    rank: Path, bomb: Callable[[Path], None], sound_beside: None
) -> None:
    # Made by a process of its own: making one takes the memory that reading it must not.
    path = rank / "stats" / "part-000001.parquet"
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}; "
    code += f"import test_hostile, pathlib; test_hostile.{bomb.__name__}(pathlib.Path({str(path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert path.stat().st_size < 20_000_000
    in_bounds(rank.parents[2])
    report(_gathered(read.open(rank.parents[2], "run")))


@pytest.fixture
def sound_beside(rank: Path) -> None:
    """The same runs in a folder below, which is none itself."""
    import shutil

    runs = rank.parents[2]
    for name in ("run", "other"):
        shutil.copytree(runs / name, runs / "sound" / name)


def tail_of(table: pa.Table, name: str = "part-000009.parquet", **options: Any) -> bytes:
    """A tail with a checksum that is right, as any hostile hand could make one."""
    import zlib

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    body = sink.getvalue()[len(table.schema.serialize()) :]
    checksum = f"{zlib.crc32(body[:-8]):08x}".encode()
    form = table.schema.with_metadata({b"fitscope.part": name.encode(), b"fitscope.crc32": checksum})
    return form.serialize().to_pybytes() + body


def test_a_tail_is_read_as_a_part_is(rank: Path) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(row(site="loss")))
    assert read.open(rank.parents[2], "run").series("loss").tolist() == [1.0]


@pytest.mark.parametrize("name", ROWS)
def test_a_tail_with_rows_that_no_writer_writes(rank: Path, name: str) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(ROWS[name]()))
    used(rank.parents[2])


@pytest.mark.parametrize("part", ["../../x.parquet", "", "/etc/passwd", "a" * 5000])
def test_a_tail_of_a_part_elsewhere(rank: Path, part: str) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(row(), part))
    used(rank.parents[2])


def test_a_bomb_in_a_tail_is_not_set_off() -> None:
    many = pa.table({"step": np.zeros(50_000_000, np.int64)})
    data = tail_of(many, compression="zstd")
    assert len(data) < 1_000_000
    stream = pa.BufferReader(data)
    pa.ipc.read_message(stream)
    with pytest.raises(decoded.TooLargeError, match="400,000,000 bytes of memory"):
        decoded.message_size(pa.ipc.read_message(stream))


def test_a_buffer_of_a_tail_that_lies_about_its_size() -> None:
    waiting = Waiting(pa.schema([("step", pa.int64())]), None)
    from collections import Counter

    waiting.add(pa.table({"step": np.arange(1000)}), Counter(a=1000))
    data = bytearray(waiting.tail("part-000000.parquet"))
    at = data.rindex(struct.pack("<q", 8000))  # what the compressed buffer says it becomes
    data[at : at + 8] = struct.pack("<q", 1 << 50)
    stream = pa.BufferReader(bytes(data))
    pa.ipc.read_message(stream)
    with pytest.raises(decoded.TooLargeError):
        decoded.message_size(pa.ipc.read_message(stream))


DAMAGED_FOOTERS = """
import random, sys, warnings
sys.path.insert(0, sys.argv[1])
from campaign.ground import write
from fitscope import read
from fitscope.errors import FitscopeError
from fitscope.store import Memory, RunWriter

warnings.simplefilter("ignore")
store = Memory()
write(store, steps=2)
RunWriter.attempt(store, "run", start_step=2).close()
key = "run/a0000/r00000/stats/part-000000.parquet"
whole = store.get(key)
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
unread = 0
for seed in range(500):
    rng, data = random.Random(seed), bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(footer, len(data) - 8)] = rng.randrange(256)
    store.put(key, bytes(data))
    try:
        run = read.open(store, "run")
        run.frame("loss")
    except FitscopeError:
        pass
    unread += len(run.damaged)
print(unread)
"""


def test_a_damaged_footer_does_not_end_the_process() -> None:
    """pyarrow's own objects for a footer do: an exception of C++ that nobody catches."""
    code = [sys.executable, "-c", DAMAGED_FOOTERS, str(Path(__file__).parents[1])]
    done = subprocess.run(code, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert 100 < int(done.stdout) < 500


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


@pytest.mark.parametrize("path", ["../../../../../../etc", "/etc", "a/../../b", "", "a\0b", 5, None])
def test_an_array_elsewhere_is_not_read(rank: Path, path: Any) -> None:
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


def test_a_model_of_a_long_chain(tmp_path: Path, child: ModuleType) -> None:
    layers = [{"path": f"l{n}", "from": [f"l{n + 1}"]} for n in range(5000)]
    writer = RunWriter.create(tmp_path, "run", {"model": {"name": "net", "layers": layers}})
    stats = child.records(0)[0].stats
    from fitscope.record import Record

    for name in ("l0", "l4999"):
        writer.write([Record(f"activations/{name}", Moment(0, 0, 0, 1.0), (4, 4), "float32", stats)])
    writer.close()
    gathered = _gathered(read.open(tmp_path))
    assert [row.after for row in gathered.rows] == [("l4999",), ()]  # there is no l5000
