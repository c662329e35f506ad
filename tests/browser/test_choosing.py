"""Choosing in the page, with the mouse, the keys and the address, in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, expect

import fitscope as fs
from fitscope.diagnose import Findings
from fitscope.pipeline.diagnosis import stored
from fitscope.show.serve import Server

from . import made
from .conftest import BORN, CULPRIT, LAYERS, STEPS, pixel, settle, synthetic, until
from .looking import Look, heat, inspected, state

NOT_RECORDED = ((214, 217, 222), (192, 196, 203))  # striped


def at(page: Page, row: int, step: float, steps: int = STEPS) -> tuple[float, float]:
    """Where a cell is on the screen."""
    box = heat(page)
    return box["x"] + box["width"] * (step + 0.5) / steps, box["y"] + box["height"] * (row + 0.5) / LAYERS


def test_a_click_on_a_finding_selects_its_layer_step_and_statistic(server: Server, look: Look) -> None:
    page = look(server.url)
    card = page.locator(".finding", has_text="Dead ReLU units")
    card.click()
    expect(page.locator("#inspector h2")).to_have_text("s3b1_bn1")
    expect(page.locator("#measure")).to_have_value("activations.zeros")
    expect(card).to_have_attribute("aria-current", "true")
    assert state(page)["layer"] == "s3b1_bn1"
    assert state(page)["step"] == "2208", (
        "it began at step 2,201; of 5,000 recorded steps every 32nd is judged"
    )


def test_a_click_selects_a_cell_and_hovering_shows_its_value(server: Server, look: Look) -> None:
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


def test_hover_selection_and_inspector_use_the_step_of_the_pixel(tmp_path: Path, look: Look) -> None:
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
            tip, pixels = page.locator("#tip"), itertools.cycle((x, x + 1, x - 1))  # by rounding

            def told(pixels: Iterator[float] = pixels, y: float = y, said: str = f"step {step:,}") -> bool:
                page.mouse.move(next(pixels), y)
                settle(page)
                return said in str(page.locator("#tip").text_content())

            until(page, told)
            expect(tip).to_contain_text(f"{name}  step {step:,}  {seen}")
            page.mouse.down()
            page.mouse.up()
            inspected(page, f"{name} {step} activations.rms")
            expect(page.locator("#inspector table")).to_contain_text(exact)
        page.mouse.move(5, 5)
        # The depth profile is of the dip's step: the bar of b is short, and those beside it are not.
        until(page, lambda: made.long_bars(page) == [True, False, True])


def test_a_click_on_the_strip_selects_a_layer(server: Server, look: Look) -> None:
    page = look(server.url, "#measure=gradients.rms&layer=gap&step=700")
    strip = page.locator("#strip").bounding_box()
    assert strip
    page.mouse.click(strip["x"] + 100, strip["y"] + strip["height"] * 30.5 / LAYERS)
    inspected(page, f"{synthetic.names(LAYERS)[30][0]} 700 gradients.rms")


def test_a_click_on_a_moved_layer_selects_it_at_the_same_step(server: Server, look: Look) -> None:
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
    until(page, lambda: float(state(page)["to"]) - float(state(page)["from"]) < end - begin)
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
    until(page, lambda: "from" in state(page))
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
    run.add(range(90))
    found = [
        fs.Finding("nonfinite", "error", "activations/b", "b", 80, 80, "First."),
        fs.Finding("dead_relu", "warning", "activations/b", "b", 80, 89, "Second."),
        fs.Finding("loss_spike", "note", "loss", None, 60, 60, "Third."),
    ]
    run.writer.note(findings=stored(Findings(found), 89))
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


def test_a_filter_that_fits_no_layer_says_so(server: Server, look: Look) -> None:
    page = look(server.url)
    find = page.locator("#find")
    for text, fits in (("conv1", True), ("no such layer", False), ("((", False), ("", True)):
        find.fill(text)
        expect(find).to_have_attribute("aria-invalid", str(not fits).lower())
        said = page.locator("#span")
        if fits:
            expect(said).not_to_contain_text("no layer fits")
        else:
            expect(said).to_contain_text(f"no layer fits “{text}”, so all are shown")
