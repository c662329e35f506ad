"""The live picture in a real notebook: a Jupyter kernel trains, and Chromium shows what is left in the saved notebook.

The messages of the kernel say what a front end is told and when. One kernel runs all cells, because starting one takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipykernel  # noqa: F401 - the kernel that runs the cells
import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page

SETUP = """
import os, signal, time
import keras, numpy as np
import fitscope as fs
import fitscope.pipeline.live
fitscope.pipeline.live.LEAST_PAUSE = 0.1  # seconds: a short training has several pictures

x = np.random.default_rng(0).normal(size=(320, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
model = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(2, "softmax", name="head")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

class Slow(keras.callbacks.Callback):
    def __init__(self, interrupt=None, error=None):
        super().__init__()
        self.interrupt, self.error, self.steps = interrupt, error, 0
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        self.steps += 1
        if self.steps == self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)  # as the stop button does
        if self.steps == self.error:
            raise ValueError("the data is gone")

def fit(scope, epochs=2, **slow):
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, validation_split=0.2, callbacks=[scope, Slow(**slow)])
"""
CELLS = {
    "setup": SETUP,
    "trained": "fit(fs.Scope('runs'), epochs=3)",
    # Keras counts the steps of a model through all its trainings.
    "interrupted": "fit(fs.Scope('runs'), epochs=30, interrupt=40)",
    "failed": "fit(fs.Scope('runs'), epochs=30, error=40)",
    "off": "fit(fs.Scope('runs', live=False), epochs=1)",
    "again": "scope = fs.Scope('runs')\nfor _ in range(3):\n    fit(scope, epochs=1)",
    "evaluated": "model.evaluate(x, y, verbose=0, callbacks=[scope]);",
    "bar": "model.fit(x, y, batch_size=8, epochs=2, callbacks=[fs.Scope('runs')]);",
}


@dataclass
class Told:
    """What the front end was told of one cell."""

    shown: list[str] = field(default_factory=list)  #: the first line of each picture, in their order
    kinds: list[str] = field(default_factory=list)  #: of the messages with a picture
    dates: list[Any] = field(default_factory=list)
    replied: Any = None
    outputs: list[Any] = field(default_factory=list)  #: as saved

    @property
    def steps(self) -> list[int]:
        """The step of each picture; 0 before the first."""
        return [int(line.partition("step ")[2].split()[0].strip(",").replace(",", "") or 0) if "step " in line else 0
                for line in self.shown]  # fmt: skip

    @property
    def pictures(self) -> list[Any]:
        return [output for output in self.outputs if output.output_type == "display_data"]


class Listening(NotebookClient):
    """Runs a notebook and keeps what the kernel says about pictures."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.told = [Told() for _ in self.nb.cells]
        self.on_cell_executed = self._replied

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            told = self.told[cell_index]
            told.kinds.append(msg["msg_type"])
            told.shown.append(msg["content"]["data"]["text/plain"].splitlines()[0])
            told.dates.append(msg["header"]["date"])
        return super().process_message(msg, cell, cell_index)

    def _replied(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        self.told[cell_index].replied = execute_reply["header"]["date"]


@dataclass
class Executed:
    book: Any
    cells: dict[str, Told]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    place = tmp_path_factory.mktemp("notebook")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS.values()])
    client = Listening(
        book,
        timeout=120,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(place)}},
    )
    client.execute()
    for told, cell in zip(client.told, book.cells, strict=True):
        told.outputs = cell.outputs
    errors = [o.ename for told in client.told for o in told.outputs if o.output_type == "error"]
    assert errors == ["KeyboardInterrupt", "ValueError"], "those that the cells raise, and no other"
    return Executed(book, dict(zip(CELLS, client.told, strict=True)))


def test_the_picture_grows_while_fit_runs_and_stays(executed: Executed) -> None:
    told = executed.cells["trained"]
    assert told.kinds[0] == "display_data"
    assert set(told.kinds[1:]) == {"update_display_data"}
    growing = [step for step, line in zip(told.steps, told.shown, strict=True) if "running" in line]
    assert growing == sorted(growing)
    assert len({step for step in growing if 0 < step < 96}) >= 3, growing
    assert max(told.dates) <= told.replied, "before the cell ended"
    (left,) = told.pictures
    assert left.data["text/plain"].startswith("✓ sequential: complete, step 96 of 96, epoch 3 of 3")
    assert "validation loss" in left.data["image/svg+xml"]
    assert "rules checked" in left.data["image/svg+xml"]


def test_after_an_interrupt_the_last_picture_says_how_the_training_ended(executed: Executed) -> None:
    told = executed.cells["interrupted"]
    (left,) = told.pictures
    assert left.data["text/plain"].startswith(
        "▲ sequential: interrupted by KeyboardInterrupt, step 136 of"
    ), told.shown
    assert max(told.dates) <= told.replied


def test_after_an_exception_the_last_picture_shows_its_text(executed: Executed) -> None:
    (left,) = executed.cells["failed"].pictures
    assert left.data["text/plain"].startswith(
        "✖ sequential: failed by ValueError: the data is gone, step 176 of"
    )
    assert "ValueError: the data is gone" in left.data["image/svg+xml"]


def test_the_live_picture_can_be_switched_off(executed: Executed) -> None:
    assert executed.cells["off"].kinds == []


def test_trainings_of_a_scope_in_one_cell_draw_one_picture(executed: Executed) -> None:
    told = executed.cells["again"]
    assert told.kinds.count("display_data") == 1
    (left,) = told.pictures
    assert "complete, step" in left.data["text/plain"]


def test_an_evaluation_draws_nothing(executed: Executed) -> None:
    assert executed.cells["evaluated"].kinds == []


def test_the_picture_is_above_the_progress_bar(executed: Executed) -> None:
    first, *rest = executed.cells["bar"].outputs
    assert first.output_type == "display_data"
    assert "complete" in first.data["text/plain"]
    assert any("Epoch 1/2" in output.text for output in rest if output.output_type == "stream")


def page_of(executed: Executed, place: Path, browser: Browser, scheme: Any, width: int) -> Page:
    """The saved notebook as HTML, in a browser without a network."""
    exporter = HTMLExporter(require_js_url="", jquery_url="", mathjax_url="", theme=scheme)
    html, _ = exporter.from_notebook_node(executed.book)
    path = place / "notebook.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=True
    )
    page = context.new_page()
    page.goto(path.as_uri())
    return page


PIXELS = """img => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [img.naturalWidth, img.naturalHeight];
    const g = canvas.getContext("2d");
    g.drawImage(img, 0, 0);
    const data = g.getImageData(0, 0, canvas.width, canvas.height).data;
    const at = i => [data[i], data[i + 1], data[i + 2]].join();
    const back = at(0), inks = {};
    for (let i = 0; i < data.length; i += 4) inks[at(i)] = (inks[at(i)] ?? 0) + 1;
    return {back, drawn: 1 - inks[back] / (data.length / 4), colours: Object.keys(inks).length};
}"""


@pytest.mark.parametrize(
    ("scheme", "back", "width"),
    [("light", "255,255,255", 1440), ("dark", "13,17,23", 1440), ("light", "255,255,255", 1024)],
)
def test_the_saved_notebook_shows_the_picture(
    executed: Executed, tmp_path: Path, browser: Browser, scheme: str, back: str, width: int
) -> None:
    page = page_of(executed, tmp_path, browser, scheme, width)
    images = page.locator(".jp-RenderedSVG img")
    assert images.count() == 5
    shown = images.first
    shown.scroll_into_view_if_needed()
    box = shown.bounding_box()
    assert box
    assert 200 < box["width"] <= width
    assert box["x"] + box["width"] <= width, "none of it is cut off"
    found = shown.evaluate(PIXELS)
    assert found["back"] == back, "the theme of the reader"
    assert found["drawn"] > 0.1
    assert found["colours"] > 50
    page.context.close()
