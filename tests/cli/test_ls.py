"""`fitscope ls`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[..., Any]


def test_ls_lists_runs_oldest_first_with_status_steps_and_size(call: Call, write: Any) -> None:
    write(name="first")
    write(name="second", steps=1200, names=(), close="failed")
    write(name="third", close=None)
    lines = call("ls").stdout.splitlines()
    assert lines[0].split() == ["run", "status", "model", "step", "size", "created"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["first", "✓", "complete", "net", "19"],
        ["second", "✖", "failed", "net", "1,199"],
        ["third", "●", "running", "net", "19"],
    ]
    assert "kB" in lines[1]


def test_a_run_that_cannot_be_read_is_listed_with_its_reason(call: Call, write: Any, tmp_path: Path) -> None:
    write(name="good")
    writer = write(name="newer")
    document = Path(writer.path) / "run.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "format": 99}))
    result = call("ls", "runs")
    assert result.exit_code == 0
    assert "good" in result.stdout
    assert "unreadable" in result.stdout
    assert "Upgrade" in result.stdout


def test_ls_shows_hostile_names_as_text(call: Call, write: Any) -> None:
    write(info={"model": {"name": "[red]net[/red]\x1b[31m\nsecond line"}})
    out = call("ls").stdout
    assert "[red]net[/red]\\x1b[31m\\nsecond line" in out
    assert "\x1b" not in out


def test_ls_reports_an_empty_directory(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    result = call("ls")
    assert result.exit_code == 2
    assert "fitscope demo" in result.stderr


def test_ls_cuts_nothing_when_piped(call: Call, write: Any) -> None:
    long = "a-long-name-" * 20
    write(info={"model": {"name": long}})
    assert long in call("ls", COLUMNS="40").stdout
