"""The page in a real browser: one test for each thing that a person does, and the pixels that must be there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from fitscope.show.serve import Server

from . import made
from .conftest import BORN, CULPRIT, LAYERS, STEPS, Watched, column, pixel, synthetic

NAN = (255, 0, 179)
NOT_RECORDED = ((214, 217, 222), (192, 196, 203))  # striped
INDEX = [name for name, _ in synthetic.names(LAYERS)].index(CULPRIT)
Look = Callable[..., Page]


def state(page: Page) -> dict[str, str]:
    return dict(part.split("=", 1) for part in page.url.partition("#")[2].split("&"))


def heat(page: Page) -> dict[str, float]:
    box = page.locator("#heat").bounding_box()
    assert box is not None
    return dict(box)


def at(page: Page, row: int, step: float, steps: int = STEPS) -> tuple[float, float]:
    """Where a cell is on the screen."""
    box = heat(page)
    return box["x"] + box["width"] * (step + 0.5) / steps, box["y"] + box["height"] * (row + 0.5) / LAYERS


def inspected(page: Page, key: str) -> None:
    page.wait_for_selector(f'body[data-inspected="{key}"]')


def test_the_verdict_names_the_culprit_first_and_the_cell_is_selected(server: Server, look: Look) -> None:
    page = look(server.url)
    first = page.locator(".finding").first
    expect(first).to_contain_text(f"NaN born here · {CULPRIT} · step {BORN:,}")
    expect(page.locator("#inspector h2")).to_have_text(CULPRIT)
    expect(page.locator("#inspector")).to_contain_text("NaN")
    assert page.locator(".finding.warning").count() >= 1


def test_a_click_on_a_finding_selects_its_layer_step_and_statistic(server: Server, look: Look) -> None:
    page = look(server.url)
    card = page.locator(".finding", has_text="Stays zero")
    card.click()
    expect(page.locator("#inspector h2")).to_have_text("s3b1_bn1")
    expect(page.locator("#measure")).to_have_value("activations.zeros")
    expect(card).to_have_attribute("aria-current", "true")
    assert state(page)["layer"] == "s3b1_bn1"
    assert state(page)["step"] == "2201"


@pytest.mark.parametrize("mode", ["absolute", "past", "change", "start"])
def test_the_exact_first_nan_cell_is_pink_at_every_zoom(server: Server, look: Look, mode: str) -> None:
    spans = ("", "&from=4000&to=5000", "&from=4700&to=4720")
    for span in spans if mode == "absolute" else spans[::2]:
        other = "s1b1_conv1"  # selected, so that no cursor lies on what is looked at
        page = look(server.url, f"#measure=activations.rms&mode={mode}&layer={other}&step=1{span}")
        page.wait_for_selector(f'body[data-shown="activations.rms {mode} {0 if span else 2}"]')
        wide = 1 if not span else 0
        row = INDEX
        assert pixel(page, row, BORN + 6 * wide) == NAN
        assert pixel(page, row, BORN - 30 * wide - (0 if wide else 1)) != NAN
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
            plain = pixel(page, 0, 3250 if near == 3210 else 1250, rows=3)
            if near != 3210:
                spike = pixel(page, 0, 1234, rows=3)
                assert sum(spike) > sum(plain) + 60, f"the spike at {span!r}"
            if near != 1234:
                dip = pixel(page, 1, 3210, rows=3)
                assert dip != pixel(page, 1, 3250, rows=3), f"the dip at {span!r}"
            page.close()
    assert steps == 4000


def test_a_click_on_a_cell_selects_it_and_hovering_tells_its_value(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms")
    page.mouse.move(*at(page, 30, 2500))
    tip = page.locator("#tip")
    expect(tip).to_be_visible()
    names = [name for name, _ in synthetic.names(LAYERS)]
    expect(tip).to_contain_text(names[30])
    expect(tip).to_contain_text("step 2,")
    page.mouse.click(*at(page, 30, 2500))
    expect(page.locator("#inspector h2")).to_have_text(names[30])
    assert abs(float(state(page)["step"]) - 2500) <= 8


def test_what_a_pixel_shows_is_what_is_told_selected_and_inspected(tmp_path: Path, look: Look) -> None:
    """A pixel stands for several columns, and a column for several steps: all speak of the one that is seen."""
    steps = made.odd_batches(tmp_path, spike=1235, dip=3211)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=c&step=0")
        page.wait_for_selector('body[data-shown="activations.rms absolute 1"]')
        for row, name, step, seen, exact in (
            (0, "a", 1235, "1000", "1000"),
            (1, "b", 3211, "1.0e-4", "1.0e-4"),
        ):
            box = heat(page)
            x = box["x"] + box["width"] * step / steps
            y = box["y"] + box["height"] * (row + 0.5) / 3
            for near in (0, 1, -1):  # whichever pixel it lies in, by rounding
                page.mouse.move(x + near, y)
                page.wait_for_timeout(300)
                if f"step {step:,}" in str(page.locator("#tip").text_content()):
                    break
            tip = page.locator("#tip")
            expect(tip).to_contain_text(f"{name}  step {step:,}  {seen}")
            page.mouse.click(x + near, y)
            inspected(page, f"{name} {step} activations.rms")
            expect(page.locator("#inspector table")).to_contain_text(exact)
        page.mouse.move(5, 5)
        # The depth profile is of the dip's step: the bar of b is short, and those beside it are not.
        page.wait_for_timeout(300)
        assert made.long_bars(page) == [True, False, True]


def test_a_click_on_the_strip_selects_a_layer(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms&layer=gap&step=700")
    strip = page.locator("#strip").bounding_box()
    assert strip
    page.mouse.click(strip["x"] + 100, strip["y"] + strip["height"] * 30.5 / LAYERS)
    inspected(page, f"{synthetic.names(LAYERS)[30][0]} 700 gradients.rms")


def test_a_click_on_what_moved_selects_that_layer_at_the_same_step(server: Server, look: Look) -> None:
    page = look(server.url, f"#measure=activations.rms&layer=gap&step={BORN}")
    inspected(page, f"gap {BORN} activations.rms")
    chip = page.locator("#inspector .chips button", has_text=CULPRIT)
    expect(chip).to_have_text(f"{CULPRIT} → NaN")
    chip.click()
    inspected(page, f"{CULPRIT} {BORN} activations.rms")
    expect(page.locator("#inspector h2")).to_have_text(CULPRIT)


def test_dragging_zooms_the_wheel_zooms_and_a_double_click_shows_all(server: Server, look: Look) -> None:
    page = look(server.url)
    page.mouse.move(*at(page, 50, 1000))
    page.mouse.down()
    page.mouse.move(*at(page, 50, 2000), steps=4)
    page.mouse.up()
    page.wait_for_selector('body[data-span^="1"]')
    begin, end = float(state(page)["from"]), float(state(page)["to"])
    assert abs(begin - 1000) < 20
    assert abs(end - 2000) < 20
    page.mouse.wheel(0, -100)
    page.wait_for_timeout(200)
    assert float(state(page)["to"]) - float(state(page)["from"]) < end - begin
    page.mouse.dblclick(*at(page, 50, 1000))
    page.wait_for_selector('body[data-span="0 5000"]')
    assert "from" not in state(page)


def test_keys_move_the_selection(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms&layer=s1b1_conv1&step=1000")
    inspected(page, "s1b1_conv1 1000 gradients.rms")
    for key, layer in (("j", "s1b1_bn1"), ("k", "s1b1_conv1")):
        page.keyboard.press(key)
        expect(page.locator("#inspector h2")).to_have_text(layer)
    for keys, step in (("l", 1001), ("ll", 1003), ("hhhh", 999)):
        for key in keys:
            page.keyboard.press(key)
        inspected(page, f"s1b1_conv1 {step} gradients.rms")
    page.keyboard.press("n")
    expect(page.locator("#inspector h2")).to_have_text(CULPRIT)
    page.keyboard.press("n")
    expect(page.locator("#inspector h2")).to_have_text("s3b1_bn1")
    page.keyboard.press("p")
    expect(page.locator("#inspector h2")).to_have_text(CULPRIT)
    page.keyboard.press("z")
    page.wait_for_timeout(100)
    assert float(state(page)["from"]) < BORN < float(state(page)["to"])
    page.keyboard.press("0")
    assert "from" not in state(page)
    page.keyboard.press("/")
    page.keyboard.type("s2b2_add")
    page.keyboard.press("Enter")
    expect(page.locator("#inspector h2")).to_have_text("s2b2_add")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_every_finding_is_reached_by_key_and_by_click(tmp_path: Path, look: Look) -> None:
    """Two in one cell, and one that is about no layer while a layer is selected."""
    run = made.Growing(tmp_path)
    wild = np.array([[np.nan, np.inf], [1, 1]])
    run.add(
        range(90),
        lambda step, name: wild if (step, name) == (80, "b") else 1.0,
        lambda step: 500.0 if step == 60 else 1.0 + 0.01 * (step % 2),
    )
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        cards = page.locator(".finding")
        titles = cards.all_inner_texts()
        assert len(titles) == 3, titles
        expect(cards.nth(0)).to_have_attribute("aria-current", "true")
        for key, order in (("n", (1, 2, 0, 1)), ("p", (0, 2, 1, 0))):
            for i in order:
                page.keyboard.press(key)
                expect(cards.nth(i)).to_have_attribute("aria-current", "true")
                expect(page.locator('.finding[aria-current="true"]')).to_have_count(1)
        for i in (2, 1, 0):
            cards.nth(i).click()
            expect(cards.nth(i)).to_have_attribute("aria-current", "true")
        page.keyboard.press("k")
        expect(page.locator('.finding[aria-current="true"]')).to_have_count(0)


def test_the_address_restores_the_selection(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=activations.zeros&mode=start&layer=s2b1_bn1&step=800&from=500&to=1500")
    inspected(page, "s2b1_bn1 800 activations.zeros")
    expect(page.locator("#mode")).to_have_value("start")
    before = state(page)
    page.reload()
    inspected(page, "s2b1_bn1 800 activations.zeros")
    assert state(page) == before
    assert page.locator("body").get_attribute("data-span") == "500 1500"


def test_another_statistic_and_colour_can_be_chosen(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms&layer=gap&step=1")
    one = pixel(page, 40, 3000)
    page.locator("#mode").select_option("past")
    page.wait_for_selector('body[data-shown="gradients.rms past 2"]')
    assert pixel(page, 40, 3000) != one
    page.locator("#measure").select_option("activations.zeros")
    expect(page.locator("#legend")).to_contain_text("σ")
    assert state(page)["measure"] == "activations.zeros"


def test_a_difference_of_shares_is_no_factor(tmp_path: Path, look: Look) -> None:
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


def test_the_inspector_tells_first_what_moved_and_how_far_the_weights_went(
    tmp_path: Path, look: Look
) -> None:
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


def test_two_runs_can_be_compared_and_another_chosen(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms&layer=gap&step=1")
    page.locator("#other").select_option("healthy")
    expect(page.locator("#mode")).to_have_value("run")
    page.wait_for_selector('body[data-shown="gradients.rms run 2"]')
    assert pixel(page, 40, 4000) in NOT_RECORDED, "beyond the end of the other run: not recorded"
    assert state(page)["other"] == "healthy"
    page.locator("#run").select_option("healthy")
    expect(page.locator("#facts")).to_have_attribute("data-step", "1499")
    expect(page.locator("#status")).to_contain_text("complete")


def test_light_and_dark(server: Server, look: Look, context: BrowserContext) -> None:
    page = look(server.url)
    background = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(13, 17, 23)"
    page.emulate_media(color_scheme="dark")
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_what_was_sampled_and_how_often_is_said_and_samples_have_pictures(tmp_path: Path, look: Look) -> None:
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
    page.wait_for_timeout(100)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 480


def test_the_page_grows_with_the_run_in_small_ticks(tmp_path: Path, look: Look) -> None:
    writer = synthetic.write(tmp_path, LAYERS, 400, nan=False)
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url, "#measure=gradients.rms&layer=gap&step=0")
        expect(page.locator("#facts")).to_have_attribute("data-step", "399")
        expect(page.locator("#status")).to_contain_text("live")
        page.wait_for_selector("body[data-tick]")
        sizes = []
        for end in (500, 600, 700):
            synthetic.write(tmp_path, LAYERS, end, nan=False, first=end - 100, writer=writer)
            page.wait_for_selector(f'#facts[data-step="{end - 1}"]')
            sizes.append(int(page.locator("body").get_attribute("data-tick-bytes") or 0))
        assert pixel(page, 40, 690) != (255, 255, 255)
        begin, end = map(float, str(page.locator("body").get_attribute("data-span")).split())
        assert begin == 0
        assert 700 <= end <= 702, "what is on show moves by whole pixels"
        assert max(sizes) < 2 * min(sizes), "a tick does not grow with the run"
        synthetic.write(tmp_path, LAYERS, 5000, first=4600, writer=writer)
        expect(page.locator(".finding.error")).to_contain_text("NaN born here")
    writer.close()


def test_a_picture_that_becomes_too_fine_is_made_coarser(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ("a",))
    run.add(range(2040))
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=0")
        page.wait_for_selector('body[data-shown="activations.rms absolute 0"]')
        run.add(range(2040, 2100), lambda step, name: 1e3 if step == 2071 else 1.0)
        page.wait_for_selector('body[data-shown="activations.rms absolute 1"]')
        run.add(range(2100, 2150))
        page.wait_for_selector('#facts[data-step="2149"]')
        assert sum(pixel(page, 0, 2071, rows=1)) > sum(pixel(page, 0, 2000, rows=1)) + 60
    run.close()


def test_what_ticks_painted_is_what_a_page_opened_now_paints(tmp_path: Path, look: Look) -> None:
    """Ticks paint only the pixels that changed, where the stretch on show stays the same."""
    writer = synthetic.write(tmp_path, LAYERS, 1800, nan=False)
    with Server(tmp_path, 0, tick=0.1).start() as server:
        # Beyond the end there is room to grow into, so the pixels of the steps do not move.
        chosen = "#measure=gradients.rms&mode=absolute&layer=gap&step=0&from=0&to=2000"
        page = look(server.url, chosen)
        page.wait_for_selector("body[data-tick]")
        for first, end in ((1800, 1801), (1801, 1830), (1830, 1950)):
            synthetic.write(tmp_path, LAYERS, end, nan=False, first=first, writer=writer)
            page.wait_for_selector(f'#facts[data-step="{end - 1}"]')
        fresh = look(server.url, chosen)
        seen, anew = (
            [column(p, step, [*range(LAYERS)]) for step in (0, 900, *range(1780, 1960, 2))]
            for p in (page, fresh)
        )
        assert seen == anew
        assert pixel(page, 40, 1949) != pixel(page, 40, 1990), "grown, and nothing beyond"
    writer.close()


def test_a_real_training_is_seen_live(tmp_path: Path, look: Look) -> None:
    """`fit` runs in another process; the page shows its steps while it goes on."""
    code = """
import sys, numpy as np, keras, fitscope as fs
layers = [keras.layers.Dense(16, activation="relu", name="hidden"), keras.layers.Dense(1, name="head")]
model = keras.Sequential([keras.layers.Input((8,)), *layers])
model.compile("sgd", "mse")
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        import time; time.sleep(0.01)
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
model.fit(x, x[:, :1], batch_size=8, epochs=400, verbose=0, callbacks=[fs.Scope(sys.argv[1], every=2), Slow()])
"""
    training = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "KERAS_BACKEND": "jax"}
    )
    try:
        with Server(tmp_path, 0, tick=0.3).start() as server:
            import time

            from fitscope.read import runs

            until = time.monotonic() + 90
            while not any(brief.last_step for brief in runs(tmp_path)):
                assert training.poll() is None, "the training failed"
                assert time.monotonic() < until
                time.sleep(0.2)
            page = look(server.url)
            first = int(page.locator("#facts").get_attribute("data-step") or 0)
            expect(page.locator("#status")).to_contain_text("live")
            page.wait_for_selector(f'#facts:not([data-step="{first}"])', timeout=30_000)
            assert int(page.locator("#facts").get_attribute("data-step") or 0) > first
            expect(page.locator("#layers option")).to_have_count(2)
    finally:
        training.kill()
        training.wait()


def test_hostile_names_are_text(tmp_path: Path, look: Look, watched: Watched) -> None:
    from .made import hostile

    hostile(tmp_path)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        expect(page.locator("#inspector h2")).to_contain_text("<img src=x")
        assert page.locator("img").count() == 0
        assert page.evaluate("() => window.hacked") is None
        page.keyboard.press("j")
        expect(page.locator("#inspector h2")).to_contain_text("\\u001b")


def test_an_empty_run_and_an_empty_place_say_so(
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


def test_a_page_opened_before_the_first_rows_shows_them_when_they_come(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path)
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url)
        expect(page.locator("#status")).to_contain_text("live")
        expect(page.locator("#verdict")).to_contain_text("Waiting for the first steps")
        run.add(range(20))
        page.wait_for_selector('body[data-shown="activations.rms absolute 0"]')
        expect(page.locator("#verdict")).to_contain_text("Nothing stands out")
        assert pixel(page, 0, 10, rows=2) != (0, 0, 0), "drawn"
        run.add(range(20, 40))
        page.wait_for_selector('#facts[data-step="39"]')
        page.wait_for_selector('body[data-span^="0 40"]')
    run.close()


def test_a_run_of_the_loss_alone_grows(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ())
    run.add(range(20))
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url)
        page.wait_for_selector('#facts[data-step="19"]')
        run.add(range(20, 60))
        page.wait_for_selector('#facts[data-step="59"]')
        page.wait_for_selector('body[data-span^="0 60"]')
    run.close()


def test_a_lost_connection_is_said_and_mended(
    tmp_path: Path, context: BrowserContext, look: Look, watched: Watched
) -> None:
    watched.refused = True
    run = made.Growing(tmp_path)
    run.add(range(20))
    with Server(tmp_path, 0, tick=0.1).start() as first:
        port = first.port
        page = look(first.url)
        page.wait_for_selector("body[data-tick]")
        expect(page.locator("#status")).to_contain_text("live")
    expect(page.locator("#status")).to_have_text("✖ connection lost")
    expect(page.locator("#problems")).to_contain_text("The server does not answer")
    page.locator("#measure").select_option("activations.std")  # what somebody does meanwhile does no harm
    run.add(range(20, 40))
    second = Server(tmp_path, port, tick=0.1)
    for name in ("token", "cookie", "session"):
        setattr(second._guard, name, getattr(first._guard, name))
    with second.start():
        expect(page.locator("#status")).to_contain_text("live", timeout=20_000)
        expect(page.locator("#problems")).to_be_hidden()
        page.wait_for_selector('#facts[data-step="39"]')
        page.wait_for_selector('body[data-shown="activations.std absolute 0"]')
        run.add(range(40, 50))
        page.wait_for_selector('#facts[data-step="49"]')
    with Server(tmp_path, port, tick=0.1).start() as third:  # another token
        expect(page.locator("#problems")).to_contain_text("open the address that it printed", timeout=20_000)
        expect(page.locator("#status")).to_have_text("✖ connection lost")
        context.new_page().goto(third.url)
        expect(page.locator("#status")).to_contain_text("live", timeout=20_000)
    run.close()


def test_a_deleted_run_is_said_to_be_gone_and_stays_on_show(
    tmp_path: Path, look: Look, watched: Watched
) -> None:
    watched.refused = True  # its exact numbers
    old, new = made.Growing(tmp_path, ("a", "b"), "old"), made.Growing(tmp_path, ("x",), "new")
    for run in (old, new):
        run.add(range(20))
        run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#run=old&measure=activations.rms&layer=b&step=5")
        inspected(page, "b 5 activations.rms")
        shutil.rmtree(tmp_path / "old")
        page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("#problems")).to_contain_text("The run old is gone")
        expect(page.locator("#run")).to_have_value("old")
        expect(page.locator("#run option")).to_have_text(["old · gone", "net · new"])
        page.keyboard.press("k")
        expect(page.locator("#inspector h2")).to_have_text("a")
        assert state(page)["run"] == "old"
        page.locator("#run").select_option("new")
        expect(page.locator("#layers option")).to_have_count(1)
        expect(page.locator("#problems")).to_be_hidden()
        page = look(server.url, "#run=old&layer=b&step=5")
        expect(page.locator("#problems")).to_contain_text(
            "There is no run old to read here: this is the newest"
        )
        assert state(page)["run"] == "new"


def test_nothing_of_a_run_is_left_when_another_is_chosen(tmp_path: Path, look: Look) -> None:
    made.sampled(tmp_path)
    other = made.Growing(tmp_path, ("a",), "other")
    other.add(range(30))
    other.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#run=run&measure=activations.rms&layer=a&step=5")
        expect(page.locator("#samples")).to_be_visible()
        expect(page.locator("#inspector .spread")).to_be_visible()
        page.locator("#run").select_option("other")
        expect(page.locator("#facts")).to_have_attribute("data-step", "29")
        expect(page.locator("#samples")).to_be_hidden()
        page.keyboard.press("j")
        inspected(page, "a 29 activations.rms")
        expect(page.locator("#samples")).to_be_hidden()
        expect(page.locator("#inspector .spread")).to_be_visible()
        page.locator("#run").select_option("run")
        page.wait_for_selector('#facts[data-step="7"]')
        page.keyboard.press("j")
        expect(page.locator("#samples")).to_be_visible()


def test_a_late_answer_about_another_run_is_let_go(tmp_path: Path, look: Look) -> None:
    for name, layers in (("old", ("a", "b")), ("new", ("x",))):
        run = made.Growing(tmp_path, layers, name)
        run.add(range(20))
        run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#run=old")
        held: list[Route] = []
        page.route("**/api/head?run=new", lambda route: held.append(route))
        page.locator("#run").select_option("new")
        while not held:
            page.wait_for_timeout(20)
        page.locator("#run").select_option("old")
        page.wait_for_timeout(500)  # the other has come
        held[0].continue_()
        page.wait_for_timeout(500)
        expect(page.locator("#layers option")).to_have_count(2)
        expect(page.locator("#run")).to_have_value("old")


def test_a_late_answer_about_another_statistic_is_let_go(server: Server, look: Look) -> None:
    page = look(server.url, "#run=broken&measure=gradients.rms&layer=gap&step=1")
    held: list[Route] = []
    page.route("**/api/matrix?*from=*", lambda route: held.append(route))
    page.keyboard.press("z")
    while not held:
        page.wait_for_timeout(20)
    page.locator("#mode").select_option("past")
    page.wait_for_selector('body[data-shown="gradients.rms past 2"]')
    held[0].continue_()
    page.wait_for_timeout(500)
    assert page.locator("body").get_attribute("data-shown") == "gradients.rms past 2"


def test_the_distribution_grows_with_the_run(tmp_path: Path, look: Look, watched: Watched) -> None:
    run = made.Growing(tmp_path)
    run.add(range(20))
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=a&step=5")
        inspected(page, "a 5 activations.rms")
        asked = sum("api/distribution" in url for url in watched.requests)
        run.add(range(20, 60))
        page.wait_for_selector('#facts[data-step="59"]')
        page.wait_for_timeout(500)
        assert sum("api/distribution" in url for url in watched.requests) == asked + 1
    run.close()
