"""The picture of a training in a notebook, drawn from evidence that is made up."""

from __future__ import annotations

import base64
import io
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from diagnose.made import Made
from fitscope.diagnose import Evidence, diagnose
from fitscope.diagnose.history import columns_of
from fitscope.show import svg
from fitscope.show.live import drawn
from fitscope.show.raster import COLUMNS, by_layer, raster
from fitscope.show.squeeze import INF, MISSING, NAN, VALUE
from fitscope.show.words import Training
from fitscope.sites import Site

SVG = "{http://www.w3.org/2000/svg}"


def picture(made: Made, **facts: Any) -> tuple[ElementTree.Element, str]:
    """The picture, parsed, and the same as text."""
    evidence = made.evidence()
    shown = drawn(evidence, diagnose(evidence), Training(**facts))
    return ElementTree.fromstring(shown["image/svg+xml"]), shown["text/plain"]


def words(root: ElementTree.Element) -> str:
    return "\n".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def test_the_picture_shows_progress_loss_layers_and_cost() -> None:
    facts = {"total": 400, "epoch": 1, "epochs": 4, "seconds": 75.0, "left": 60.0, "cost": (1.25, 0.018)}
    root, text = picture(Made(), path="runs/one", **facts)
    said = words(root)
    assert "running · step 201 of 400 · epoch 2 of 4 · 1:15 · about 1:00 left" in said
    assert "recording: 1.2 s of CPU, 1.8 %" in said
    assert "loss of each batch" in said
    assert "validation loss 0.5, lowest 0.5" in said
    assert "40 steps recorded" in said
    assert [name for name in ("dense", "dense_1", "dense_2", "out") if name not in said.splitlines()] == []
    assert 'fs.open("runs/one")' in said
    assert "Scope(live=False)" in said
    assert len(list(root.iter(f"{SVG}image"))) == 3, "activations, gradients, and the scale of their colours"
    assert text.splitlines()[0].startswith("● model: running, step 201 of 400")
    assert "val_loss 0.5 (0.5 to 1.3)" in text


def test_findings_are_named_in_picture_and_text() -> None:
    made = Made().broken("activations/dense_1", 100, nans=3).broken("weights/dense/kernel", 105, nans=3)
    root, text = picture(made)
    assert "✖ NaN born here · dense_1" in words(root)
    assert "✖ NaN born here · dense_1" in text


@pytest.mark.parametrize("status", ["complete", "interrupted", "failed"])
def test_the_last_picture_shows_the_end(status: str) -> None:
    root, text = picture(Made(), status=status, ended_by="ValueError: <oh>", left=60.0)
    assert f"{status} · step 201" in words(root)
    assert "ValueError: <oh>" in words(root)
    assert "left" not in text


def test_before_the_first_step_the_picture_says_that_it_waits() -> None:
    shown = drawn(Evidence({"name": "net"}), None, Training())
    assert "waiting for the first step" in words(ElementTree.fromstring(shown["image/svg+xml"]))
    assert shown["text/plain"].startswith("● net: running")


@pytest.mark.parametrize(
    "losses", [[2.0], [np.nan], [1.0, np.inf, 1.0], [0.0] * 5, [1e-30, 1e30], [-3.0, -2.0]]
)
def test_the_picture_draws_any_loss(losses: list[float]) -> None:
    made = Made(np.arange(1)).loss(losses)
    root, _ = picture(made)
    curves = [part.attrib["d"] for part in root.iter(f"{SVG}path")]
    assert curves or np.isfinite(losses).sum() < 2, "two numbers make a curve"
    assert not re.search("nan|inf", " ".join(curves))


def test_metrics_have_charts_of_training_and_validation() -> None:
    made = (
        Made()
        .scalar("logs/accuracy", [50, 100], [0.5, 0.75])
        .scalar("logs/val_accuracy", [50, 100], [0.4, 0.6])
    )
    said = words(picture(made)[0])
    assert "accuracy 0.75" in said
    assert "validation 0.6 (0.4 to 0.6)" in said


def test_names_in_the_picture_are_escaped() -> None:
    evidence = Evidence({"name": '<script>"&'})
    steps = np.arange(3)
    for name in ("<b>&", "a]]>", "x" * 300):
        columns = columns_of(rms=[1, 1, 1], count=[4, 4, 4]).astype(np.float64)
        evidence.fill(Site("activations", name), "float32", (2, 2), steps, columns)
    root = ElementTree.fromstring(drawn(evidence, None, Training(path='"<'))["image/svg+xml"])
    assert "<b>&" in words(root)
    assert '<script>"&' in words(root)
    assert {part.tag.removeprefix(SVG) for part in root.iter()} <= {
        "svg",
        "style",
        "rect",
        "text",
        "tspan",
        "path",
        "image",
    }


def test_the_picture_needs_no_other_file_and_no_script() -> None:
    root, _ = picture(Made())
    for part in root.iter():
        links = [value for name, value in part.attrib.items() if name.endswith("href")]
        assert all(link.startswith("data:image/png;base64,") for link in links)
        assert not [name for name in part.attrib if name.startswith("on") or name == "id"]


def test_the_picture_of_a_long_training_of_a_deep_model_stays_small() -> None:
    evidence, steps = Evidence(), np.arange(0, 100_000, 100)
    for i in range(300):
        columns = columns_of(
            rms=np.random.default_rng(i).lognormal(0, 2, len(steps)), count=np.ones(len(steps))
        )
        for kind in ("activations", "gradients"):
            evidence.fill(Site(kind, f"layer{i}"), "float32", (2, 2), steps, columns.astype(np.float64))
    losses = np.random.default_rng(0).lognormal(0, 1, 100_000)
    evidence.take_values(Site("loss"), "float32", np.arange(100_000), losses)
    shown = drawn(evidence, None, Training())["image/svg+xml"]
    assert len(shown) < 100_000
    assert float(ElementTree.fromstring(shown).attrib["height"]) < 700


def test_a_picture_embeds_an_image_that_others_can_read() -> None:
    grid = raster([by_layer(Made().evidence(), "activations")["dense"]], 0, 195)
    image = ElementTree.fromstring(
        f'<g xmlns="http://www.w3.org/2000/svg">{svg.heat(0, 0, 10, 10, grid)}</g>'
    )[0]
    data = base64.b64decode(image.attrib["href"].partition(",")[2])
    pixels = matplotlib.image.imread(io.BytesIO(data))
    assert pixels.shape == (1, COLUMNS, 4)
    assert (pixels[..., 3] == 1).all()
    assert (pixels[..., 1] > pixels[..., 2]).all(), "green: an rms of 0.5 lies high on the scale"


def history(steps: Any, **stats: Any) -> Any:
    evidence = Evidence()
    columns = columns_of(count=np.ones(len(steps)), **stats).astype(np.float64)
    evidence.fill(Site("activations", "a"), "float32", (2, 2), np.asarray(steps), columns)
    return by_layer(evidence, "activations")["a"]


def test_a_gap_is_left_blank_and_neighbours_fill_the_map() -> None:
    few = raster([history([0, 900], rms=[1.0, 2.0])], 0, 999)
    assert (few.marks == VALUE).sum() < COLUMNS / 4, "most steps were not recorded"
    every = raster([history(range(10), rms=np.arange(1.0, 11.0))], 0, 9)
    assert (every.marks == VALUE).all()
    assert every.values[0, 0] == 1.0
    assert every.values[0, -1] == 10.0


def test_marks_and_the_largest_value_of_a_column_stay() -> None:
    rms = np.ones(1000)
    rms[517] = 50.0
    grid = raster(
        [history(range(1000), rms=rms, nans=np.arange(1000) == 700, infs=np.arange(1000) == 100), None],
        0,
        999,
    )
    assert np.nanmax(grid.values[0]) == 50.0
    assert NAN in grid.marks[0]
    assert INF in grid.marks[0]
    assert (grid.marks[1] == MISSING).all()
