"""The lane of ranks in the page: drawn for a run of several processes, absent for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from fitscope.show.serve import Server

from . import made
from .looking import Look

STEPS = np.arange(0, 640, 10)


def with_ranks(to: Path, world: int, slow: int) -> None:
    """A run whose ranks all have a pulse; one of them takes twice as long from the middle on."""
    from fitscope.store import RunWriter

    run = made.Growing(to, ("a", "b"), world=world)
    run.add(range(0, 640, 10))
    n = len(STEPS)
    for rank in range(world):
        took = (
            5.0
            * (1 + 0.05 * np.random.default_rng(rank).random(n))
            * np.where((STEPS > 320) & (rank == slow), 2, 1)
        )
        pulse = {"step": STEPS.tolist(), "time": (1.8e9 + 100 * rank + np.cumsum(took)).tolist(), "cpu": np.cumsum(took).tolist(),
                 "loss": [1.0] * n, "weights": [0.5] * n}  # fmt: skip
        if rank == 0:
            writer = run.writer
        else:
            writer = RunWriter.share(to, "run", {}, attempt=0, start_step=0, world=world, rank=rank)
            writer.reached(630)
        writer.note(pulse=pulse)
        writer.close("interrupted" if rank == 1 else "complete")


@pytest.mark.parametrize("world", [4, 256])
def test_a_slow_rank_is_red(look: Look, tmp_path: Path, world: int) -> None:
    with_ranks(tmp_path, world, slow=2)
    with Server(tmp_path, 0).start() as server:
        page = look(server.url)
        canvas = page.locator("#ranks")
        expect(canvas).to_be_visible()
        box = canvas.bounding_box()
        assert box is not None
        reds = page.evaluate(
            """() => {
                const canvas = document.getElementById("ranks");
                const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const found = [];
                for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
                    const i = 4 * (y * width + x);
                    if (data[i] > 180 && data[i + 1] < 190 && data[i + 2] < 160 && data[i + 3] > 200) found.push([x / width, y / height]);
                }
                return found;
            }"""
        )
        reds = [
            (x, y) for x, y in reds if x > 0.2
        ]  # beside the names, in which a stopped rank has a colour too
        assert len(reds) > 20
        assert min(x for x, _ in reds) > 0.45, "only from the middle on"
        page.mouse.move(
            box["x"] + 0.8 * box["width"], box["y"] + box["height"] * (2.5 / 4 if world == 4 else 0.01)
        )
        expect(page.locator("#tip")).to_contain_text("× the usual time of a step")
        expect(page.locator("#verdict")).to_contain_text("rank 2")


def test_a_run_of_one_process_has_no_lane_of_ranks(look: Look, tmp_path: Path) -> None:
    run = made.Growing(tmp_path, ("a",))
    run.add(range(10))
    run.close()
    with Server(tmp_path, 0).start() as server:
        expect(look(server.url).locator("#ranks")).to_be_hidden()
