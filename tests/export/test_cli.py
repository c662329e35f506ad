"""`fitscope export`, and the page about it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import fitscope as fs
from fitscope.export import FORMATS

pytestmark = pytest.mark.once

PAGE = Path(__file__).parents[2] / "docs/export.md"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from fitscope.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["export", *arguments])


def test_export_writes_the_file_and_prints_its_path(small: fs.Run, call: Any) -> None:
    result = call("csv", "runs", "out.csv", "--site", "loss", "--site", "act*", "--stat", "mean")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"out\.csv \([\d.]+ k?B\)\n", result.stdout)
    assert set(pd.read_csv("out.csv")["site"]) == {"loss", "activations/a"}
    assert call("npy", "runs", "arrays").stdout.startswith("5 files in arrays (")


def test_an_export_error_is_a_message(small: fs.Run, call: Any) -> None:
    for arguments, said in (
        (("cvs", "runs", "o"), "Did you mean 'csv'"),
        (("csv", "nowhere", "o"), "does not exist"),
        (("csv", "runs", "o", "--site", "[red]"), "'[red]'"),
        (("npy", "runs", "."), "--force"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2, arguments
        assert result.stderr.startswith("fitscope: Expected ")
        assert said in result.stderr


def test_export_reports_damage(small: fs.Run, call: Any) -> None:
    next(Path(small.path).glob("**/validation/predictions/data/c.*")).unlink()
    result = call("npy", "runs", "arrays")
    assert result.exit_code == 0
    assert "is not exported" in result.stderr


def test_export_replaces_a_file_only_with_force(small: fs.Run, call: Any) -> None:
    assert call("duckdb", "runs", "all.duckdb").exit_code == 0
    assert call("duckdb", "runs", "all.duckdb").exit_code == 2
    assert call("duckdb", "runs", "all.duckdb", "--force").exit_code == 0


def test_help_names_every_format(call: Any) -> None:
    assert all(name in call("--help").output for name in FORMATS)


def test_every_command_of_the_export_page_works(small: fs.Run, call: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.S) for line in block.splitlines()]
    mine = [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("fitscope export ")]
    assert {arguments[0] for arguments in mine} == set(FORMATS)
    for arguments in mine:
        if arguments[0] == "tensorboard":
            pytest.importorskip("tensorboard", reason="needs the tensorboard package")
        result = call(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
