"""The rules of the house: how long a file or a function may be, and what lies at the root."""

from __future__ import annotations

import ast
import pydoc
import re
from pathlib import Path

import pytest

import fitscope

ROOT = Path(fitscope.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))
FUNCTION = 50  #: lines
FILE = 300  #: lines, of the files that tend to gather everything
MOST = 400  #: lines of any file
#: numba caches compiled code by its file and does not notice changes of others, so the kernel is one file.
LONGER = {"reduce/kernel.py"}
#: What lies at the root beside the folders: what users touch, and what crosses every border.
USERS = {"scope", "watch", "schedule", "errors"}
BORDERS = {"record", "sites", "sizes"}
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


def test_no_file_is_too_long() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert {name for name, count in lines.items() if count > MOST} == LONGER


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_scope_and_adapters_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < FILE


def test_the_root_holds_what_users_touch_and_what_crosses_every_border() -> None:
    there = {path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_")}
    assert there == USERS | BORDERS


def test_help_shows_the_public_api_and_calls_the_rest_internal() -> None:
    text = pydoc.render_doc(fitscope, renderer=pydoc.plaintext)
    sections = dict(re.findall(r"^([A-Z][A-Z ]+)\n((?:    .*\n|\s*\n)+)", text, re.MULTILINE))
    documented = re.findall(r"^    class (\w+)", sections["CLASSES"], re.MULTILINE)
    documented += re.findall(r"^    (\w+)\(", sections["FUNCTIONS"], re.MULTILINE)
    documented += re.findall(r"^    ([A-Z]\w+) = ", sections["DATA"], re.MULTILINE)
    public = set(fitscope.__all__) - {"layers", "__version__"}
    assert set(documented) == public
    assert [name for name in public if not re.search(rf"fs\.{name}\b", sections["DESCRIPTION"])] == [
        name
        for name in public
        if name.endswith(("Error", "Warning")) or name in ("Finding", "Run", "Server", "View")
    ]
    # pydoc lists the files of a package, whatever they are called; so the description has to say what they are.
    assert "only `layers` is public" in sections["DESCRIPTION"]


def test_a_class_name_means_one_thing() -> None:
    """The adapters have the same names inside, by design; so their contracts may be called as they are."""
    contracts = (ROOT / "capture/collector.py",)
    where: dict[str, set[str]] = {}
    for path in FILES:
        if path.parent == ROOT / "capture/backends" or path in contracts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert {name: sorted(files) for name, files in where.items() if len(files) > 1} == {}
