"""From a path to a run: the run itself, the newest of a directory, a list."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope import Scope, read
from fitscope.errors import RunError
from fitscope.record import Record
from fitscope.store import Memory, RunWriter

Make = Callable[..., Record]


class TestFind:
    def test_a_directory_opens_its_newest_run(self, tmp_path: Path) -> None:
        for name in ("b", "c", "a"):
            RunWriter.create(tmp_path, name).close()
            time.sleep(0.002)
        (tmp_path / "not-a-run").mkdir()
        assert read.open(tmp_path).id == "a"
        assert read.open(str(tmp_path), run="b").id == "b"
        assert read.open(tmp_path / "c").id == "c"
        assert [brief.id for brief in read.runs(tmp_path)] == ["b", "c", "a"]
        brief = read.runs(tmp_path / "c")[0]
        assert (brief.status, brief.last_step, brief.problem) == ("complete", None, None)

    def test_a_run_is_opened_by_whatever_names_it(self, tmp_path: Path) -> None:
        writer = RunWriter.create(tmp_path, "r")
        writer.close()
        run = read.open(tmp_path)
        assert read.open(read.runs(tmp_path)[0]).path == run.path
        assert read.open(run).path == run.path
        store = Memory()
        RunWriter.create(store, "in-memory").close()
        assert read.open(read.open(store)).id == "in-memory"
        assert read.open(read.runs(store)[0]).id == "in-memory"

    def test_a_scope_names_its_newest_run(self, tmp_path: Path) -> None:
        scope = Scope(tmp_path)
        with pytest.raises(RunError, match=r"Received: <Scope.*has no run yet.*Train"):
            read.open(scope)

    def test_an_unknown_run_names_those_there(self, tmp_path: Path) -> None:
        RunWriter.create(tmp_path, "monday")
        with pytest.raises(RunError, match=r"Received: 'sunday'\. Did you mean 'monday'"):
            read.open(tmp_path, run="sunday")

    def test_a_place_without_runs_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="does not exist"):
            read.open(tmp_path / "nowhere")
        (tmp_path / "runs").mkdir()
        for path in (tmp_path / "run", str(tmp_path / "runns")):
            with pytest.raises(RunError, match=r"does not exist\. Did you mean 'runs'"):
                read.open(path)
        (tmp_path / "runs").rmdir()
        with pytest.raises(RunError, match="which is empty"):
            read.open(tmp_path)
        (tmp_path / "x").write_text("")
        with pytest.raises(RunError, match="with only x"):
            read.open(tmp_path)
        with pytest.raises(RunError, match="is a file"):
            read.open(tmp_path / "x")
        with pytest.raises(RunError, match=r"ftp://x.*Use a plain path"):
            read.open("ftp://x")
        assert not (tmp_path / "nowhere").exists()
        assert read.runs(tmp_path) == []

    def test_a_place_that_cannot_be_read_is_an_error(self, spy: Any) -> None:
        def refuse(key: str) -> None:
            raise PermissionError(13, "Permission denied", key)

        store = Memory()
        RunWriter.create(store, "r")
        with pytest.raises(RunError, match=r"Expected a readable path or URL.*Permission denied"):
            read.open(spy(store, on_get=refuse))

    def test_a_run_of_a_newer_format_is_an_error(self, tmp_path: Path) -> None:
        RunWriter.create(tmp_path, "r").close()
        document = json.loads((tmp_path / "r" / "run.json").read_text())
        (tmp_path / "r" / "run.json").write_text(json.dumps({**document, "format": 3}))
        with pytest.raises(RunError, match=r"format 2 or older.*format 3.*pip install --upgrade fitscope"):
            read.open(tmp_path / "r")
        assert read.runs(tmp_path)[0].status == "unreadable"
        assert "Upgrade" in str(read.runs(tmp_path)[0].problem)

    @pytest.mark.parametrize("content", ["", "{", "[]", "\x00\xff"])
    def test_a_run_with_a_damaged_document_is_an_error(self, tmp_path: Path, content: str) -> None:
        RunWriter.create(tmp_path, "good").close()
        RunWriter.create(tmp_path, "bad").close()
        (tmp_path / "bad" / "run.json").write_text(content)
        with pytest.raises(RunError, match=r"a readable run\.json.*can still be read with pandas"):
            read.open(tmp_path / "bad")
        assert read.open(tmp_path).id == "good"
        assert [(brief.id, brief.status) for brief in read.runs(tmp_path)] == [
            ("bad", "unreadable"),
            ("good", "complete"),
        ]


def test_a_run_in_a_bucket_is_opened_by_its_url(make: Make, s3: str) -> None:
    writer = RunWriter.create(f"{s3}/read", "r")
    writer.write([make("loss", 0, np.float32(1), batched=False)])
    writer.close()
    assert read.open(f"{s3}/read").series("loss").tolist() == [1.0]
    assert read.open(f"{s3}/read/r").path == f"{s3}/read/r"
    with pytest.raises(RunError, match="which is empty"):
        read.open(f"{s3}/nothing-here")
    assert os.environ["AWS_REGION"] == "us-east-1"
