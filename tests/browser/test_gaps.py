"""Steps that were not recorded: the page shows at every zoom which were, and paints no step as seen that was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fitscope.show.serve import Server

from . import made
from .conftest import pixel, settle
from .looking import Look, heat

GROUND = (214, 217, 222)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 steps with their loss, of which every 100th has layers."""
    place = tmp_path_factory.mktemp("sparse")
    run = made.Growing(place, ("a", "b"))
    for begin in range(0, 1000, 100):
        run.add([begin])
        run.add(range(begin + 1, begin + 100), kinds=())
    run.close()
    return place


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 steps of a training, each 300 apart: nothing is known of the others, not even their loss."""
    place = tmp_path_factory.mktemp("few")
    run = made.Growing(place, ("a",))
    run.add(range(0, 3900, 300))
    run.close()
    return place


@pytest.fixture(scope="module")
def thirds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 steps with their loss, of which every third has layers: what the default records of a short training."""
    place = tmp_path_factory.mktemp("thirds")
    run = made.Growing(place, ("a",))
    for begin in range(0, 240, 3):
        run.add([begin])
        run.add(range(begin + 1, begin + 3), kinds=())
    run.close()
    return place


def pale(colour: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(round(g + 0.3 * (c - g)) for c, g in zip(colour, GROUND, strict=True))


def drawn(page: Page, canvas: str, colour: str) -> int:
    """How many pixels of a canvas are close to a colour of the theme."""
    found = page.evaluate(
        """([id, name]) => {
            const probe = document.createElement("i");
            probe.style.color = `var(--${name})`;
            document.body.append(probe);
            const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
            probe.remove();
            const canvas = document.getElementById(id);
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let i = 0; i < data.length; i += 4)
                found += data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 30;
            return found;
        }""",
        [canvas, colour],
    )
    return int(found)


@pytest.mark.parametrize("span", ["", "&from=100&to=300", "&from=195&to=205"])
def test_a_recorded_step_has_its_colour_and_those_between_are_pale(
    sparse: Path, look: Look, span: str
) -> None:
    with Server(sparse, 0).start() as server:
        page = look(server.url, f"#measure=activations.rms&layer=a&step=0{span}")
        seen, between = pixel(page, 1, 200, rows=2), pixel(page, 1, 203, rows=2)
        assert seen != between
        assert between == pale(seen)
        assert pixel(page, 1, 197, rows=2) == between, "and so before it"


def test_gaps_of_a_few_pixels_make_no_stripes_until_they_are_zoomed_into(thirds: Path, look: Look) -> None:
    with Server(thirds, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=0")
        whole = [pixel(page, 0, step, rows=1) for step in (120, 121, 122)]
        assert whole[1:] == whole[:1] * 2
        page = look(server.url, "#measure=activations.rms&layer=a&step=0&from=100&to=140")
        zoomed = [pixel(page, 0, step, rows=1) for step in (120, 121, 122)]
        assert zoomed[1:] == [pale(zoomed[0])] * 2


def test_caption_legend_and_lane_show_the_recorded_steps(sparse: Path, look: Look) -> None:
    with Server(sparse, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=0")
        expect(page.locator("#span")).to_have_text("step 0 … 999 · 10 of 1,000 steps recorded")
        expect(page.locator("#legend")).to_contain_text("pale: between recorded steps")
        lane = page.evaluate(
            """() => {
                const canvas = document.getElementById("lanes");
                const left = document.getElementById("strip").clientWidth;
                const at = (step) => Math.round(left + (step / 1000) * (canvas.width - left));
                const g = canvas.getContext("2d");
                const filled = (step) => g.getImageData(at(step), canvas.height - 7, 2, 1).data.some((v, i) => i % 4 === 3 && v > 80);
                return [filled(500), filled(550), filled(900)];
            }"""
        )
        assert lane == [True, False, True]


def test_pointing_between_recorded_steps_shows_that_nothing_was_recorded(sparse: Path, look: Look) -> None:
    with Server(sparse, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=0")
        box = heat(page)
        page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 5)
        expect(page.locator("#tip")).to_have_text(
            re.compile(r"a  step 4[45]\d not recorded; before it  step 400  1")
        )
        expect(page.locator("#key")).to_contain_text("each layer at step 400")


def test_few_points_have_dots_and_no_running_median(sparse: Path, few: Path, look: Look) -> None:
    for place, bold in ((few, False), (sparse, True)):
        with Server(place, 0).start() as server:
            page = look(server.url)
            settle(page)
            assert (drawn(page, "loss", "bold") > 100) == bold
            assert drawn(page, "loss", "blue") > 8
            page.close()


def test_the_picture_ends_where_the_training_did(few: Path, look: Look) -> None:
    with Server(few, 0).start() as server:
        page = look(server.url)
        assert page.locator("body").get_attribute("data-span") == "0 3601"
        expect(page.locator("#span")).to_contain_text("13 of 3,601 steps recorded")
