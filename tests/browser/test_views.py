"""Views as people meet them: saved files, and frames in a notebook, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

import fitscope as fs

from . import made
from .conftest import BORN, CULPRIT, Watched, settle, until

Look = Callable[..., Page]

#: Each view, the run it is of, and where in the page it is drawn.
VIEWS: dict[str, tuple[Callable[[fs.Run], fs.View], str, str]] = {
    "spectrogram": (lambda run: run.plot.spectrogram(), "broken", "#heat"),
    "depth": (lambda run: run.plot.depth(step=3000), "broken", "#depth"),
    "series": (lambda run: run.plot.series(f"activations/{CULPRIT}", "rms"), "broken", "#loss"),
    "values": (lambda run: run.plot.values(CULPRIT, step=4000), "broken", "#inspector .values"),
    "histogram": (lambda run: run.plot.histogram(CULPRIT), "broken", "#inspector .spread"),
    "loss": (lambda run: run.plot.loss(), "broken", "#loss"),
    "jumps": (lambda run: run.plot.jumps(step=BORN), "broken", "#samples td"),
    "health": (lambda run: run.plot.health(), "broken", "#samples td"),
    "worst_samples": (lambda run: run.plot.worst_samples(), "sampled", "#samples td"),
    "sample": (lambda run: run.plot.sample("x"), "sampled", "#loss"),
    "predictions": (lambda run: run.plot.predictions(), "sampled", "#samples td"),
    "compare": (lambda run: fs.compare(run, run), "broken", "#heat"),
    "model": (lambda run: run.plot.model(), "broken", "#samples td"),
    "overhead": (lambda run: run.plot.overhead(), "sampled", "#samples td"),
    "summary": (lambda run: run.plot.summary(), "broken", "#heat"),
}


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sampled")
    made.sampled(place)
    return place


def drawn(page: Page, canvas: str) -> int:
    """How many pixels of a canvas are painted."""
    count = """id => {
        const canvas = document.querySelector(id);
        return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.filter((v, i) => i % 4 === 3 && v).length;
    }"""
    return int(page.evaluate(count, canvas))


@pytest.mark.parametrize("name", VIEWS)
def test_a_saved_view_draws_itself(name: str, runs: Path, sampled: Path, tmp_path: Path, look: Look) -> None:
    make, of, part = VIEWS[name]
    run = fs.open(sampled) if of == "sampled" else fs.open(runs, of)
    page = look(make(run).save(tmp_path / "view.html").as_uri())
    shown = page.locator(part).first
    shown.wait_for(state="visible")
    assert page.locator("header").is_hidden() == (name != "summary")
    if part.endswith("td"):
        assert any(text.strip() for text in page.locator(part).all_inner_texts())
    else:
        until(page, lambda: drawn(page, part) > 300)


def test_a_table_aligns_text_left_and_numbers_right_and_has_one_title(
    runs: Path, tmp_path: Path, look: Look
) -> None:
    page = look(fs.open(runs, "broken").plot.health().save(tmp_path / "view.html").as_uri())
    assert page.locator("h1, h2, h3").filter(visible=True).count() == 1
    align = "cells => cells.map((cell) => getComputedStyle(cell).textAlign)"
    layer, kind, *numbers, out = page.locator("#samples tr").nth(1).locator("td").evaluate_all(align)
    assert (layer, kind, out) == ("left", "left", "left")
    assert set(numbers) == {"right"}


def test_a_step_without_moves_says_so(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ("a", "b"), "flat")
    run.add(range(40))
    page = look(fs.open(tmp_path).plot.jumps("activations").save(tmp_path / "view.html").as_uri())
    assert "no layer was 1.5 σ or more" in page.locator("#samples").inner_text()


def test_the_scale_is_drawn_once_a_hidden_frame_gets_a_size(runs: Path, tmp_path: Path, look: Look) -> None:
    """A notebook gives a cell below the window no size at first."""
    page = look(fs.open(runs, "broken").plot.spectrogram().save(tmp_path / "view.html").as_uri())
    page.evaluate(
        "() => { document.getElementById('caption').hidden = true; delete document.getElementById('legend').dataset.key; }"
    )
    page.set_viewport_size({"width": 900, "height": 480})
    settle(page)
    page.evaluate("() => { document.getElementById('caption').hidden = false; }")
    page.set_viewport_size({"width": 901, "height": 481})
    until(page, lambda: drawn(page, "#legend canvas") > 300)


def test_a_saved_depth_profile_shows_the_step_in_its_title(tmp_path: Path, look: Look) -> None:
    made.odd_batches(tmp_path / "runs", spike=1235, dip=3211)
    view = fs.open(tmp_path / "runs").plot.depth("activations", "rms", step=3211)
    page = look(view.save(tmp_path / "view.html").as_uri())
    # The dip, which the steps beside it do not have.
    until(page, lambda: made.long_bars(page) == [True, False, True])


def test_a_view_in_a_notebook_runs_in_its_sandbox(
    runs: Path, tmp_path: Path, context: object, watched: Watched
) -> None:
    frame = fs.open(runs, "broken").plot.spectrogram()._repr_mimebundle_()["text/html"]
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
