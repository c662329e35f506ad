"""The rules of the house: how long a file or a function may be, and what lies at the root."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fitscope

ROOT = Path(fitscope.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))
FUNCTION = 50  #: lines
FILE = 300  #: lines, of the files that tend to gather everything
SMALL = [ROOT / "scope.py", *sorted((ROOT / "capture/backends").glob("*.py"))]


def functions(path: Path) -> list[tuple[str, int]]:
    """The functions of a file, with their lengths."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in found]


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {name}": lines
        for path in FILES
        for name, lines in functions(path)
        if lines > FUNCTION
    }
    assert long == {}


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_scope_and_adapters_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < FILE
