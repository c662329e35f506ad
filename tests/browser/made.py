"""Runs for the browser tests, written straight into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from playwright.sync_api import Page

from fitscope.record import Moment, Record, Samples
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

HOSTILE = (
    "<img src=x onerror='window.hacked=1'>",
    "esc\x1b[31mape\u202e",
    "</script><script>window.hacked=1</script>",
)


def _write(to: Path, names: tuple[str, ...], steps: int, value: object) -> None:
    layers = [{"path": n, "name": n, "type": "Dense", "from": [], "weights": {}} for n in names]
    writer = RunWriter.create(to, "run", {"model": {"name": names[0] if names else "none", "layers": layers}})
    for step in range(steps):
        records = []
        for name in names:
            tensor = np.full((2, 2), value(step, name), np.float32)  # type: ignore[operator]
            at = Moment(step, 0, step, 1_800_000_000.0 + step)
            records.append(Record(f"activations/{name}", at, tensor.shape, "float32", reduce(tensor)))
        writer.write(records)
    writer.close()


def odd_batches(to: Path, spike: int, dip: int, steps: int = 4000) -> int:
    """Layers a, b, c: one batch of `a` is far above all others, one of `b` far below."""

    def value(step: int, name: str) -> float:
        return 1e3 if (step, name) == (spike, "a") else 1e-4 if (step, name) == (dip, "b") else 1.0

    _write(to, ("a", "b", "c"), steps, value)
    return steps


def hostile(to: Path) -> None:
    _write(to, HOSTILE, 20, lambda step, name: 0.0 if name == HOSTILE[0] else 1.0)


def empty(to: Path) -> None:
    _write(to, (), 0, None)


def sampled(to: Path) -> None:
    """Layer a: statistics of 4 of its 64 values, by a budget; two samples, of which the inputs were kept; a learning rate."""
    layers = [{"path": "a", "name": "a", "type": "Dense", "from": [], "weights": {}}]
    writer = RunWriter.create(to, "run", {"model": {"name": "net", "layers": layers}})
    images = np.zeros((2, 8, 8, 3), np.uint8)
    images[:, 4, 4] = (255, 0, 128)
    for step in range(8):
        at = Moment(step, 0, step, 1_800_000_000.0 + step)
        rate = np.float32(0.1 if step < 4 else 0.025)
        seen = reduce(np.full((2, 2), 1.0 + step, np.float32))
        writer.write(
            [
                Record("activations/a", at, (8, 8), "float32", seen),
                Record("learning_rate", at, (), "float32", reduce(rate), batched=False),
                Record("inputs", at, images.shape, "uint8", reduce(images), images),
            ],
            [Samples(at, "train", ids=("x", "y"), loss=np.array([1.0, 2.0]))],
        )
    writer.note(
        overhead={"cpu_share": 0.013, "budget": {"share": 0.02, "every": 20, "decisions": []}},
        identity={"train": {"status": "proven", "steps": [0, 1, 2], "why": ""}},
    )
    writer.close()


class Growing:
    """A run that goes on: each layer's output at each step, and a loss."""

    def __init__(
        self,
        to: Path,
        names: Sequence[str] = ("a", "b"),
        name: str = "run",
        *,
        epoch: int = 100,
        optimizer: dict[str, object] | None = None,
        sources: Mapping[str, Sequence[str]] | None = None,
        world: int = 1,
    ) -> None:
        self.epoch = epoch
        layers = [
            {"path": n, "name": n, "type": "Dense", "from": [*(sources or {}).get(n, ())], "weights": {}}
            for n in names
        ]
        self.names = names
        about = {"model": {"name": "net", "layers": layers}, "configuration": {"optimizer": optimizer}}
        about |= {"sampled": [0]} if world > 1 else {}
        self.writer = RunWriter.create(to, name, about, world=world)

    def add(
        self,
        steps: Iterable[int],
        value: Callable[[int, str], ArrayLike] = lambda step, name: 1.0,
        loss: Callable[[int], float] = lambda step: 1.0 + step,
        *,
        kinds: Sequence[str] = ("activations/{}",),
    ) -> None:
        for step in steps:
            at = Moment(step, step // self.epoch, step % self.epoch, 1_800_000_000.0 + step)
            records = [Record("loss", at, (), "float32", reduce(np.float32(loss(step))), batched=False)]
            for site in (kind.format(name) for name in self.names for kind in kinds):
                tensor = np.full((2, 2), value(step, site.partition("/")[2]), np.float32)
                records.append(Record(site, at, tensor.shape, "float32", reduce(tensor)))
            self.writer.write(records)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def long_bars(page: Page) -> list[bool]:
    """Of three layers in the depth profile, whose bar reaches a third of the way."""
    found: list[bool] = page.evaluate(
        """() => {
            const canvas = document.getElementById("depth");
            const g = canvas.getContext("2d");
            return [0, 1, 2].map((row) => g.getImageData(canvas.width * 0.3, canvas.height * (row + 0.3) / 3, 1, 1).data[3] > 0);
        }"""
    )
    return found
