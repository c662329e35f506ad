"""The table of versions is kept where only some of it is tried again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import matrix


def test_the_page_is_kept_without_the_file_of_results(tmp_path: Path) -> None:
    page = matrix.PAGE.read_text(encoding="utf-8")
    lines = matrix.results(tmp_path / "none.jsonl")
    assert len(lines) >= 4
    assert page == f"{matrix.HEAD}{matrix.table(lines)}\n"


def test_a_new_result_replaces_only_its_own_cells(tmp_path: Path) -> None:
    page, results = tmp_path / "versions.md", tmp_path / "matrix.jsonl"
    old = {"name": "newest-jax", "python": "3.12", "versions": "keras 3", "smoke": "passed"}
    other = {"name": "lowest-jax", "python": "3.11", "versions": "keras 2", "smoke": "passed"}
    page.write_text(matrix.table([other, old]), encoding="utf-8")
    new = {"name": "newest-jax", "python": "3.12", "versions": "keras 3", "test_exact": "passed"}
    results.write_text(json.dumps(new) + "\n", encoding="utf-8")
    assert matrix.results(results, page) == [other, old | new]
    results.write_text(json.dumps({**new, "versions": "keras 4"}) + "\n", encoding="utf-8")
    assert matrix.results(results, page) == [other, {**new, "versions": "keras 4"}]


def test_a_nightly_keras_replaces_the_released_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one package under two names: whichever is installed last overwrites the other's files."""
    commands: list[list[str]] = []

    def run(command: list[str], seconds: float, **environment: str) -> tuple[bool, str]:
        commands.append(command)
        (tmp_path / "made").mkdir(exist_ok=True)
        return True, ""

    monkeypatch.setattr(matrix, "run", run)
    (nightly,) = (environment for environment in matrix.ENVIRONMENTS if environment.nightly)
    assert matrix.made(tmp_path / "made", "python", nightly, None) == (True, "")
    *_, install, remove, last = commands
    assert not any(word.startswith("keras") for word in install)
    assert "uninstall" in remove
    assert remove[-1] == "keras"
    assert last[-1] == "keras-nightly"
    assert "--no-deps" in last


def test_a_command_line_that_does_not_start_fails_the_smoke_test(tmp_path: Path) -> None:
    """As with typer 0.12 to 0.15 and a new click: `import fitscope` is fine, and every command fails."""
    (tmp_path / "typer.py").write_text(
        "raise TypeError('Parameter.make_metavar() missing 1 required argument')"
    )
    path = os.pathsep.join((str(tmp_path), str(matrix.ROOT / "src")))
    right, said = matrix.run([sys.executable, "-c", matrix.SMOKE], 300, KERAS_BACKEND="jax", PYTHONPATH=path)
    assert not right
    assert "'show'" in said


def test_the_smoke_test_passes_here() -> None:
    path = str(matrix.ROOT / "src")
    right, said = matrix.run([sys.executable, "-c", matrix.SMOKE], 300, KERAS_BACKEND="jax", PYTHONPATH=path)
    assert right, said
