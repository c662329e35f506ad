"""Checks the docs: every Python block runs, in order, page by page; every link has a target; every command is described.

tests/docs/test_api.py checks the API page. A block that cannot run has a comment right above it with the reason:
`<!-- not run: reason -->`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOT_RUN = "<!-- not run: "

#: Where any link to the outside may lead.
OUTSIDE = ("https://", "mailto:")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[int, str]]:
    """The blocks of Python that are to be run, each with the line that it begins at."""
    found, before = [], ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.info.split()[:1] == ["python"] and not before.startswith(NOT_RUN):
            assert token.map is not None
            found.append((token.map[0] + 1, token.content))
        before = token.content.strip() if token.type == "html_block" else ""
    return found


def links(page: Path) -> list[str]:
    """Where a page points to: links and pictures."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    inner = [child for token in tokens for child in token.children or ()]
    return [str(child.attrs[name]) for child in inner for name in ("href", "src") if name in child.attrs]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual hosts make them."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    heads = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    kept = ("".join(c for c in head.lower() if c.isalnum() or c in " -_") for head in heads)
    return {head.replace(" ", "-") for head in kept}


def run_page(page: Path, names: dict[str, Any]) -> None:
    for line, code in blocks(page):
        # Blank lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)


with_code = [page for page in PAGES if blocks(page)]


#: Pages that other tests run: tests/tf1 and tests/legacy, in a process of their own, and test_hunts.py, which looks at the runs.
ELSEWHERE = {
    ROOT / "docs/sessions.md",
    ROOT / "docs/legacy.md",
    ROOT / "docs/hunts.md",
    *ROOT.glob("docs/recipes/tf1-*.md"),
}

recipes = [page for page in with_code if page.parent.name == "recipes" and page not in ELSEWHERE]


@pytest.mark.parametrize(
    "page", [p for p in with_code if p not in (ROOT / "README.md", *recipes, *ELSEWHERE)], ids=name_of
)
def test_every_block_runs(
    page: Path, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, names)


@pytest.mark.per_backend
@pytest.mark.parametrize("page", recipes, ids=name_of)
def test_every_recipe_runs_on_every_backend(
    page: Path, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, names)


@pytest.mark.per_backend
def test_the_readme_runs_on_every_backend_and_its_bug_hunt_names_the_layer(
    names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "README.md", names)
    _, last_block = blocks(ROOT / "README.md")[-1]
    promised = last_block.rstrip().rpartition("# ")[2]
    assert capsys.readouterr().out.splitlines()[-1] == promised == "side"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(OUTSIDE):
            continue
        target, _, anchor = link.partition("#")
        to = (page.parent / target).resolve() if target else page
        assert to.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert to.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(to), f"{link}: no such heading"


def test_every_command_has_a_heading() -> None:
    from fitscope.cli import COMMANDS

    headings = anchors(ROOT / "docs/cli.md")
    assert [c.__name__ for c in COMMANDS if f"fitscope-{c.__name__}" not in headings] == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        inside = (link.partition("#")[0] for link in links(page) if not link.startswith(OUTSIDE))
        todo += [(page.parent / link).resolve() for link in inside if link]
    assert [name_of(page) for page in PAGES if page not in seen] == []


def test_every_example_is_short() -> None:
    for example in (ROOT / "examples").glob("*.py"):
        assert len(example.read_text(encoding="utf-8").splitlines()) < 40, example.name
