"""What the page costs: `make bench-ui`, or `python bench/ui.py [--sizes 100x5000,300x100000]`.

Runs of a network that never existed (`synthetic.py`) are written, served and looked at with Chromium; times are of the
main thread's CPU, as Chromium counts it, and medians of several. The figures go to bench/ui-results.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import synthetic
from playwright.sync_api import Browser, Page, sync_playwright

import fitscope as fs
from fitscope.show.data import payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack
from fitscope.show.report import report
from fitscope.show.serve import Server

RESULTS = Path(__file__).parent / "ui-results.md"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
TARGETS = {"load": 200, "tick": 25, "tick bytes": 8000, "reduction": 60, "report": 2e6}


def median(times: int, action: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


class Meter:
    """How long the main thread of a page has worked. Counts from when it is made."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not the clock

    def ms(self) -> float:
        metrics = {m["name"]: m["value"] for m in self._session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(metrics["TaskDuration"])


def load(browser: Browser, url: str) -> float:
    """CPU from an empty tab to the finished page."""
    page = browser.new_page(viewport={"width": 1440, "height": 940})
    page.goto(url.replace("/?", "/static/nothing?"))  # the same process, and nothing to draw
    meter = Meter(page)
    before = meter.ms()
    page.goto(url)
    page.wait_for_selector('body[data-ready="true"]', timeout=300_000)
    page.wait_for_selector("body[data-inspected]", timeout=60_000)
    page.wait_for_timeout(100)
    taken = meter.ms() - before
    page.close()
    return taken


def ticks(
    browser: Browser, place: Path, layers: int, steps: int, writer: Any, count: int = 8
) -> tuple[float, float]:
    """Main-thread milliseconds and bytes of a tick, while the run goes on by twenty steps at a time."""
    spent, sizes = [], []
    with Server(place, 0, tick=0.25).start() as server:
        page = browser.new_page(viewport={"width": 1440, "height": 940})
        page.goto(server.url + "#measure=gradients.rms&layer=gap&step=0")
        page.wait_for_selector("body[data-tick]", timeout=300_000)
        meter = Meter(page)
        for i in range(count):
            before = meter.ms()
            end = steps + 20 * (i + 1)
            synthetic.write(place, layers, end, nan=False, first=end - 20, writer=writer)
            page.wait_for_selector(f'#facts[data-step="{end - 1}"]', timeout=60_000)
            page.wait_for_timeout(60)
            spent.append(meter.ms() - before)
            sizes.append(int(page.locator("body").get_attribute("data-tick-bytes") or 0))
        page.close()
    return statistics.median(spent), max(sizes)


def measure(browser: Browser, layers: int, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        writer = synthetic.write(place, layers, steps, nan=False)
        began = time.perf_counter()
        g = Gathered(fs.open(place))
        g.update()
        g.matrix("gradients.rms")
        cold = time.perf_counter() - began
        found = {"cold": cold}
        middle = (steps * 0.3, steps * 0.6)
        found["reduction"] = median(9, lambda: pack(*payload.matrix(g, "gradients.rms")))
        found["zoomed"] = median(9, lambda: pack(*payload.matrix(g, "gradients.rms", span=middle)))
        began = time.perf_counter()
        g.matrix("gradients.rms", "past")
        found["past"] = 1000 * (time.perf_counter() - began)
        began = time.perf_counter()
        found["report"] = float(len(report(g).encode()))
        found["report seconds"] = time.perf_counter() - began
        with Server(place, 0).start() as server:
            load(browser, server.url)  # the server reads the run once
            found["load"] = statistics.median(load(browser, server.url) for _ in range(5))
        found["tick"], found["tick bytes"] = ticks(browser, place, layers, steps, writer)
        writer.close()
        return found


def table(sizes: list[tuple[int, int]], found: list[dict[str, float]]) -> str:
    lines = (
        ("page load, main-thread CPU", "load", "{:.0f} ms", "≤ 200 ms"),
        ("live tick, main-thread CPU", "tick", "{:.0f} ms", "≤ 25 ms"),
        ("live tick, bytes", "tick bytes", "{:.0f} B", "≤ 8 kB"),
        ("reduction on the server, all steps", "reduction", "{:.1f} ms", "≤ 60 ms"),
        ("reduction on the server, a third of the steps", "zoomed", "{:.1f} ms", "≤ 60 ms"),
        ("report, bytes", "report", "{:,.0f} B", "≤ 2 MB"),
        ("report, time to make", "report seconds", "{:.1f} s", ""),
        ("mode “vs own past”, the first time", "past", "{:.0f} ms", ""),
        ("reading the run, the first time", "cold", "{:.1f} s", ""),
    )
    head = ["", *(f"{layers} layers × {steps:,} steps" for layers, steps in sizes), "to reach"]
    rows = [[name, *(form.format(f[key]) for f in found), target] for name, key, form, target in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100x5000,300x100000")
    options = parser.parse_args()
    sizes = [(int(a), int(b)) for a, _, b in (size.partition("x") for size in options.sizes.split(","))]
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        found = [measure(browser, layers, steps) for layers, steps in sizes]
        version = browser.version
        browser.close()
    text = (
        "# What the page costs\n\n"
        f"`make bench-ui` on {platform.machine()}, {os.cpu_count()} cores, Chromium {version}. Each layer has an output and a "
        "gradient at every step; every step is recorded.\n\n" + table(sizes, found) + "\n"
    )
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
