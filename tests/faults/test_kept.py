"""Nothing is lost in silence: a folder that goes away, a disk that stays full, a limit, a second writer, a wrong clock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.record import Moment, Record
from fitscope.reduce.average import Average
from fitscope.store import RunWriter, reserve

SMALL = ("activations/small", "targets")


def some(child: ModuleType, step: int) -> list[Record]:
    return [record for record in child.records(step) if record.site in SMALL]


def attempt(action: Any, *arguments: Any) -> OSError | None:
    try:
        action(*arguments)
    except OSError as problem:
        return problem
    return None


@pytest.mark.parametrize("gone", ["removed", "renamed"])
def test_a_run_continues_after_its_folder_was_removed(tmp_path: Path, child: ModuleType, gone: str) -> None:
    writer = RunWriter.create(tmp_path, "run", {"model": {"name": "net"}})
    average = Average.empty()
    problems = []
    for step in range(12):
        if step == 6:
            if gone == "removed":
                shutil.rmtree(tmp_path / "run")
            else:
                (tmp_path / "run").rename(tmp_path / "elsewhere")
        average.add(child.value("targets", step), step, batched=True)
        writer.average("targets", average)
        problems += [attempt(writer.write, some(child, step)), attempt(writer.flush)]
    writer.close()
    (told,) = [str(problem) for problem in problems if problem is not None]
    assert "somebody moved or removed it" in told
    run = read.open(tmp_path, "run")
    assert run.model["name"] == "net"
    assert run.status == "complete"
    assert run.series("targets", "min").index.tolist() == list(range(6, 12))
    assert run.tensor("targets")["step"].values.tolist() == list(range(7, 12))
    assert run.lost == dict.fromkeys(SMALL, 13), (
        "six rows and seven tensors: the chunk of the last was begun before"
    )
    assert run.average("targets").captures == 12
    assert run.damaged == []
    if gone == "renamed":
        (tmp_path / "run").rename(tmp_path / "run2")
        assert read.open(tmp_path, "elsewhere").series("targets", "min").index.tolist() == list(range(6))


@pytest.mark.parametrize("gone", ["removed", "renamed"])
def test_a_run_whose_folder_goes_away_after_the_last_flush_can_be_opened(
    tmp_path: Path, child: ModuleType, gone: str
) -> None:
    writer = RunWriter.create(tmp_path, "run", {"model": {"name": "net"}})
    for step in range(6):
        writer.write(some(child, step))
        if step == 3:
            writer.flush()
    if gone == "removed":
        shutil.rmtree(tmp_path / "run")
    else:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="somebody moved or removed it"):
        writer.close()
    run = read.open(tmp_path, "run")
    assert run.model["name"] == "net"
    assert run.status == "complete"
    assert run.series("targets", "min").index.tolist() == [4, 5]
    assert run.lost["targets"] > 0
    assert run.damaged == []


def test_a_run_continues_after_its_disk_was_unmounted(small_disk: Path, child: ModuleType) -> None:
    """In the empty folder below: what was on the disk is still there when it is mounted again."""
    writer = RunWriter.create(small_disk, "run")
    problems = []
    for step in range(8):
        if step == 4:
            subprocess.run(["umount", "--lazy", str(small_disk)], check=True)
        problems += [attempt(writer.write, some(child, step)), attempt(writer.flush)]
    writer.close()
    (told,) = [str(problem) for problem in problems if problem is not None]
    assert "somebody moved or removed it" in told
    run = read.open(small_disk, "run")
    assert run.status == "complete"
    assert run.series("targets", "min").index.tolist() == [4, 5, 6, 7]
    assert run.lost["targets"] > 0
    assert run.damaged == []
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)  # the fixture unmounts


def test_a_disk_that_stays_full_to_the_end_is_reported(small_disk: Path, child: ModuleType) -> None:
    writer = RunWriter.create(small_disk, "run")
    handed: Counter[str] = Counter()
    for step in range(60):
        if step == 10:
            with (
                open(small_disk / "ballast", "wb", buffering=0) as ballast,
                pytest.raises(OSError, match="No space"),
            ):
                while True:
                    ballast.write(bytes(4096))
        batch = some(child, step)
        handed.update(record.site for record in batch)
        problem = attempt(writer.write, batch) or attempt(writer.flush)
        if problem is not None:
            writer.note(error=str(problem))
    attempt(writer.close)
    run = read.open(small_disk)
    assert run.status == "complete"
    assert run.errors_total > 0
    for site in SMALL:
        kept = len(run.series(site, "min")) + run.tensor(site).sizes["step"]
        assert kept + run.lost[site] == 2 * handed[site]
        assert run.lost[site] > 0
    assert list((small_disk / ".tmp").iterdir()) == []


def test_recording_stops_at_the_limit_and_not_before(tmp_path: Path, child: ModuleType) -> None:
    limit = 400_000
    writer = RunWriter.create(tmp_path, "run", limit=limit)
    like = child.records(0)[0].stats
    step = 0
    while not writer.full:
        sites = [f"activations/layer{n}" for n in range(40)]
        writer.write([Record(site, Moment(step, 0, step, 1.0), (8, 16), "float32", like) for site in sites])
        if step % 10 == 9:
            writer.flush()
        step += 1
        assert step < 5000
    writer.close()
    run = read.open(tmp_path)
    used = sum(path.stat().st_size for path in (tmp_path / "run" / "a0000").rglob("*") if path.is_file())
    assert 0.85 * limit < used < 1.05 * limit
    assert run.limit_reached_at == step - 1
    assert len(run.stats) + sum(run.lost.values()) == 40 * step


def test_records_refused_by_a_full_run_are_counted(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "run", limit=100_000)
    writer.refuse(["loss", "weights/a"])
    writer.refuse(["loss"])
    writer.close()
    assert read.open(tmp_path).lost == {"loss": 2, "weights/a": 1}


HOLD = """
import sys, time
from fitscope.store import RunWriter
from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
import numpy as np
writer = RunWriter.create(sys.argv[1], "run")
for step in range(10):
    writer.write([Record("loss", Moment(step, 0, step, 1.0), (), "float32", reduce(np.float32(step)))])
writer.flush()
print("ready", flush=True)
sys.stdin.readline()
for step in range(10, 20):
    writer.write([Record("loss", Moment(step, 0, step, 1.0), (), "float32", reduce(np.float32(step)))])
writer.close()
"""


def loss(step: int) -> Record:
    from fitscope.reduce.oracle import reduce

    return Record("loss", Moment(step, 0, step, 1.0), (), "float32", reduce(np.float32(step)))


def test_two_processes_that_continue_one_run_do_not_hide_each_other(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        second = RunWriter.attempt(tmp_path, "run", start_step=5)
        assert second.id == "run+1"
        assert second.trouble is not None
        assert f"process {first.pid} still writes" in second.trouble
        second.write([loss(step) for step in range(5, 8)])
        second.close()
        first.stdin.write("\n")
        first.stdin.close()
        assert first.wait(60) == 0
    assert read.open(tmp_path, "run").series("loss").index.tolist() == list(range(20))
    assert read.open(tmp_path, "run+1").series("loss").index.tolist() == [5, 6, 7]
    third = RunWriter.attempt(tmp_path, "run", start_step=15)  # nobody writes it now
    assert (third.id, third.number, third.trouble) == ("run", 1, None)
    third.close()


def test_an_attempt_that_recorded_nothing_takes_nothing_from_the_one_before(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "run")
    for step in range(20):
        writer.write([loss(step)])
    writer.close()
    RunWriter.attempt(tmp_path, "run", start_step=5).close("interrupted")
    run = read.open(tmp_path)
    assert run.series("loss").index.tolist() == list(range(20))
    assert run.last_step == 19
    third = RunWriter.attempt(tmp_path, "run", start_step=8)
    third.write([loss(8)])
    third.flush()
    assert run.series("loss").index.tolist() == list(range(9)), "now it does"
    assert run.last_step == 8, "steps that were done again do not count"
    third.close()


def test_a_run_dated_in_the_future_is_not_the_newest(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        RunWriter.create(tmp_path, name).close()
    path = tmp_path / "b" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_ns": time.time_ns() + 10**15}))
    assert read.open(tmp_path).id == "c"
    assert [brief.id for brief in read.runs(tmp_path)] == ["b", "a", "c"]


def test_the_disk_space_reserved_for_the_last_status_is_released(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "run")
    (kept,) = (tmp_path / ".tmp").iterdir()
    assert kept.stat().st_size == reserve.BYTES
    assert os.getpid() == int(kept.name.partition("-")[0])
    writer.close()
    assert list((tmp_path / ".tmp").iterdir()) == []
