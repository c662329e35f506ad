"""Forged rows, footers and tails: each file costs at most itself, in bounded time and memory.

Memory is measured in a separate process, so that earlier use does not hide the memory of a file.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults.forged import gathered, in_bounds, used
from fitscope import read
from fitscope.show.report import report
from fitscope.store import decoded, schema
from fitscope.store.tail import Waiting

#: Damage is warned about, and these tests make it.
pytestmark = pytest.mark.filterwarnings("ignore::fitscope.errors.FitscopeWarning")


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
def test_rows_that_no_writer_writes_are_damage(rank: Path, name: str) -> None:
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
    code += (
        f"import test_hostile_rows, pathlib; test_hostile_rows.{bomb.__name__}(pathlib.Path({str(path)!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert path.stat().st_size < 20_000_000
    in_bounds(rank.parents[2])
    report(gathered(read.open(rank.parents[2], "run")))


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


def test_a_tail_is_checked_as_a_part_is(rank: Path) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(row(site="loss")))
    assert read.open(rank.parents[2], "run").series("loss").tolist() == [1.0]


@pytest.mark.parametrize("name", ROWS)
def test_impossible_rows_in_a_tail_raise_at_most_run_errors(rank: Path, name: str) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(ROWS[name]()))
    used(rank.parents[2])


@pytest.mark.parametrize("part", ["../../x.parquet", "", "/etc/passwd", "a" * 5000])
def test_a_tail_that_names_a_part_outside_the_run_raises_at_most_run_errors(rank: Path, part: str) -> None:
    (rank / "tail").mkdir()
    (rank / "tail" / "stats.arrow").write_bytes(tail_of(row(), part))
    used(rank.parents[2])


def test_a_bomb_in_a_tail_takes_little_memory() -> None:
    many = pa.table({"step": np.zeros(50_000_000, np.int64)})
    data = tail_of(many, compression="zstd")
    assert len(data) < 1_000_000
    stream = pa.BufferReader(data)
    pa.ipc.read_message(stream)
    with pytest.raises(decoded.TooLargeError, match="400,000,000 bytes of memory"):
        decoded.message_size(pa.ipc.read_message(stream))


def test_a_tail_buffer_with_a_false_size_is_damage() -> None:
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
