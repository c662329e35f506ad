"""Damaged runs: what can be read is read, what cannot is named. Never a wrong number, never a silent gap."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.errors import FitscopeWarning, RunError
from fitscope.store import RunWriter

PARTS, STEPS_PER_PART = 6, 4


@pytest.fixture
def rank(tmp_path: Path, child: ModuleType) -> Path:
    writer = RunWriter.create(tmp_path, "run")
    for step in range(PARTS * STEPS_PER_PART):
        writer.write([record for record in child.records(step) if "large" not in record.site])
        if step % STEPS_PER_PART == STEPS_PER_PART - 1:
            writer.flush()
    writer.close()
    return tmp_path / "run" / "a0000" / "r00000"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def overwrite_footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[start : start + 30] = bytes(30)
    path.write_bytes(data)


def flip_a_bit(path: Path, column: str = "min") -> None:
    """The nasty one: the part still reads, with another number in it. Only a checksum can tell."""
    whole = path.read_bytes()
    values = pq.read_table(path, columns=[column])[column]
    meta = pq.read_metadata(path).row_group(0)
    chunk = next(c for c in map(meta.column, range(meta.num_columns)) if c.path_in_schema == column)
    for place in range(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size):
        data = bytearray(whole)
        data[place] ^= 0x01
        path.write_bytes(data)
        try:
            after = pq.read_table(path, columns=[column])[column]
            if len(after) == len(values) and not after.equals(values):
                return
        except (OSError, ValueError):
            continue
    raise AssertionError("no bit makes a silent difference")


def replace_by_text(path: Path) -> None:
    path.write_text("hello")


DAMAGES: list[Callable[[Path], None]] = [
    truncate, cut_to_nothing, overwrite_footer, flip_a_bit, replace_by_text,
]  # fmt: skip

#: The steps of parts 2 and 4 are gone.
LEFT = [step for step in range(PARTS * STEPS_PER_PART) if step // STEPS_PER_PART not in (2, 4)]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("first", ["series", "sql", "stats"])
def test_damaged_parts_are_named_and_skipped(rank: Path, damage: Callable[[Path], None], first: str) -> None:
    for number in (2, 4):
        damage(rank / "stats" / f"part-{number:06d}.parquet")
    run = read.open(rank.parents[2])
    query = "select step, min from stats where site = 'targets' order by step"
    look = {
        "series": lambda: run.series("targets", "min").index.tolist(),
        "sql": lambda: run.sql(query)["step"].tolist(),
        "stats": lambda: sorted(set(run.stats["step"])),
    }
    with pytest.warns(FitscopeWarning, match=r"part-00000.\.parquet and 1 more of run 'run' cannot be read"):
        assert look[first]() == LEFT
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        for again in look.values():
            assert again() == LEFT
    assert [damage.name for damage in run.damaged] == [
        f"a0000/r00000/stats/part-00000{n}.parquet" for n in (2, 4)
    ]
    assert all(damage.reason for damage in run.damaged)
    series = run.series("targets", "min")
    assert (series == series.index * 10 + 1).all()
    assert run.tensor("targets").sizes["step"] == PARTS * STEPS_PER_PART  # tensors do not suffer


def test_damage_outside_the_columns_of_a_query_does_no_harm(rank: Path) -> None:
    """A page that nobody needs may be damaged; a query that needs it leaves the whole part out."""
    flip_a_bit(rank / "stats" / "part-000002.parquet", "rms")
    run = read.open(rank.parents[2])
    assert len(run.series("targets", "min")) == PARTS * STEPS_PER_PART
    assert len(run.sql("select min from stats where site = 'targets'")) == PARTS * STEPS_PER_PART
    with pytest.warns(FitscopeWarning, match="part-000002"):
        assert len(run.sql("select max(rms) from stats where site = 'targets' group by step")) == 20


def test_a_repaired_part_is_read_again(rank: Path) -> None:
    part = rank / "stats" / "part-000001.parquet"
    whole = part.read_bytes()
    truncate(part)
    run = read.open(rank.parents[2])
    with pytest.warns(FitscopeWarning):
        assert len(run.series("targets", "min")) == 20
    part.write_bytes(whole)
    assert len(run.refresh().series("targets", "min")) == 24
    assert run.damaged == []


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"attributes": {}}', '{"attributes": {"site": "targets"}}']
)
def test_a_damaged_array_document_costs_its_array(rank: Path, child: ModuleType, content: str) -> None:
    (rank / "tensors.zarr/targets/data/zarr.json").write_text(content)
    run = read.open(rank.parents[2])
    with (
        pytest.warns(FitscopeWarning, match=r"targets/data/zarr\.json of run 'run' cannot be read"),
        pytest.raises(RunError, match=r"Expected tensors of 'targets'.*damaged"),
    ):
        run.tensor("targets")
    assert [damage.name for damage in run.damaged] == ["a0000/r00000/tensors.zarr/targets/data/zarr.json"]
    assert np.array_equal(run.array("activations/small", 3), child.value("activations/small", 3))
    assert len(run.series("targets", "min")) == 24


def test_a_missing_array_document_costs_its_array(rank: Path) -> None:
    (rank / "tensors.zarr/targets/data/zarr.json").unlink()
    run = read.open(rank.parents[2])
    with pytest.warns(FitscopeWarning, match="it is missing"), pytest.raises(RunError, match="damaged"):
        run.tensor("targets")


def flip_one(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [Path.unlink, truncate, flip_one], ids=["missing", "short", "another number"]
)
def test_a_damaged_chunk_costs_its_captures(
    rank: Path, child: ModuleType, damage: Callable[[Path], None]
) -> None:
    damage(rank / "tensors.zarr/activations/middle/data/c.7.0.0")
    run = read.open(rank.parents[2])
    lazy = run.tensor("activations/middle")
    with pytest.raises(
        RunError, match=r"activations/middle.*c\.7\.0\.0.*Other captures and sites can still be read"
    ):
        lazy.sel(step=7).load()
    with pytest.raises(RunError, match="damaged chunk"):
        run.array("activations/middle", 7)
    for step in (6, 8):
        assert np.array_equal(run.array("activations/middle", step), child.value("activations/middle", step))
    assert np.array_equal(run.array("targets", 7), child.value("targets", 7))
    assert [damage.name for damage in run.damaged] == [
        "a0000/r00000/tensors.zarr/activations/middle/data/c.7.0.0"
    ]


def test_a_chunk_older_than_its_index_is_damage(tmp_path: Path, child: ModuleType) -> None:
    """What a power cut can leave of captures that share a chunk: the old chunk is whole, and does not count for the new index."""
    writer = RunWriter.create(tmp_path, "run")
    chunk = tmp_path / "run/a0000/r00000/tensors.zarr/targets/data/c.0.0.0"
    writer.write(child.records(0))
    writer.flush()
    old = chunk.read_bytes()
    writer.write(child.records(1))
    writer.close()
    new = chunk.read_bytes()
    assert np.array_equal(read.open(tmp_path).array("targets", 1), child.value("targets", 1))
    chunk.write_bytes(old)
    run = read.open(tmp_path)
    for step in (0, 1):  # the checksum is that of both
        with pytest.raises(RunError, match=r"c\.0\.0\.0.*its checksum is not the one in the index"):
            run.array("targets", step)
    chunk.write_bytes(new)
    assert np.array_equal(read.open(tmp_path).array("targets", 0), child.value("targets", 0))


def test_a_chunk_newer_than_its_index_is_read(tmp_path: Path, child: ModuleType) -> None:
    """What a reader meets between two puts of a flush: the captures that the index counts are there."""
    writer = RunWriter.create(tmp_path, "run")
    index = tmp_path / "run/a0000/r00000/tensors.zarr/targets/data/zarr.json"
    writer.write(child.records(0))
    writer.flush()
    old = index.read_bytes()
    writer.write(child.records(1))
    writer.close()
    index.write_bytes(old)
    run = read.open(tmp_path)
    assert run.tensor("targets")["step"].values.tolist() == [0]
    assert np.array_equal(run.array("targets", 0), child.value("targets", 0))


def test_runs_without_checksums_are_read(rank: Path, child: ModuleType) -> None:
    for index in (rank / "tensors.zarr").rglob("data/zarr.json"):
        document = json.loads(index.read_text())
        assert document["attributes"].pop("crc32c")
        index.write_text(json.dumps(document))
    run = read.open(rank.parents[2])
    for site in ("activations/middle", "activations/small", "targets"):
        assert np.array_equal(run.array(site, 7), child.value(site, 7))


@pytest.mark.parametrize("sums", [[], "x", {"0.0.0": -1}, {"0.0.0": 2**32}, {"0.0.0": "1"}])
def test_invalid_checksums_are_damage(rank: Path, sums: object) -> None:
    index = rank / "tensors.zarr/targets/data/zarr.json"
    document = json.loads(index.read_text())
    document["attributes"]["crc32c"] = sums
    index.write_text(json.dumps(document))
    with pytest.warns(FitscopeWarning, match="checksums"), pytest.raises(RunError, match="damaged"):
        read.open(rank.parents[2]).tensor("targets")


def test_a_damaged_root_of_tensors_is_named_and_the_arrays_are_read(rank: Path) -> None:
    (rank / "tensors.zarr/zarr.json").write_text("{")
    run = read.open(rank.parents[2])
    with pytest.warns(FitscopeWarning, match=r"tensors\.zarr/zarr\.json"):
        assert run.sites == ["activations/middle", "activations/small", "targets"]
    assert len(run.series("targets", "min")) == 24


def test_a_damaged_status_is_named_and_the_rows_are_read(rank: Path) -> None:
    (rank / "status.json").write_text("{")
    run = read.open(rank.parents[2])
    assert run.status == "interrupted"
    assert [damage.name for damage in run.damaged] == ["a0000/r00000/status.json"]
    with pytest.warns(FitscopeWarning, match=r"status\.json"):
        assert len(run.series("targets", "min")) == 24


def test_a_damaged_attempt_document_is_named_and_the_rows_are_read(rank: Path, child: ModuleType) -> None:
    root = rank.parents[2]
    RunWriter.attempt(root, "run", start_step=24).close()
    (root / "run" / "attempts" / "0001.json").write_text("{")
    run = read.open(root)
    with pytest.warns(FitscopeWarning, match=r"attempts/0001\.json"):
        assert len(run.series("targets", "min")) == 24


def test_foreign_files_do_no_harm(rank: Path) -> None:
    (rank / "stats" / "README.txt").write_text("hello")
    (rank / "stats" / ".DS_Store").write_text("hello")
    (rank.parents[1] / "attempts" / ".DS_Store").write_text("hello")
    run = read.open(rank.parents[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(run.series("targets", "min")) == 24
    assert run.damaged == []


def test_a_document_from_the_future(rank: Path) -> None:
    """A newer minor version may say more; that is no reason to fail."""
    for document in (
        rank / "status.json",
        rank.parents[1] / "run.json",
        rank.parents[1] / "attempts/0000.json",
    ):
        document.write_text(json.dumps({**json.loads(document.read_text()), "novelty": [1, {}]}))
    assert read.open(rank.parents[2]).status == "complete"
