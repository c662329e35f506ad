"""A disk that is full, a directory that is taken away: real ones where this machine lets us make them.

Promised: the error comes home as OSError, what was committed stays readable, recording goes on once there is
room again, and whatever is missing is counted by site.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.errors import StoreError
from fitscope.store import Files, RunWriter

SMALL = ("activations/small", "targets")


def attempt(action: Any, *arguments: Any) -> OSError | None:
    try:
        action(*arguments)
    except OSError as problem:
        return problem
    return None


def check(run: read.Run, child: ModuleType, handed: dict[str, set[int]]) -> None:
    """All values there are right, and what is not there is counted."""
    for site, steps in handed.items():
        captured = run.tensor(site)["step"].values.tolist()
        assert set(captured) <= steps
        for step in captured:
            assert np.array_equal(run.array(site, step), child.value(site, step))
        rows = run.series(site, "min")
        assert (rows == rows.index * 10 + 1).all()
        assert len(captured) + len(rows) + run.lost.get(site, 0) == 2 * len(steps)
    assert run.damaged == []


def test_a_disk_that_fills_up_does_not_end_the_training(small_disk: Path, child: ModuleType) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4_500_000))
    writer = RunWriter.create(small_disk, "run")
    handed: dict[str, set[int]] = {}
    problems = []
    for step in range(60):
        batch = [record for record in child.records(step) if "large" not in record.site]
        for record in batch:
            handed.setdefault(record.site, set()).add(step)
        problems += [attempt(writer.write, batch), attempt(writer.flush)]
        if step == 4:
            assert problems == [None] * 10  # so far there was room
        if step == 40:
            assert any(problem is not None and problem.errno == errno.ENOSPC for problem in problems)
            full = read.open(small_disk)
            assert full.status == "running"
            assert full.series("targets", "min").index.tolist()[:5] == [0, 1, 2, 3, 4]
            assert np.array_equal(full.array("activations/middle", 4), child.value("activations/middle", 4))
            ballast.unlink()  # somebody makes room
            shutil.rmtree(small_disk / ".tmp")
    attempt(writer.close)
    run = read.open(small_disk)
    assert run.lost.get("activations/middle", 0) > 0
    check(run, child, handed)
    assert list((small_disk / ".tmp").iterdir()) == []


def test_a_full_disk_at_the_start_does_not_end_the_training(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(8 << 20))
    with pytest.raises(StoreError, match=r"can be written to.*No space left.*free some space"):
        RunWriter.create(small_disk, "run")


def test_a_file_size_limit_does_not_end_the_training(tmp_path: Path) -> None:
    """The other real limit, which needs no privileges: no file over 300 kB."""
    code = """
import resource, runpy, sys
from fitscope.store import RunWriter
child = runpy.run_path(sys.argv[1])
writer = RunWriter.create(sys.argv[2], "run")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for step in range(8):
    for call in (lambda: writer.write(child["records"](step)), writer.flush):
        try: call()
        except OSError as problem: print(problem.errno)
writer.close()
"""
    script = str(Path(__file__).with_name("child.py"))
    out = subprocess.run(
        [sys.executable, "-c", code, script, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == [str(errno.EFBIG)] * 8
    run = read.open(tmp_path)
    assert run.status == "complete"
    assert run.lost == {"activations/middle": 8, "activations/large": 1}
    assert len(run.series("activations/middle", "min")) == 8
    assert run.tensor("activations/small").sizes["step"] == 8


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may do everything, so be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_recording_continues_once_a_lost_permission_is_back(child: ModuleType) -> None:
    import fitscope.read.frames  # nobody may not be allowed to import it later
    import fitscope.read.lazy  # noqa: F401

    place = Path(tempfile.mkdtemp(prefix="fitscope-"))
    try:
        if os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        handed: dict[str, set[int]] = {site: set() for site in SMALL}
        with unprivileged():
            writer = RunWriter.create(place, "run")

            def record(steps: range) -> list[OSError | None]:
                problems = []
                for step in steps:
                    batch = [record for record in child.records(step) if record.site in SMALL]
                    for site in SMALL:
                        handed[site].add(step)
                    problems += [attempt(writer.write, batch), attempt(writer.flush)]
                return problems

            assert not any(record(range(5)))
            folders = [path for path in (place, *place.rglob("*")) if path.is_dir()]
            for folder in folders:
                folder.chmod(0o555)
            problems = record(range(5, 9))
            assert all(isinstance(problem, PermissionError) for problem in problems[1::2])
            assert read.open(place).series("targets", "min").index.tolist() == list(range(5))
            for folder in folders:
                folder.chmod(0o755)
            assert not any(record(range(9, 12)))
            writer.close()
            run = read.open(place)
            assert run.lost == {}  # little enough to wait
            check(run, child, handed)
    finally:
        shutil.rmtree(place)


def test_a_file_in_the_way_of_a_folder_is_reported(tmp_path: Path, child: ModuleType) -> None:
    writer = RunWriter.create(tmp_path, "run")
    tensors = tmp_path / "run" / "a0000" / "r00000" / "tensors.zarr"
    tensors.write_text("not a directory")
    batch = [record for record in child.records(0) if record.site in SMALL]
    writer.write(batch)
    with pytest.raises(OSError):  # noqa: PT011 - NotADirectoryError, or its cousin
        writer.flush()
    assert len(read.open(tmp_path).series("targets", "min")) == 1  # the table does not suffer
    tensors.unlink()
    writer.flush()
    assert np.array_equal(read.open(tmp_path).array("targets", 0), child.value("targets", 0))


def test_a_training_survives_the_deletion_of_its_run(tmp_path: Path, child: ModuleType) -> None:
    writer = RunWriter.create(tmp_path, "run")
    writer.write(child.records(0))
    writer.flush()
    shutil.rmtree(tmp_path)
    for step in range(1, 4):  # it goes on, into a folder that is made again; only the beginning is gone
        writer.write(child.records(step))
        if step == 1:
            with pytest.raises(StoreError, match="somebody moved or removed it"):
                writer.flush()
        else:
            writer.flush()
    writer.close()
    assert read.open(tmp_path).series("targets", "min").index.tolist() == [1, 2, 3]
    assert Files(tmp_path).list("run/a0000/r00000/stats") == [
        "part-000001.parquet",
        "part-000002.parquet",
        "part-000003.parquet",
    ]
