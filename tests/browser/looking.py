"""What the tests of the page ask it: its address, where its cells lie, what it has drawn."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

Look = Callable[..., Page]


def state(page: Page) -> dict[str, str]:
    return dict(part.split("=", 1) for part in page.url.partition("#")[2].split("&"))


def heat(page: Page) -> dict[str, float]:
    box = page.locator("#heat").bounding_box()
    assert box is not None
    return dict(box)


def inspected(page: Page, key: str) -> None:
    page.wait_for_selector(f'body[data-inspected="{key}"]')
