"""The page of a run that grows, in a real browser: what ticks bring, lost connections, runs that go away, late answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, Route, expect

from fitscope.show.serve import Server

from . import made
from .conftest import LAYERS, Watched, column, pixel, settle, synthetic, until
from .looking import Look, inspected, state


def late(page: Page, held: Route) -> None:
    """Lets an answer through that was held back, and the page do with it what it will."""
    with page.expect_response(held.request.url) as answer:
        held.continue_()
    answer.value.finished()
    settle(page)


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


def test_the_page_makes_the_columns_coarser_as_the_run_grows(tmp_path: Path, look: Look) -> None:
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


def test_live_ticks_paint_the_same_picture_as_a_new_page(tmp_path: Path, look: Look) -> None:
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
            # A scope records the model's inputs, predictions and targets beside its layers.
            expect(page.locator("#layers option")).to_have_text(
                ["inputs", "hidden", "head", "predictions", "targets"]
            )
    finally:
        training.kill()
        training.wait()


def test_a_page_opened_before_the_first_rows_shows_them_later(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path)
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url)
        expect(page.locator("#status")).to_contain_text("live")
        expect(page.locator("#verdict")).to_contain_text("Waiting for the first steps")
        run.add(range(20), loss=lambda step: 2.0 - step / 40)
        page.wait_for_selector('body[data-shown="activations.rms absolute 0"]')
        expect(page.locator("#verdict")).to_contain_text("No findings")
        expect(page.locator("#verdict")).to_contain_text("28 rules checked")
        assert pixel(page, 0, 10, rows=2) != (0, 0, 0), "drawn"
        run.add(range(20, 40))
        page.wait_for_selector('#facts[data-step="39"]')
        page.wait_for_selector('body[data-span^="0 40"]')
    run.close()


def test_the_page_of_a_run_with_only_a_loss_grows(tmp_path: Path, look: Look) -> None:
    run = made.Growing(tmp_path, ())
    run.add(range(20))
    with Server(tmp_path, 0, tick=0.1).start() as server:
        page = look(server.url)
        page.wait_for_selector('#facts[data-step="19"]')
        run.add(range(20, 60))
        page.wait_for_selector('#facts[data-step="59"]')
        page.wait_for_selector('body[data-span^="0 60"]')
        assert page.locator("#layers option").count() == 0
    run.close()


def test_a_lost_connection_is_reported_and_restored(
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


def test_a_deleted_run_is_reported_and_stays_visible(tmp_path: Path, look: Look, watched: Watched) -> None:
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
        expect(page.locator("#problems")).to_contain_text(
            "The run old no longer exists or cannot be read. The page shows its last known state."
        )
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
            "There is no run old here. The page shows the newest run"
        )
        assert state(page)["run"] == "new"


def test_choosing_another_run_clears_the_page(tmp_path: Path, look: Look) -> None:
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


def test_a_late_answer_about_another_run_is_ignored(tmp_path: Path, look: Look) -> None:
    for name, layers in (("old", ("a", "b")), ("new", ("x",))):
        run = made.Growing(tmp_path, layers, name)
        run.add(range(20))
        run.close()
    with Server(tmp_path, 0).start() as server:
        page = look(server.url, "#run=old")
        held: list[Route] = []
        page.route("**/api/head?run=new", lambda route: held.append(route))
        page.locator("#run").select_option("new")
        until(page, lambda: bool(held))
        with page.expect_response("**/api/series?run=old"):
            page.locator("#run").select_option("old")
        settle(page)  # the one that was asked for later has come first
        late(page, held[0])
        expect(page.locator("#layers option")).to_have_count(2)
        expect(page.locator("#run")).to_have_value("old")


def test_a_late_answer_about_another_statistic_is_ignored(server: Server, look: Look) -> None:
    page = look(server.url, "#run=broken&measure=gradients.rms&layer=gap&step=1")
    held: list[Route] = []
    page.route("**/api/matrix?*from=*", lambda route: held.append(route))
    page.keyboard.press("z")
    until(page, lambda: bool(held))
    page.locator("#mode").select_option("past")
    page.wait_for_selector('body[data-shown="gradients.rms past 2"]')
    late(page, held[0])
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
        until(page, lambda: sum("api/distribution" in url for url in watched.requests) == asked + 1)
        run.add([60])  # too little to ask again
        page.wait_for_selector('#facts[data-step="60"]')
        settle(page)
        assert sum("api/distribution" in url for url in watched.requests) == asked + 1
    run.close()
