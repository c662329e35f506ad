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
