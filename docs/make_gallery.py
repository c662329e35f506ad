"""Trains the runs of the gallery and writes their reports: `make site` calls it, or `python docs/make_gallery.py FOLDER`.

Each report is one HTML file below 2 MB that opens from disk, with a picture of it next to it. The script stops if a run does not
end with the finding that docs/gallery.md describes. Nothing it writes is committed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fitscope as fs
from fitscope import sizes
from fitscope.show.data.gather import Gathered
from fitscope.show.report import report, save

sys.path.insert(0, str(Path(__file__).parent))
from website.build import Report

LIST = "gallery.json"
SIZE = {"width": 1340, "height": 800}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LARGEST = 2_000_000  #: bytes of a report


def make(folder: Path) -> dict[str, Report]:
    """Trains every run and writes its report and picture into the folder."""
    from gallery_runs import TRAININGS

    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    with tempfile.TemporaryDirectory() as runs:
        for training in TRAININGS:
            began = time.perf_counter()
            training.train(fs.Scope(f"{runs}/{training.name}", every=1))
            seconds = time.perf_counter() - began
            run = fs.open(f"{runs}/{training.name}")
            judge(training, run)
            found[training.name] = written(folder, training.name, run)
            print(f"{training.name}: {found[training.name].facts}, trained in {seconds:.0f} s", flush=True)
    photograph(folder, list(found.values()))
    (folder / LIST).write_text(
        json.dumps({name: asdict(one) for name, one in found.items()}), encoding="utf-8"
    )
    return found


def made(folder: Path) -> dict[str, Report]:
    """The reports that an earlier call left in the folder."""
    try:
        documents = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: Report(**one) for name, one in documents.items()}


def judge(training: Any, run: fs.Run) -> None:
    """Stops if the run does not say what the gallery says about it."""
    serious = [one for one in run.findings() if one.severity != "note"]
    first = (serious[0].rule, serious[0].layer) if serious else None
    wanted = training.verdict
    if first and wanted and wanted[1] is None:
        first = (first[0], None)  # the rule alone counts
    if first != wanted:
        raise SystemExit(
            f"The run {training.name} should end with {wanted}, but its first finding is {first}. "
            "Correct docs/gallery_runs.py and docs/gallery.md."
        )


def written(folder: Path, name: str, run: fs.Run) -> Report:
    gathered = Gathered(run)
    gathered.update()
    path = save(folder / f"{name}.html", report(gathered))
    size = path.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"The report {path} has {sizes.show(size)}; it may have {sizes.show(LARGEST)}.")
    steps, kept = len(run.series("loss")), sizes.show(size)
    return Report(path.name, f"{name}.png", f"{steps} steps, {len(run.sites)} sites, {kept}")


def photograph(folder: Path, reports: list[Report]) -> None:
    """A picture of each report, as a person sees it first."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        for one in reports:
            page.goto((folder / one.report).resolve().as_uri())
            page.wait_for_selector('body[data-ready="true"]')
            page.wait_for_timeout(400)
            page.screenshot(path=folder / one.picture)
        browser.close()


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))
