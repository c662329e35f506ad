"""Panning, smoothing, the axis, and which rows are on show, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from fitscope.show.serve import Server

from . import made
from .conftest import settle, until
from .looking import Look, heat, state

NAMES = ("conv_a", "conv_b", "dense_a", "dense_b")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """400 steps in 4 epochs of a second per step; conv_b has no gradients."""
    place = tmp_path_factory.mktemp("moving")
    run = made.Growing(place, NAMES)
    run.add(range(400), loss=lambda step: 2 + (step % 2))
    run.names = [name for name in NAMES if name != "conv_b"]
    run.add(range(400), kinds=("gradients/{}",), loss=lambda step: 2 + (step % 2))
    run.close()
    with Server(place, 0).start() as server:
        yield server


def span(page: Page) -> tuple[float, float]:
    begin, end = str(page.locator("body").get_attribute("data-span")).split()
    return float(begin), float(end)


def rows(page: Page, x: float = 0.5) -> list[str]:
    """The rows of the spectrogram from top to bottom, as its tooltip names them."""
    box, found = heat(page), []
    for part in range(24):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + (part + 0.5) / 24 * box["height"])
        name = str(page.locator("#tip").text_content()).split(" ")[0]
        if name not in found:
            found.append(name)
    return found


def test_the_picture_is_panned_by_keys_wheel_and_drag(serving: Server, look: Look) -> None:
    page = look(serving.url, "#measure=activations.rms&from=100&to=200")
    for key, begin in (("ArrowRight", 125), ("ArrowLeft", 100), ("ArrowLeft", 75)):
        page.keyboard.press(key)
        until(page, lambda begin=begin: span(page) == (begin, begin + 100))  # type: ignore[misc]
    box = heat(page)
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.wheel(box["width"] / 10, 0)
    until(page, lambda: span(page) == (85, 185))
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(middle[0] - box["width"] / 2, middle[1], steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    until(page, lambda: span(page) == (135, 235))
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    until(page, lambda: span(page) == (300, 400))  # not beyond the end


def test_the_loss_can_be_dragged_over_and_clicked(serving: Server, look: Look) -> None:
    page = look(serving.url, "#measure=activations.rms&layer=conv_a&step=0")
    box = heat(page)
    top = page.locator("#loss").bounding_box()
    assert top
    page.mouse.move(box["x"] + box["width"] / 4, top["y"] + 40)
    expect(page.locator("#readout")).to_have_text("step 100 · loss per batch 2")
    page.mouse.click(box["x"] + box["width"] / 4, top["y"] + 40)
    until(page, lambda: state(page)["step"] == "100")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, top["y"] + 40, steps=3)
    page.mouse.up()
    until(page, lambda: span(page) == (100, 200))


def test_the_loss_is_smoothed_as_chosen(serving: Server, look: Look) -> None:
    page = look(serving.url)
    bold = """() => {
        const canvas = document.getElementById("loss");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4) found += data[i + 3] > 200 && data[i] < 20 && data[i + 1] < 45 && data[i + 2] < 80;
        return found;
    }"""
    assert page.evaluate(bold) > 100
    page.locator("#smooth").select_option("none")
    until(page, lambda: page.evaluate(bold) < 20)
    page.locator("#smooth").select_option("slow")
    until(page, lambda: page.evaluate(bold) > 100)
    assert state(page)["smooth"] == "slow"


def test_the_axis_counts_steps_epochs_or_time(serving: Server, look: Look) -> None:
    page = look(serving.url)
    marks = page.locator("body")
    expect(marks).to_have_attribute("data-axis", "0 … 400")
    page.locator("#axis").select_option("epoch")
    expect(marks).to_have_attribute("data-axis", "epoch 1 … epoch 5")
    page.locator("#axis").select_option("time")
    expect(marks).to_have_attribute("data-axis", "0 s … 6 min")


def test_layers_are_filtered_by_a_regular_expression(serving: Server, look: Look) -> None:
    page = look(serving.url, "#measure=activations.rms")
    page.keyboard.press("/")
    page.keyboard.type("_b$|^dense_a")
    assert rows(page) == ["conv_b", "dense_a", "dense_b"]
    assert state(page)["filter"].startswith("_b")
    page.keyboard.type("(")  # not yet an expression: nothing has that name, so all are shown
    settle(page)
    assert rows(page) == list(NAMES)
    page.keyboard.press("Escape")
    assert "filter" not in state(page)
    assert rows(page) == list(NAMES)


def test_a_layer_is_pinned_to_the_top(serving: Server, look: Look) -> None:
    page = look(serving.url, "#measure=activations.rms&layer=dense_b&step=10")
    page.keyboard.press("t")
    settle(page)
    assert rows(page) == ["dense_b", "conv_a", "conv_b", "dense_a"]
    page.locator("#inspector button", has_text="unpin").click()
    settle(page)
    assert rows(page) == list(NAMES)


def test_rows_without_the_statistic_are_hidden_until_asked_for(serving: Server, look: Look) -> None:
    page = look(serving.url, "#measure=gradients.rms")
    assert rows(page) == ["conv_a", "dense_a", "dense_b"]
    button = page.locator("#hidden-rows")
    expect(button).to_have_text("1 empty row hidden")
    button.click()
    settle(page)
    assert rows(page) == list(NAMES)
    expect(button).to_have_text("hide empty rows")
