"""The report in a real browser, from disk and with the network off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

import fitscope as fs
from fitscope.show.data.gather import Gathered
from fitscope.show.report import report, save

from .conftest import BORN, CULPRIT, LAYERS, Watched, pixel, synthetic
from .made import hostile

Look = Callable[..., Page]


def test_a_report_opens_from_disk_without_any_request(
    report_file: Path, look: Look, context: BrowserContext, watched: Watched
) -> None:
    context.set_offline(True)
    page = look(report_file.as_uri())
    assert watched.requests == [report_file.as_uri()]
    expect(page.locator(".finding").first).to_contain_text(f"NaN born here · {CULPRIT} · step {BORN:,}")
    expect(page.locator("#inspector")).to_contain_text("distribution over training")
    expect(page.locator("#status")).to_contain_text("failed")
    assert report_file.stat().st_size < 2_000_000


def test_a_report_can_be_explored(report_file: Path, look: Look) -> None:
    page = look(report_file.as_uri(), "#measure=gradients.rms&layer=gap&step=1")
    row = [name for name, _ in synthetic.names(LAYERS)].index(CULPRIT)
    assert pixel(page, row, BORN + 12) == (255, 0, 179)
    page.locator(".finding", has_text="Dead ReLU units").click()
    expect(page.locator("#inspector h2")).to_have_text("s3b1_bn1")
    page.locator("#mode").select_option("past")
    expect(page.locator("#legend")).to_contain_text("σ")
    page.keyboard.press("j")
    expect(page.locator("#inspector h2")).to_have_text("s3b1_relu1")
    page.reload()
    expect(page.locator("#inspector h2")).to_have_text("s3b1_relu1")


def test_hostile_names_are_shown_as_text_in_a_report(tmp_path: Path, look: Look) -> None:
    hostile(tmp_path / "runs")
    gathered = Gathered(fs.open(tmp_path / "runs"))
    gathered.update()
    page = look(save(tmp_path / "report.html", report(gathered)).as_uri())
    expect(page.locator("#inspector h2")).to_contain_text("<img src=x")
    assert page.locator("img").count() == 0
    assert page.evaluate("() => window.hacked") is None
