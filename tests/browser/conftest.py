"""A real browser: Debian's Chromium, driven by playwright. Every page that a test opens must stay without errors.

Without Chromium the tests fail and say how to get it: a page that nobody looked at is not tested.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import fitscope as fs
from fitscope.show.data.gather import Gathered
from fitscope.show.report import report, save
from fitscope.show.serve import Server

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import synthetic

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--force-color-profile=srgb",
]
SIZE = {"width": 1440, "height": 940}

LAYERS, STEPS = 100, 5000
BORN = 4712  #: the step of the first NaN
CULPRIT = "s3b3_conv1"


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail(
            "These tests need Chromium: apt-get install chromium, or name one in CHROMIUM=/path/to/it",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """What went wrong in the pages of a test."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.refused = False  #: whether it belongs to the test that questions are not answered

    def watch(self, page: Page) -> Page:
        page.on("console", lambda m: self._said(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        return page

    def _said(self, text: str) -> None:
        if not (self.refused and text.startswith("Failed to load resource")):
            self.errors.append(text)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    assert watched.errors == [], "console errors, exceptions or violations of the policy"


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
    yield context
    context.close()


@pytest.fixture
def look(context: BrowserContext, watched: Watched) -> Callable[..., Page]:
    """Opens an address and waits until it is drawn."""

    def look(url: str, after: str = "") -> Page:
        page = watched.watch(context.new_page())
        page.goto(url + after)
        page.wait_for_selector('body[data-ready="true"]', timeout=20_000)
        return page

    return look


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: `healthy`, and the newer `broken`, which ends in NaN."""
    place = tmp_path_factory.mktemp("runs")
    synthetic.write(place, LAYERS, 1500, "healthy", nan=False).close("complete")
    synthetic.write(place, LAYERS, STEPS, "broken").close("failed")
    return place


@pytest.fixture(scope="session")
def server(runs: Path) -> Iterator[Server]:
    with Server(runs, 0, tick=0.2).start() as server:
        yield server


@pytest.fixture(scope="session")
def report_file(runs: Path) -> Path:
    gathered = Gathered(fs.open(runs, "broken"))
    gathered.update()
    return save(runs.parent / "report.html", report(gathered))


def settle(page: Page) -> None:
    """Lets the page do what it has to do by now, and draw it."""
    frame = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
    for _ in range(3):
        page.evaluate(frame)


def until(page: Page, so: Callable[[], bool]) -> None:
    """Waits until something is so, looking after each frame; fails if it never is."""
    deadline = time.monotonic() + 20
    while not so():
        assert time.monotonic() < deadline, "it never came to be"
        settle(page)


def pixel(page: Page, row: int, step: float, *, rows: int = LAYERS) -> tuple[int, int, int]:
    """The colour of the cell of a row at a step, as the canvas has it."""
    return column(page, step, [row], rows=rows)[0]


def column(page: Page, step: float, wanted: list[int], *, rows: int = LAYERS) -> list[tuple[int, int, int]]:
    """The colours of rows in the pixel column of a step, near the top of the row, above its line.

    Of the middle of the column, since it may share its first pixel with the step before.
    """
    found: Any = page.evaluate(
        """([step, wanted, rows]) => {
            const canvas = document.getElementById("heat");
            const g = canvas.getContext("2d");
            const [from, to] = document.body.dataset.span.split(" ").map(Number);
            const x = Math.floor(((step + 0.5 - from) / (to - from)) * canvas.width);
            return wanted.map((row) => [...g.getImageData(x, Math.floor(((row + 0.1) / rows) * canvas.height), 1, 1).data]);
        }""",
        [step, wanted, rows],
    )
    return [(r, g, b) for r, g, b, _ in found]
