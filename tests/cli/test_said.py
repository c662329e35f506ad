"""What the command line says when a window is narrow, a name is wrong or a file cannot be written: all of it, plainly."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import read
from fitscope.export import export_run
from fitscope.show.report import save
from fitscope.store import RunWriter

from .conftest import record, records

Call = Callable[..., Any]


def test_a_number_is_never_cut(call: Call, write: Any) -> None:
    dead = tuple(record("activations/dead", step, np.zeros((3, 3))) for step in range(20))
    write(("conv1", "a_rather_long_name_of_a_layer"), extra=dead)
    wide = set(re.findall(r"[0-9][^\s│]*", call("show", "--width", "200").stdout))
    titles = {"layer", "type", "mean", "activations", "gradients", "update/weight", "zeros"}
    for width in (40, 43, 47, 52, 60, 68, 77, 90, 110):
        out = call("show", "--width", str(width)).stdout
        table = out[out.index("│ layer ") :].splitlines()
        for line in table[:4]:
            assert line.endswith("│")
            assert set(re.findall(r"(?<!\S)[0-9][^\s│]*", line)) <= wide, line
        assert set(table[0].strip("│ ").split()) <= titles


@pytest.mark.parametrize("width", [24, 30, 45, 60, 80])
def test_ls_cuts_no_number_and_keeps_the_names_of_runs(
    call: Call, write: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    write(name="first", steps=1200, names=())
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    wide = call("ls", COLUMNS="200").stdout.split()
    head, line = (
        re.sub(r"\x1b\[[\d;]*m", "", line) for line in call("ls", COLUMNS=str(width)).stdout.splitlines()
    )
    assert line.startswith("first ")
    assert head.startswith("run ")
    assert "…" not in head + line
    assert {*line.split()} <= {re.sub(r"\x1b\[[\d;]*m", "", word) for word in wide}


def test_show_prints_an_rms_of_zero_as_0(call: Call, write: Any) -> None:
    write(extra=tuple(record("activations/dead", step, np.zeros((3, 3))) for step in range(20)))
    out = call("show").stdout
    assert "e-39" not in out
    assert re.search(r"activations, rms +0 ", out)


def test_a_completely_damaged_run_is_not_reported_as_empty(call: Call, write: Any) -> None:
    writer = write()
    for part in Path(writer.path).rglob("*.parquet"):
        part.write_bytes(b"hello")
    out = call("show").stdout
    assert "Nothing was recorded" not in out
    assert "its files are damaged" in out
    assert "damaged, left out" in out


def test_a_place_that_does_not_exist_is_not_served(call: Call) -> None:
    result = call("serve", "nope")
    assert result.exit_code == 2
    assert "'nope', which does not exist" in result.stderr


@pytest.mark.parametrize("command", ["show", "watch"])
def test_a_glob_that_matches_no_layer_lists_the_layers(call: Call, write: Any, command: str) -> None:
    write(("conv1", "head"))
    result = call(command, "runs", "--layers", "nope*")
    assert result.exit_code == 2
    assert "--layers 'nope*'" in result.stderr
    assert "'conv1', 'head'" in result.stderr


def test_copies_are_distinguished_by_their_folders(call: Call, write: Any) -> None:
    writer = write(name="first")
    shutil.copytree(writer.path, Path(writer.path).with_name("copy"))
    lines = call("ls").stdout.splitlines()
    assert sorted(line.split("   ")[0].strip() for line in lines[1:]) == ["copy (first)", "first"]


def test_a_report_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "a" / "b" / "report.html", "text")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "there" / "report.html", "text")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_tensorboard_log_has_the_early_histograms_and_some_of_the_later(tmp_path: Path) -> None:
    event_file_loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    writer = RunWriter.create(tmp_path, "run")
    for step in range(2000):
        writer.write(list(records(["conv1"], step)))
    writer.close()

    def kept(out: str, **options: Any) -> tuple[list[int], int, int]:
        (path,) = export_run(read.open(tmp_path), "tensorboard", tmp_path / out, **options)
        tag, scalar = "activations/conv1/histogram", "activations/conv1/mean"
        found: dict[str, list[int]] = {tag: [], scalar: []}
        for event in event_file_loader.LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag in found:
                    found[value.tag].append(event.step)
        return found[tag], len(found[scalar]), path.stat().st_size

    histograms, scalars, size = kept("log")
    assert scalars == 2000, "every scalar is there"
    assert histograms[:64] == list(range(64))
    assert histograms[-1] > 1950
    assert len(histograms) < 300
    assert size < 2_500_000, "with all histograms it was four times that"
    whole, _, _ = kept("whole", stats=["mean", "histogram"])
    assert whole == list(range(2000)), "who asks for histograms gets them"
