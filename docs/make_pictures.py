"""Draws docs/images again from real runs of the demo: `make docs`, or `python docs/make_pictures.py [RUNS]`.

show.svg is what `fitscope show` prints; notebook.svg is what a cell of a notebook shows at the end; page.png and page-dark.png are
what Chromium shows of the page. Given a directory with a run of the demo, that one is drawn instead of a new one. live.gif shows the
page while another process trains the demo; that training waits a little in each step, so that there is something to see on any machine.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

import fitscope as fs
from fitscope.read.follow import Follow
from fitscope.show.data.gather import Gathered
from fitscope.show.live import drawn
from fitscope.show.summary import summary
from fitscope.show.text import Pen
from fitscope.show.words import Training

IMAGES = Path(__file__).parent / "images"
SLOWED = "--slowed"  #: the argument of the process that trains for live.gif
PAUSE = 0.1  #: seconds that each of its steps waits
COMMON = 192  #: colours of live.gif that are taken because many pixels have them
GLANCE = 600  #: milliseconds between two frames of live.gif
SHOWN = 280  #: milliseconds that each frame is shown, but for the last
GIF = {"width": 1100, "height": 700}
WIDTH = 118
SIZE = {"width": 1340, "height": 860}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def gathered(run: str) -> Gathered:
    found = Gathered(fs.open(run))
    found.update()
    return found


def terminal(run: str, title: str) -> str:
    """The overview of a run as an SVG of a terminal."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(summary(gathered(run), WIDTH, Pen.of(console)))
    svg = console.export_svg(title=title, unique_id="fitscope")
    svg = re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL)  # nothing is fetched to show a picture
    return re.sub(r"[ \t]+\n", "\n", svg.replace("Fira Code", "ui-monospace, Menlo, Consolas"))


def notebook(runs: str) -> str:
    """The picture that a cell of a notebook is left with."""
    run = fs.open(runs)
    stored = Follow(run).evidence()
    stored.update()
    cost, steps = run.overhead, (run.last_step or 0) + 1
    epochs = len(run.series("logs/loss"))
    training = Training(
        "complete", path=f"runs/{run.id}", total=steps, epoch=epochs - 1, epochs=epochs, seconds=cost["wall_seconds"],
        cost=(cost["training_thread_seconds"] + cost["writer_seconds"], cost["cpu_share"]),
    )  # fmt: skip
    return drawn(stored.evidence, run.findings(), training)["image/svg+xml"]


def places(run: str) -> dict[str, str]:
    """The part of the address that shows the unscaled batch, and the dead layer, by the name of the picture."""
    unscaled = int(fs.open(run).series("activations/conv1", "rms").idxmax())
    dead = next(finding for finding in gathered(run).findings if finding.rule == "dead_relu")
    return {
        "page": f"measure=activations.rms&layer=conv1&step={unscaled}",
        "page-dark": f"measure={dead.measure}&layer={dead.row}&step={dead.step + 60}",
    }


def pages(run: str) -> None:
    """The page as a person sees it: the unscaled batch in light, the dead layer in dark."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright, fs.serve(run) as server:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for (name, place), scheme in zip(places(run).items(), ("light", "dark"), strict=True):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(f"{server.url}#{place}")
            page.wait_for_selector("body[data-inspected]")
            page.wait_for_timeout(400)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
            print(IMAGES / f"{name}.png")
        browser.close()


def slowed(runs: str) -> None:
    """Trains the demo with a pause in each step."""
    import keras

    from fitscope.cli.demo_training import BATCH, BATCHES, EPOCHS, UNSCALED, digits, network

    class Pause(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
            time.sleep(PAUSE)

    images, labels = digits(BATCH * BATCHES)
    images[UNSCALED * BATCH : (UNSCALED + 1) * BATCH] *= 255.0
    callbacks = [fs.Scope(runs), Pause()]
    network().fit(
        images, labels, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
    )


def live() -> None:
    """The page while a training runs, as an animation."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        training = subprocess.Popen([sys.executable, __file__, SLOWED, folder])
        while training.poll() is None and not _under_way(folder):
            time.sleep(0.2)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        with fs.serve(folder) as server:
            page = browser.new_page(viewport=GIF, color_scheme="light")  # type: ignore[arg-type]
            page.goto(f"{server.url}#measure=activations.rms")
            page.wait_for_selector('body[data-ready="true"]')
            frames = []
            while training.poll() is None:
                frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
                page.wait_for_timeout(GLANCE)
            page.wait_for_timeout(2500)  # until the page has seen the end
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        browser.close()
    if training.returncode:
        raise SystemExit("The training for live.gif failed.")
    few = in_few_colours(frames)
    different = [one for one, before in zip(few, [None, *few], strict=False) if one != before]
    shown = [SHOWN] * (len(different) - 1) + [4000]
    path = IMAGES / "live.gif"
    different[0].save(path, save_all=True, append_images=different[1:], duration=shown, loop=0, optimize=True)
    print(path, f"{len(different)} frames, {path.stat().st_size / 1e3:.0f} kB")


def in_few_colours(frames: list[Image.Image]) -> list[Image.Image]:
    """Frames in the same 256 colours, each pixel in the nearest, so that what does not change takes no bytes.

    Pillow maps colours to a given palette with fewer bits, which tints white.
    """
    palette = _palette(frames[-1])
    found = []
    for frame in frames:
        pixels = np.asarray(frame, np.int32)
        colours, where = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
        nearest = ((colours[:, None] - palette[None]) ** 2).sum(2).argmin(1)
        one = Image.fromarray(nearest[where].reshape(pixels.shape[:2]).astype(np.uint8))
        one.putpalette(palette.astype(np.uint8).tobytes())
        found.append(one)
    return found


def _palette(frame: Image.Image) -> np.ndarray:
    """The most common colours of a frame, and then those that are least like them: a key in a legend has few pixels."""
    colours = np.array(
        [colour for _, colour in sorted(frame.getcolors(1 << 24) or (), reverse=True)], np.int32
    )
    palette, rest = colours[:COMMON], colours[COMMON:]
    nearest = ((rest[:, None] - palette[None]) ** 2).sum(2).min(1, initial=1 << 20)
    while len(palette) < 256 and len(rest):
        rarest = nearest.argmax()
        palette = np.concatenate([palette, rest[rarest][None]])
        nearest = np.minimum(nearest, ((rest - rest[rarest]) ** 2).sum(1))
    return palette


def _under_way(runs: str) -> bool:
    """Whether the newest run has steps to show."""
    found = fs.runs(runs)
    return bool(found) and (found[0].last_step or 0) > 5


def main() -> None:
    if sys.argv[1:2] == [SLOWED]:
        slowed(sys.argv[2])
        return
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = sys.argv[1] if len(sys.argv) > 1 else folder
        if runs == folder:
            subprocess.run([sys.executable, "-m", "fitscope.cli.demo_training", "--to", folder], check=True)
        for name, svg in (("show", terminal(runs, "fitscope show runs")), ("notebook", notebook(runs))):
            path = IMAGES / f"{name}.svg"
            path.write_text(svg, encoding="utf-8")
            print(path)
        pages(runs)
    live()


if __name__ == "__main__":
    main()
