"""Notes and tags of a run, from Python and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fitscope as fs
from fitscope.cli import app
from fitscope.errors import RunError
from fitscope.store import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path, "one", {"notes": {"width": 64}}).close()
    return tmp_path / "one"


def note(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["note", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_notes_begin_as_those_of_the_scope_and_can_be_changed(run: Path) -> None:
    opened = fs.open(run)
    assert opened.notes == {"width": 64}
    opened.notes = "diverged at epoch 3"
    assert fs.open(run).notes == "diverged at epoch 3"
    assert fs.open(run).info["notes"] == {"width": 64}, "run.json never changes"


def test_tags_are_added_once_and_removed(run: Path) -> None:
    fs.open(run).tag("best", "paper").tag("best")
    assert fs.open(run).tags == ["best", "paper"]
    assert fs.open(run).untag("best", "absent").tags == ["paper"]
    assert fs.open(run).notes == {"width": 64}, "tags leave the notes alone"


@pytest.mark.parametrize("tag", ["", " ", "x" * 65, "two\nlines"])
def test_a_tag_is_a_short_text(run: Path, tag: str) -> None:
    with pytest.raises(RunError, match="tags of 1 to 64 characters"):
        fs.open(run).tag(tag)


def test_notes_must_be_json(run: Path) -> None:
    with pytest.raises(RunError, match="JSON data"):
        fs.open(run).notes = {1, 2}


def test_forged_notes_do_not_hide_the_rest_of_the_run(run: Path) -> None:
    (run / "notes.json").write_text('{"tags": ["fine", 3, "bad\\nline"], "notes": 5}')
    assert fs.open(run).tags == ["fine"]
    (run / "notes.json").write_text("[")
    assert fs.open(run).tags == []
    assert fs.open(run).notes == {"width": 64}


def test_fitscope_note_shows_and_changes_notes_and_tags(run: Path) -> None:
    assert "no tags" in note(str(run))
    said = note(str(run), "learning rate too high", "--tag", "lr", "--tag", "bad")
    assert "one: lr, bad\nlearning rate too high" in said
    assert "one: bad" in note(str(run), "--untag", "lr")
    assert fs.open(run).notes == "learning rate too high"
