"""Views as people meet them: saved files, and frames in a notebook, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

import fitscope as fs

from .conftest import CULPRIT, Watched

Look = Callable[..., Page]

VIEWS: dict[str, tuple[Callable[[fs.Run], fs.View], str]] = {
    "spectrogram": (fs.spectrogram, "#heat"),
    "depth_profile": (lambda run: fs.depth_profile(run, 3000), "#depth"),
    "layer_series": (lambda run: fs.layer_series(run, CULPRIT), "#loss"),
    "values": (lambda run: fs.values(run, CULPRIT, 4000), "#inspector .values"),
    "batch_loss": (fs.batch_loss, "#loss"),
    "health_table": (fs.health_table, "#samples td"),
    "model_strip": (fs.model_strip, "#strip"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_saved_view_draws_itself(name: str, runs: Path, tmp_path: Path, look: Look) -> None:
    make, part = VIEWS[name]
    page = look(make(fs.open(runs, "broken")).save(tmp_path / "view.html").as_uri())
    shown = page.locator(part).first
    shown.wait_for(state="visible")
    assert page.locator("header").is_hidden()
    if part in ("#heat", "#depth", "#loss", "#strip"):
        painted = "id => document.querySelector(id).getContext('2d').getImageData(0, 0, 400, 100).data.join().length"
        blank = 2 * 4 * 400 * 100 - 1
        assert page.evaluate(painted, part) > blank + 500


def test_a_view_in_a_notebook_runs_in_its_sandbox(
    runs: Path, tmp_path: Path, context: object, watched: Watched
) -> None:
    frame = fs.spectrogram(fs.open(runs, "broken"))._repr_mimebundle_()["text/html"]
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8><p>a cell</p>{frame}", encoding="utf-8")
    page = watched.watch(context.new_page())  # type: ignore[attr-defined]
    page.goto(notebook.as_uri())
    inside = page.frame_locator("iframe")
    inside.locator('body[data-ready="true"]').wait_for()
    heat, caption = (inside.locator(part).bounding_box() for part in ("#heat", "#caption"))
    assert heat
    assert caption
    assert heat["width"] > 300
    assert heat["y"] + heat["height"] <= caption["y"], "one below the other"
