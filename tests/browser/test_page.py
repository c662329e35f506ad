"""The page of a finished run in a real browser: one test for each thing that a person sees, and the pixels that must be there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, expect

from fitscope.show.serve import Server

from . import made
from .conftest import BORN, CULPRIT, LAYERS, Watched, pixel, settle, synthetic, until
from .looking import Look, heat

NAN = (255, 0, 179)
LOWEST, HIGHEST = (68, 1, 84), (253, 231, 37)  # of the scale


INDEX = [name for name, _ in synthetic.names(LAYERS)].index(CULPRIT)


def test_the_verdict_names_the_culprit_first_and_the_cell_is_selected(server: Server, look: Look) -> None:
    page = look(server.url)
    first = page.locator(".finding").first
    expect(first).to_contain_text(f"NaN born here · {CULPRIT} · step {BORN:,}")
    expect(page.locator("#inspector h2")).to_have_text(CULPRIT)
    expect(page.locator("#inspector")).to_contain_text("NaN")
    assert page.locator(".finding.warning").count() >= 1


@pytest.mark.parametrize("mode", ["absolute", "past", "change", "start"])
def test_the_cell_of_the_first_nan_is_pink_at_every_zoom(server: Server, look: Look, mode: str) -> None:
    # Each with the distance of a step before the NaN that shares no pixel with it.
    spans = (("", 30), ("&from=4000&to=5000", 2), ("&from=4700&to=4720", 1))
    for span, before in spans if mode == "absolute" else spans[::2]:
        other = "s1b1_conv1"  # selected, so that no cursor lies on what is looked at
        page = look(server.url, f"#measure=activations.rms&mode={mode}&layer={other}&step=1{span}")
        page.wait_for_selector(f'body[data-shown="activations.rms {mode} {0 if span else 2}"]')
        row = INDEX
        assert pixel(page, row, BORN if span else BORN + 6) == NAN
        assert pixel(page, row, BORN - before) != NAN
        if span.endswith("4720"):
            assert pixel(page, row, BORN) == NAN
            assert pixel(page, row, BORN - 1) != NAN
            assert pixel(page, row + 4, BORN) != NAN, "the others follow a step later"
            assert pixel(page, row + 4, BORN + 1) == NAN
        page.close()


def test_one_batch_spike_and_dip_survive_every_zoom(tmp_path: Path, look: Look) -> None:
    from .made import odd_batches

    steps = odd_batches(tmp_path, spike=1234, dip=3210)
    with Server(tmp_path, 0).start() as server:
        for span, near in (("", None), ("&from=1200&to=1300", 1234), ("&from=3200&to=3300", 3210)):
            page = look(server.url, f"#measure=activations.rms&layer=c&step=0{span}")
            page.wait_for_selector(f'body[data-shown="activations.rms absolute {0 if near else 1}"]')
            if near != 3210:
                assert pixel(page, 0, 1234, rows=3) == HIGHEST, f"the spike at {span!r}"
                assert pixel(page, 0, 1250, rows=3) not in (LOWEST, HIGHEST)
            if near != 1234:
                assert pixel(page, 1, 3210, rows=3) == LOWEST, f"the dip at {span!r}"
                assert pixel(page, 1, 3250, rows=3) not in (LOWEST, HIGHEST)
            page.close()
    assert steps == 4000


def test_a_difference_of_shares_is_not_shown_as_a_factor(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ("a",))
    half = np.array([[0, 1], [0, 1]])
    run.add(range(20), lambda step, name: half if step >= 10 else 1.0)
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.zeros&mode=start&layer=a&step=0")
        expect(page.locator("#legend")).to_contain_text("-100 pp+100 pp")
        box = heat(page)
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
        expect(page.locator("#tip")).to_have_text(re.compile("a  step 1[5-7]  \\+50 pp"))
        page.locator("#measure").select_option("activations.rms")
        expect(page.locator("#legend")).to_contain_text("÷64×64")


def test_epochs_are_marked_in_the_plot_of_the_loss(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ("a",), epoch=70)
    run.add(range(300))
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        drawn = page.evaluate(
            """(steps) => {
                const canvas = document.getElementById("loss");
                const left = document.getElementById("strip").clientWidth;
                const g = canvas.getContext("2d");
                return steps.map((step) => {
                    const x = Math.floor(left + (step / 300) * (canvas.width - left));
                    const { data } = g.getImageData(x - 1, 12, 3, canvas.height - 30);
                    return data.filter((value, i) => i % 4 === 3 && value).length;
                });
            }""",
            [70, 210, 65, 215],  # no other line of the plot is there
        )
        assert min(drawn[:2]) > max(drawn[2:]) + 20, drawn


def test_the_inspector_lists_moved_layers_first_and_the_update_ratio(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path)

    def value(step: int, name: str) -> float:
        return 3.0 if name.startswith("a/") else 100.0 if (step, name) == (30, "a") else 1.0

    run.add(range(30), value)
    run.add([30], value, kinds=("activations/{}", "weights/{}/kernel"))
    run.add([30], lambda step, name: 0.006, kinds=("updates/{}/kernel",))
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=30")
        expect(page.locator("#inspector tr", has_text="update / weight")).to_have_text(
            "update / weight0.002––"
        )
        chip, table = (
            page.locator(f"#inspector {part}").first.bounding_box() for part in (".chips", ".values")
        )
        assert chip
        assert table
        assert chip["y"] < table["y"]


def test_the_page_has_a_light_and_a_dark_theme(server: Server, look: Look, context: BrowserContext) -> None:
    page = look(server.url)
    background = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(13, 17, 23)"
    page.emulate_media(color_scheme="dark")
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_the_page_shows_sampling_cadence_and_thumbnails(tmp_path: Path, look: Look) -> None:
    made.sampled(tmp_path)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=5")
        expect(page.locator("#inspector")).to_contain_text("sampled: 4 of 64 values")
        expect(page.locator("#facts")).to_contain_text(
            "capture costs 1.3 % · every 20 steps (budget 2 %) · bit-identical, proven"
        )
        expect(page.locator("#samples td.picture canvas")).to_have_count(2)
        seen = page.evaluate(
            """() => {
                const g = document.querySelector(".picture canvas").getContext("2d");
                return [[4, 4], [0, 0]].map(([x, y]) => [...g.getImageData(x, y, 1, 1).data]);
            }"""
        )
        assert seen == [[255, 0, 128, 255], [0, 0, 0, 255]]
        lane = page.evaluate(
            """() => {
                const canvas = document.getElementById("lanes");
                const g = canvas.getContext("2d");
                const drawn = (x) => {
                    const column = g.getImageData(x, 0, 1, canvas.height).data;
                    return [...Array(12).keys()].filter((y) => column[4 * y + 2] > column[4 * y] + 60 && column[4 * y + 3] > 100)[0];
                };
                return [canvas.height, drawn(Math.round(canvas.width * 0.3)), drawn(Math.round(canvas.width * 0.8))];
            }"""
        )
        assert lane[0] == 13, "there is no other lane"
        assert lane[1] < lane[2], "it fell"


def test_a_narrow_window_has_no_sideways_scroll(server: Server, look: Look) -> None:
    page = look(server.url)
    page.set_viewport_size({"width": 480, "height": 800})
    until(page, lambda: page.evaluate("() => innerWidth") == 480)
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 480


def test_hostile_names_are_shown_as_text(tmp_path: Path, look: Look, watched: Watched) -> None:
    from .made import hostile

    hostile(tmp_path)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        expect(page.locator("#inspector h2")).to_contain_text("<img src=x")
        assert page.locator("img").count() == 0
        assert page.evaluate("() => window.hacked") is None
        page.keyboard.press("j")
        expect(page.locator("#inspector h2")).to_contain_text("\\u001b")


def test_an_empty_run_and_an_empty_place_have_a_message(
    tmp_path: Path, look: Look, watched: Watched, context: BrowserContext
) -> None:
    from .made import empty

    with Server(tmp_path, 0).start() as server:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector('body[data-ready="failed"]')
        expect(page.locator(".finding.error")).to_contain_text("directory with runs")
        empty(tmp_path)
        page.wait_for_selector('body[data-ready="true"]')
        expect(page.locator("#verdict")).to_contain_text("Nothing was recorded")
