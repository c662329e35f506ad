"""Odd paths, names, widths and files given to fitscope: each works, or is an error in words. Nothing but a regular file is replaced."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fitscope as fs
from campaign.ground import write
from fitscope.cli import app
from fitscope.errors import FitscopeError, RunError, StoreError
from fitscope.export import FORMATS, export_run
from fitscope.read.run import Run
from fitscope.show.report import save
from fitscope.show.serve import Server
from fitscope.show.text import WIDEST, terminal

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")


class Named:
    """A path whose name is something else."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def __fspath__(self) -> Any:
        return self._name


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "runs", steps=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "runs"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


ODD = [
    "a\0b",
    "\ud800",
    "~nobody-has-this-name/x",
    "x" * 5000,
    b"runs",
    3,
    None,
    [],
    Named(b"runs"),
    Named(3),
    Named("a\0"),
]


@pytest.mark.parametrize("path", ODD, ids=lambda path: ascii(path)[:20])
def test_a_place_that_is_no_path(path: Any) -> None:
    for reader in (fs.open, lambda path: len(fs.runs(path))):
        with pytest.raises(RunError):
            reader(path)
    if not isinstance(path, str) or len(path) < 5000:  # who serves may create it later
        with pytest.raises(StoreError):
            Server(path)
        with pytest.raises(FitscopeError):
            fs.Scope(path)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "~nobody-has-this-name/x", ""])
def test_an_output_that_is_no_path(runs: Path, path: str) -> None:
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(StoreError):
        save(path, "text")
    for name in FORMATS:
        with pytest.raises(StoreError):
            export_run(runs, name, path)
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize("run", [1, float("nan"), b"run", [], "run\0", "../runs/run", ""])
def test_an_id_that_is_none(runs: Path, run: Any) -> None:
    with pytest.raises(RunError, match="the id of a run"):
        fs.open(runs, run)


@on_linux
def test_a_deleted_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RunError):
        fs.open("runs")
    assert call("ls", "runs").exit_code == 2


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        pytest.skip("this user cannot make a device")


@on_linux
@pytest.mark.parametrize("make", [pipe, device])
def test_only_a_regular_file_is_replaced(runs: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "out.html"
    make(path)
    before = path.stat()
    assert call("report", "runs", "--out", str(path)).exit_code == 2
    with pytest.raises(StoreError):
        fs.open(runs).plot.values("activations/a").save(path)
    for name in FORMATS:
        with pytest.raises(StoreError):
            export_run(runs, name, path, force=True)
    assert path.stat().st_mode == before.st_mode
    assert path.stat().st_rdev == before.st_rdev


def test_a_database_called_memory_is_a_file(runs: Path) -> None:
    for name in ("duckdb", "sqlite"):
        assert call("export", name, "runs", ":memory:").exit_code == 0
        assert Path(":memory:").stat().st_size > 0
        Path(":memory:").unlink()


@on_linux
def test_a_folder_whose_name_is_not_utf8(runs: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(runs) + b"/caf\xe9-\xff")
    shutil.copytree(runs / "run", odd)
    run: Run = fs.open(odd)
    assert len(run.series("activations/a", "min")) == 4
    assert run.sql("select count(*) as n from stats")["n"].tolist() == [16]
    assert not run.damaged
    both = fs.runs(runs)
    assert both.sql("select run, count(*) as n from stats group by run order by run")["n"].tolist() == [
        16,
        16,
    ]
    assert len(both.sql("select * from runs")) == 2
    for name in ("csv", "parquet", "duckdb", "sqlite", "npz", "npy"):
        export_run(odd, name, tmp_path / f"out.{name}")
    for command in (["ls", "runs"], ["show", odd], ["check", odd], ["report", odd]):
        assert call(*command).exit_code in (0, 1)


@pytest.mark.parametrize("command", ["ls", "show", "check"])
def test_a_window_that_claims_to_be_huge(runs: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "99999")
    result = call(command, "runs")
    assert result.exit_code in (0, 1)
    assert max(map(len, result.output.splitlines())) <= WIDEST
    assert terminal().width == WIDEST


def test_a_width_that_nobody_can_read(runs: Path) -> None:
    assert call("show", "runs", "--width", "1000000").exit_code == 2
    text = fs.open(runs).plot.values("activations/a").to_text(width=10**6)
    assert max(map(len, text.splitlines())) <= WIDEST


@pytest.mark.parametrize(
    "content", [b"\xb6\xff", b"x = " + b"[" * 100_000, b"[[["], ids=["binary", "deep", "toml"]
)
def test_a_file_of_thresholds_that_is_none(runs: Path, content: bytes) -> None:
    Path("limits.toml").write_bytes(content)
    result = call("check", "runs", "--thresholds", "limits.toml")
    assert result.exit_code == 2
    assert "a TOML file of thresholds" in result.output


@on_linux
def test_thresholds_are_read_from_a_regular_file_of_some_size(runs: Path) -> None:
    os.mkfifo("pipe.toml")
    Path("huge.toml").write_bytes(b"#" * 2_000_000)
    for name in ("pipe.toml", "huge.toml", "/dev/zero", "."):
        result = call("check", "runs", "--thresholds", name)
        assert result.exit_code == 2
        assert "a TOML file of thresholds" in result.output


def test_a_demo_that_cannot_be_recorded_says_so_before_it_trains(runs: Path) -> None:
    Path("file").write_text("")
    result = call("demo", "--to", "file")
    assert result.exit_code == 2
    assert "Expected a directory" in result.output
