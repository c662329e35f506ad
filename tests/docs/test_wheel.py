"""The wheel holds the package, all of it and nothing else, and its metadata name what is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import built_wheel as building


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.built(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    assert building.differences(wheel) == []


def test_the_package_index_accepts_the_metadata(wheel: Path) -> None:
    assert building.metadata(wheel) == []


def test_the_wheel_names_its_command_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (facts,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(facts).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "fitscope = fitscope.cli:main" in archive.read(points).decode()
    assert "Version: 0.1.0" in text
    assert "Requires-Python: >=3.11" in text
    assert "Requires-Dist: typer>=0.16" in text
