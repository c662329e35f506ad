"""The site of the docs in a real browser, opened from disk: it fits phones and desktops, searches, and loads only its own files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from website.build import build

WIDTHS = {"desktop": 1440, "tablet": 1024, "phone": 390}
#: Pages with what may not fit: a large picture, long signatures, wide tables, long code, diagrams.
PAGES = ("index", "api", "rules", "hunts", "how-it-works", "comparison")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.fixture
def visit(browser: Browser, site: Path, watched: Any) -> Any:
    """Opens a page of the site from disk."""
    contexts = []

    def visit(name: str, width: int = 1440, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = watched.watch(context.new_page())
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [url for url in watched.requests if not url.startswith(site.as_uri())] == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_no_page_is_wider_than_the_window(visit: Callable[..., Page], width: int) -> None:
    page = visit("index", width)
    for name in PAGES:
        page.goto(page.url.rpartition("/")[0] + f"/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        missing = page.evaluate(
            "Promise.all([...document.images].map((i) => (i.loading = 'eager', i.decode().then(() => '', () => i.src))))"
        )
        assert "".join(missing) == "", name


def test_the_search_finds_a_section_and_enter_opens_it(visit: Callable[..., Page]) -> None:
    page = visit("recipes/index")
    page.keyboard.press("/")
    page.keyboard.type("dead_relu")
    page.wait_for_selector("#site-results a")
    first = page.locator("#site-results a").first
    assert "dead_relu" in first.inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url("**/rules.html#dead_relu")
    assert page.locator("#dead_relu").is_visible()


def test_the_search_reports_no_results(visit: Callable[..., Page]) -> None:
    page = visit("index", WIDTHS["phone"])
    page.fill("#site-query", "xyzzyplugh")
    page.wait_for_selector("#site-results p")
    assert "xyzzyplugh" in page.inner_text("#site-results")


def test_the_menu_of_a_phone_opens_and_leads_to_a_page(visit: Callable[..., Page]) -> None:
    page = visit("index", WIDTHS["phone"])
    assert not page.locator("#site-sidebar").is_visible()
    page.click("#site-menu")
    page.click("#site-sidebar >> text=Watches")
    page.wait_for_url("**/watches.html")
    assert page.inner_text("h1").startswith("Watches")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_follow_the_system_and_the_button(visit: Callable[..., Page], scheme: str) -> None:
    page = visit("index", scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
    assert page.evaluate(background) == colours[scheme]
    page.click("#site-theme")
    assert page.evaluate(background) == colours[{"light": "dark", "dark": "light"}[scheme]]
