"""Structure within a row of one hue: a line where the row is tall, lightness where it is thin."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from fitscope.show.serve import Server

from . import made
from .conftest import pixel
from .looking import Look


def rising(to: Path, layers: int) -> None:
    """All layers stay near 1; the first rises from there to 1.5."""
    run = made.Growing(to, [f"layer{i}" for i in range(layers)])
    run.add(range(100), lambda step, name: 1 + step / 200 if name == "layer0" else 1.0)
    run.close()


def height_of_line(page: Page, row: int, step: int, *, rows: int, steps: int) -> float:
    """Where the line of a row is at a step, from 0 at the bottom of the row to 1 at its top."""
    found = page.evaluate(
        """([row, step, rows, steps]) => {
            const canvas = document.getElementById("heat");
            const tall = canvas.height / rows;
            const x = Math.floor(((step + 0.5) / steps) * canvas.width);
            const { data } = canvas.getContext("2d").getImageData(x, Math.ceil(row * tall), 1, Math.floor(tall) - 1);
            const light = [...Array(data.length / 4).keys()].map((i) => data[4 * i] + data[4 * i + 1] + data[4 * i + 2]);
            return 1 - light.indexOf(Math.max(...light)) / light.length;
        }""",
        [row, step, rows, steps],
    )
    return float(found)


def test_a_tall_row_draws_its_values_as_a_line_and_keeps_its_colour(tmp_path: Path, look: Look) -> None:
    rising(tmp_path, 3)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=layer2&step=80")
        heights = [height_of_line(page, 0, step, rows=3, steps=100) for step in (5, 50, 95)]
        assert 0.1 < heights[0] < heights[1] - 0.1 < heights[2] - 0.2 < 0.8, heights
        still = [height_of_line(page, 1, step, rows=3, steps=100) for step in (5, 50, 95)]
        assert len(set(still)) == 1, "nothing changed there"
        assert pixel(page, 1, 50, rows=3) == pixel(page, 0, 0, rows=3), "the same value, the same colour"
        expect(page.locator("#key")).to_contain_text("line in each row")


def test_a_thin_row_is_lighter_above_its_median_and_darker_below(tmp_path: Path, look: Look) -> None:
    rising(tmp_path, 60)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=layer30&step=50")
        light = [sum(pixel(page, 0, step, rows=60)) for step in (5, 40, 95)]
        assert light[0] < light[1] - 20 < light[2] - 40, light
        assert pixel(page, 5, 5, rows=60) == pixel(page, 5, 95, rows=60)
        expect(page.locator("#key")).to_contain_text("lighter, darker")
        page.locator("#mode").select_option("start")
        page.wait_for_selector('body[data-shown="activations.rms start 0"]')
        expect(page.locator("#key")).not_to_contain_text("lighter, darker")
