"""The site of the docs is complete: every page is in its sidebar and its search, every link resolves, and nothing comes from outside.

tests/browser/test_site.py looks at it in a real browser.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import fitscope as fs

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from website import nav
from website.build import Report, build
from website.links import ROOT, Links, address

#: Attributes that make a browser load something. The `href` of an `<a>` waits for a click.
LOADS = ("src", "srcset", "poster", "data", "action", "background")


class Read(HTMLParser):
    """The links, the loaded addresses and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.twice: set[str] = set()  #: anchors that two elements have
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.twice |= self.anchors & {value or ""}
                self.anchors.add(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name == "href" or name in LOADS:
                self.loaded.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with one report of the gallery instead of five."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "gallery").mkdir()
    for name in ("healthy.html", "healthy.png"):
        (folder / "gallery" / name).write_text("", encoding="utf-8")
    build(folder, {"healthy": Report("healthy.html", "healthy.png", "240 steps")})
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {page: Read(page) for page in site.rglob("*.html")}


def test_every_page_of_the_docs_is_in_the_sidebar() -> None:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    missing = {str(page.relative_to(ROOT)) for page in pages} - set(nav.listed())
    assert not missing, (
        f"Add {sorted(missing)} to NAV in docs/website/nav.py, so that the site has a link to it."
    )


def test_the_sidebar_lists_each_page_once_and_only_pages_that_exist() -> None:
    paths = (*nav.listed(), *nav.LINKED)
    assert len(paths) == len(set(paths))
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_two_pages_never_have_the_same_address() -> None:
    addresses = [address(path).lower() for path in (*nav.listed(), *nav.LINKED)]
    assert len(addresses) == len(set(addresses))


def test_every_link_of_the_site_leads_somewhere(pages: dict[Path, Read]) -> None:
    assert len(pages) > 60
    broken = []
    for page, read in pages.items():
        for link in (*read.links, *read.loaded):
            if link.startswith("https://"):
                continue
            target, _, anchor = unquote(link).partition("#")
            to = (page.parent / target).resolve() if target else page
            if not to.is_file() or (anchor and anchor not in pages[to].anchors):
                broken.append((page.name, link))
    assert broken == []


def test_no_two_elements_of_a_page_share_an_id(pages: dict[Path, Read]) -> None:
    """A heading called "Results" once took the place of the search results."""
    assert {page.name: read.twice for page, read in pages.items() if read.twice} == {}


def test_no_page_loads_anything_from_outside(site: Path, pages: dict[Path, Read]) -> None:
    outside = re.compile(r"(?:https?:)?//", re.IGNORECASE)
    assert [url for read in pages.values() for url in read.loaded if outside.match(url)] == []
    styles = (site / "site.css").read_text(encoding="utf-8")
    assert "@import" not in styles
    assert "url(" not in styles
    assert not outside.search(
        re.sub(r"^\s*//.*$", "", (site / "site.js").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )


def test_the_search_knows_every_page_and_every_public_name(site: Path) -> None:
    text = (site / "search.js").read_text(encoding="utf-8")
    rows = json.loads(text.removeprefix("window.fitscopeDocs=").removesuffix(";\n"))
    assert {address(path) for path in nav.listed()} <= {row[0] for row in rows}
    described = " ".join(f"{row[2]} {row[3]}" for row in rows if row[0].startswith("api.html"))
    assert [name for name in fs.__all__ if f"fs.{name}" not in described] == []


def test_the_gallery_opens_its_reports_and_lists_missing_ones(site: Path, pages: dict[Path, Read]) -> None:
    gallery = site / "gallery.html"
    assert "gallery/healthy.html" in pages[gallery].links
    assert "gallery/healthy.png" in pages[gallery].loaded
    text = gallery.read_text(encoding="utf-8")
    assert "240 steps" in text
    assert text.count("built without the reports") == 4


def test_a_link_out_of_the_repository_stops_the_build_and_names_the_page() -> None:
    with pytest.raises(SystemExit, match=r"docs/api\.md links to nowhere\.md"):
        Links().resolve("nowhere.md", "docs/api.md")


def classes() -> Iterator[str]:
    """The classes that Pygments gives to the code in the docs."""
    from website.markdown import coloured

    for code, language in (
        ("import x\ndef f(): return 'a' + 1  # why", "python"),
        ("pip install x", "console"),
    ):
        yield from re.findall(r'class="(\w+)"', coloured(code, language))


def test_code_is_highlighted_in_colours_that_the_style_defines(site: Path) -> None:
    style = (site / "site.css").read_text(encoding="utf-8")
    found = set(classes())
    assert {"kn", "k", "c1"} <= found
    assert {name for name in ("k", "kn", "nf", "s1", "c1", "mi") if f".{name}" not in style} == set()
