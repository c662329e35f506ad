"""The graph of a model beside the spectrogram: its connections."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from fitscope.show.serve import Server

from . import made
from .looking import Look

RESIDUAL = {
    "stem": [],
    "conv1": ["stem"],
    "conv2": ["conv1"],
    "add": ["conv2", "stem"],
    "out": ["add"],
}


def test_a_residual_branch_has_a_lane_and_joins_again(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, tuple(RESIDUAL), sources=RESIDUAL)
    run.add(range(20))
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#measure=activations.rms&layer=add&step=5")
        lanes = page.locator("#strip")
        expect(lanes).to_have_attribute("data-lanes", "stem:0 conv1:1 conv2:1 add:0 out:0")
        expect(page.locator("#inspector .connected")).to_have_text("fed byconv2stemfeedsout")
        blue = page.evaluate(
            """() => {
                const canvas = document.getElementById("strip");
                const x = canvas.width - 16 - 4;
                const { data } = canvas.getContext("2d").getImageData(x - 1, canvas.height * 0.45, 3, canvas.height * 0.1);
                let found = 0;
                for (let i = 0; i < data.length; i += 4) found += data[i + 3] > 150 && data[i + 2] > data[i] + 100;
                return found;
            }"""
        )
        assert blue > 20, "beside conv2 runs what the stem feeds to the selected layer"
        page.locator("#inspector .connected button", has_text="stem").click()
        expect(page.locator("#inspector h2")).to_have_text("stem")
        page.locator("#find").fill("stem|add|out")  # through the hidden layers both inputs are the stem
        expect(lanes).to_have_attribute("data-lanes", "")


def test_a_chain_has_no_lanes(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ("a", "b"), sources={"b": ["a"]})
    run.add(range(20))
    run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        expect(page.locator("#strip")).to_have_attribute("data-lanes", "")
