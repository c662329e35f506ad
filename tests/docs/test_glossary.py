"""The glossary and the architecture page name files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fitscope

PACKAGE = Path(fitscope.__file__).parent
ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    """The classes, functions, methods and attributes that a file defines, such as `Recorder.put`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        found = set(re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", text, re.MULTILINE))
        for start in re.finditer(r"^export class (\w+)", text, re.MULTILINE):
            body = text[start.end() :].partition("\n}\n")[0]
            found |= {f"{start[1]}.{m}" for m in re.findall(r"^  (?:async )?(\w+)\(", body, re.MULTILINE)}
        return found
    found = set()
    for node in ast.parse(text).body:
        found |= defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for inner in node.body for name in defined(inner)}
    return found


def defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


def entries() -> list[tuple[str, str, str]]:
    """The rows of the glossary: word, meaning, where."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \|$", GLOSSARY, re.MULTILINE)
    assert len(rows) > 30
    return rows


def test_the_glossary_is_in_order_and_defines_each_word_once() -> None:
    words = [word for word, _, _ in entries()]
    assert words == sorted(set(words))


@pytest.mark.parametrize(("word", "where"), [(word, where) for word, _, where in entries()])
def test_the_glossary_names_existing_files_and_classes(word: str, where: str) -> None:
    known: set[str] = set()
    for name in re.findall(r"`([^`]+)`", where):
        if "/" in name or name.endswith(".py"):
            assert (PACKAGE / name).is_file(), f"{word}: there is no {name}"
            known |= names_in(PACKAGE / name)
        else:
            assert name in known, f"{word}: {name} is not defined in the file before it"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_link_to_code_is_named_after_its_file(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    wrong = {
        text: target
        for text, target in re.findall(r"\[([^\]]+)\]\(((?:src|tests)/[^)]+)\)", text)
        if not target.rstrip("/").endswith(text.rstrip("/")) or not (ROOT / target).exists()
    }
    assert wrong == {}


def walk(heading: str) -> list[tuple[str, list[str]]]:
    """The hops of a walk: the file, and the names in it."""
    section = ARCHITECTURE.partition(f"### {heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    hops = [line for line in section.splitlines() if re.match(r"\d+\. ", line)]
    assert hops
    found = []
    for hop in hops:
        pieces = re.split(r"\[[^\]]+\]\((src/[^)]+)\)", hop)[1:]
        found += [
            (file, re.findall(r"^ ((?:`[^`]+`(?:, )?)+)", names))
            for file, names in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return [(file, re.findall(r"`([^`]+)`", " ".join(names))) for file, names in found]


@pytest.mark.parametrize(("heading", "most"), [("From `fit` to a file", 25), ("From a file to a pixel", 15)])
def test_the_walk_is_short_and_names_functions_that_exist(heading: str, most: int) -> None:
    hops = walk(heading)
    assert len({file for file, _ in hops}) <= most
    for file, names in hops:
        assert names, f"{file}: which function?"
        assert [name for name in names if name not in names_in(ROOT / file)] == [], file
