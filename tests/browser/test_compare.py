"""Several runs on one page: their losses overlaid, the table of runs, and what only one of two runs has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import fitscope as fs
from fitscope.show.serve import Server

from . import made
from .looking import Look, heat, state


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: `slow` and `fast` of layers a and b, `small` of layer a only."""
    place = tmp_path_factory.mktemp("compared")
    for name, layers, steps, loss, rate in (
        ("slow", ("a", "b"), 100, 4.0, 0.001),
        ("fast", ("a", "b"), 80, 1.0, 0.1),
        ("small", ("a",), 60, 2.0, 0.01),
    ):
        run = made.Growing(place, layers, name, optimizer={"class": "Adam", "learning_rate": rate})
        run.add(range(steps), loss=lambda step, loss=loss: loss)  # type: ignore[misc]
        run.close()
    fs.open(place, "fast").tag("best").notes = {"width": 64}
    return place


@pytest.fixture(scope="module")
def serving(place: Path) -> Iterator[Server]:
    with Server(place, 0).start() as server:
        yield server


def table(page: Page) -> list[str]:
    """The names of the runs in the table, in its order."""
    return [str(row.get_attribute("data-run")) for row in page.locator("#runs-table tbody tr").all()]


def test_the_losses_of_runs_are_overlaid_with_names_and_colours(serving: Server, look: Look) -> None:
    page = look(serving.url, "#run=slow&overlay=fast,small")
    page.wait_for_selector('body[data-overlaid="fast small"]')
    expect(page.locator("#overlay .run")).to_have_text(["net · slow", "net · fast×", "net · small×"])
    colours = page.locator("#overlay .swatch").evaluate_all(
        "(all) => all.map((e) => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colours)) == 3
    drawn = page.evaluate(
        """(colours) => {
            const canvas = document.getElementById("loss");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return colours.map((colour) => {
                const [r, g, b] = colour.match(/\\d+/g).map(Number);
                let found = 0;
                for (let i = 0; i < data.length; i += 4)
                    found += data[i + 3] > 100 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 90;
                return found;
            });
        }""",
        colours[1:],
    )
    assert min(drawn) > 40, drawn
    page.locator("#overlay button").first.click()
    page.wait_for_selector('body[data-overlaid="small"]')
    assert state(page)["overlay"] == "small"


def test_the_table_of_runs_is_sorted_and_filtered_and_opens_a_run(serving: Server, look: Look) -> None:
    page = look(serving.url, "#run=slow")
    page.locator("#runs-button").click()
    page.wait_for_selector("body[data-runs]")
    assert table(page) == ["small", "fast", "slow"], "the newest first"
    expect(page.locator("#runs-table thead")).to_contain_text("learning rate")
    expect(page.locator('#runs-table tr[data-run="fast"]')).to_contain_text("#best")
    for title, order in (
        ("last loss", ["fast", "small", "slow"]),
        ("learning rate", ["slow", "small", "fast"]),
    ):
        button = page.locator("#runs-table th button", has_text=title)
        button.click()
        assert table(page) == order
        button.click()
        assert table(page) == order[::-1], "the other way round"
    page.locator("#runs-filter").fill("width=64")
    assert table(page) == ["fast"]
    expect(page.locator("#runs-count")).to_have_text("1 of 3 runs")
    page.locator('#runs-table tr[data-run="fast"] input').check()
    page.wait_for_selector('body[data-overlaid="fast"]')
    page.locator('#runs-table tr[data-run="fast"] .link').click()
    expect(page.locator("#facts")).to_have_attribute("data-step", "79")
    assert state(page)["run"] == "fast"


def test_layers_that_the_other_run_lacks_are_marked(serving: Server, look: Look) -> None:
    page = look(serving.url, "#run=slow&other=small&mode=run&measure=activations.rms&layer=a&step=0")
    page.wait_for_selector('body[data-shown="activations.rms run 0"]')
    expect(page.locator("#legend")).to_contain_text("not in the other run")
    box = heat(page)
    for x, y, said in (
        (0.3, 0.75, "not in the other run"),
        (0.3, 0.25, "×1.00"),
        (0.9, 0.25, "not in the other run"),
    ):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        expect(page.locator("#tip")).to_contain_text(said)
