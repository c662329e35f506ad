"""The child process that gets killed, and how to check what it left."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fitscope.reduce.average import Average
from fitscope.store import RunWriter


@pytest.fixture(scope="session")
def child() -> ModuleType:
    """`child.py` as a module, for the values it writes."""
    spec = importlib.util.spec_from_file_location("faults_child", Path(__file__).with_name("child.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    mount, place = shutil.which("mount"), tmp_path / "disk"
    place.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


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


@pytest.fixture
def sound_beside(rank: Path) -> None:
    """The same runs in a folder below, which is none itself."""
    runs = rank.parents[2]
    for name in ("run", "other"):
        shutil.copytree(runs / name, runs / "sound" / name)
