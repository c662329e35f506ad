"""The top of the page and what explains the picture: the header at every width, names of runs, the cursor's numbers, legends."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from fitscope.show.serve import Server

from . import made
from .conftest import settle, until
from .looking import Look, heat

LAYERS = ("conv_a", "dense_b")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of one model, with the names that fitscope gives, and one of a single step."""
    place = tmp_path_factory.mktemp("several")
    for name in ("20260102-030405-678-a1", "20260102-030405-679-b2", "20260102-030406-001-c3"):
        run = made.Growing(place, LAYERS, name)
        run.add(range(30))
        run.close()
    single = made.Growing(place, LAYERS, "single")
    single.add([0])
    single.close()
    return place


@pytest.mark.parametrize("width", [1440, 1100, 1024, 390])
def test_no_text_of_the_header_is_cut_off(several: Path, look: Look, width: int) -> None:
    with Server(several, 0).start() as server:
        page = look(server.url)
        page.set_viewport_size({"width": width, "height": 900})
        until(page, lambda: page.evaluate("() => innerWidth") == width)
        settle(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        cut = page.evaluate(
            """() => [...document.querySelectorAll("header > *, header > label > *")].filter((e) => {
                const box = e.getBoundingClientRect();
                return box.width && (box.right > innerWidth || (e.tagName === "SPAN" && e.scrollWidth > e.clientWidth + 1));
            }).map((e) => e.id || e.tagName)"""
        )
        assert cut == []


def test_runs_of_one_model_have_names_that_differ(several: Path, look: Look) -> None:
    with Server(several, 0).start() as server:
        page = look(server.url)
        names = page.locator("#run option").all_inner_texts()
        assert len(names) == len(set(names)) == 4
        assert all(mark in " ".join(names) for mark in ("a1", "b2", "c3", "single"))
        assert not any("20260102" in name for name in names), "no row of digits"


def test_the_header_shows_loss_and_learning_rate_at_the_cursor(tmp_path: Path, look: Look) -> None:
    made.sampled(tmp_path)  # a rate of 0.1, from step 4 on of 0.025
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=1")
        said = page.locator("#readout")
        expect(said).to_have_text("step 1 · loss not recorded · learning rate 0.1")
        box = heat(page)
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 5)
        expect(said).to_have_text("step 7 · loss not recorded · learning rate 0.025")


def test_the_numbers_at_the_cursor_hide_nothing_and_move_nothing(several: Path, look: Look) -> None:
    """They are above the picture of the loss, on a line of their own where there is little room."""
    with Server(several, 0).start() as server:
        page = look(server.url)
        for width in (1440, 1024, 390):
            page.set_viewport_size({"width": width, "height": 900})
            until(page, lambda width=width: page.evaluate("() => innerWidth") == width)
            page.mouse.move(0, 0)
            settle(page)
            before = heat(page)
            page.mouse.move(before["x"] + before["width"] / 2, before["y"] + 5)
            expect(page.locator("#readout")).to_contain_text("loss")
            assert heat(page) == before
            said, drawn = page.locator("#readout").bounding_box(), page.locator("#loss").bounding_box()
            assert said
            assert drawn
            assert said["y"] + said["height"] <= drawn["y"] + 1


def test_a_run_of_one_step_shows_its_point(several: Path, look: Look) -> None:
    with Server(several, 0).start() as server:
        page = look(server.url, "#run=single")
        blue = page.evaluate(
            """() => {
                const canvas = document.getElementById("loss");
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                let found = 0;
                for (let i = 0; i < data.length; i += 4) found += data[i] < 60 && data[i + 2] > 180 && data[i + 3] > 200;
                return found;
            }"""
        )
        assert blue >= 8, "a dot"


def test_the_legends_name_layer_types_bars_and_line(several: Path, look: Look) -> None:
    with Server(several, 0).start() as server:
        page = look(server.url, "#run=20260102-030405-678-a1&layer=conv_a&step=7")
        expect(page.locator("#key")).to_contain_text("denseeach layer at step 7 (log)its median over the run")
        assert page.locator("#key .swatch").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(scheme: str, several: Path, look: Look) -> None:
    """At least 4.5 to 1 for every colour that text has, as WCAG AA asks for small text."""
    with Server(several, 0).start() as server:
        page = look(server.url)
        page.evaluate("scheme => { document.documentElement.dataset.theme = scheme; }", scheme)
        colour = "name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()"
        texts, grounds = ("text", "faint", "blue", "error", "alarm", "good"), ("back", "panel")
        light = {name: lightness(page.evaluate(colour, name)) for name in (*texts, *grounds)}
        pairs = {f"{text} on {ground}": (light[text], light[ground]) for text in texts for ground in grounds}
        assert {
            what: pair for what, pair in pairs.items() if (max(pair) + 0.05) / (min(pair) + 0.05) < 4.5
        } == {}


def lightness(colour: str) -> float:
    """The relative luminance of `#rrggbb` or `#rgb`."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
