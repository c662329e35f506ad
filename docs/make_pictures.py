"""Draws docs/images anew from a real run of the demo: `make docs`, or `python docs/make_pictures.py [RUNS]`.

show.svg is what `fitscope show` prints; notebook.svg is what a cell of a notebook shows at the end; page.png and page-dark.png are
what Chromium shows of the page. Given a directory with a run of the demo, that one is drawn instead of a new one.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
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


if __name__ == "__main__":
    main()
