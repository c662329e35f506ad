"""Small pictures of the samples of a batch, where its inputs were kept."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.record import Moment, Record, Samples
from fitscope.show.data.gather import Gathered
from fitscope.show.data.samples import worst_of_batch
from fitscope.store import RunWriter

Kept = Callable[[Any], Gathered]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A run of one batch whose inputs were kept, and the losses of its samples: the last is the worst."""

    def made(batch: Any, *, site: str = "inputs") -> Gathered:
        batch = np.asarray(batch)
        at = Moment(3, 0, 3, 1_800_000_000.0)
        writer = RunWriter.create(tmp_path, "run", {})
        writer.write(
            [Record(site, at, batch.shape, batch.dtype.name, None, batch)],
            [Samples(at, "train", loss=np.arange(len(batch), dtype=float))],
        )
        writer.close()
        g = Gathered(fs.open(tmp_path))
        g.update()
        return g

    return made


def pictures(g: Gathered) -> list[Any]:
    """Of each sample, the worst first: its picture as height × width × 3, or None."""
    found = [sample["picture"] for sample in worst_of_batch(g, 5)["samples"]]
    return [
        p and np.frombuffer(base64.b64decode(p["rgb"]), np.uint8).reshape(p["high"], p["wide"], 3)
        for p in found
    ]


def test_an_image_is_shown_as_it_went_in(kept: Kept) -> None:
    batch = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3)).astype(np.uint8)
    batch[0, 0, 0] = 255  # so that it is seen not to be shares of one
    assert [p.tolist() for p in pictures(kept(batch))] == batch[::-1].tolist()


def test_grey_images_of_shares_and_others_are_scaled_to_bytes(kept: Kept) -> None:
    batch = np.zeros((2, 8, 8), np.float32)
    batch[0, 0, 0], batch[1, 2, 3] = 1.0, 0.5
    worst, best = pictures(kept(batch))
    assert worst[2, 3].tolist() == [128] * 3
    assert best[0, 0].tolist() == [255] * 3
    assert worst[0, 0].tolist() == [0] * 3


def test_anything_else_goes_from_its_lowest_to_its_highest(kept: Kept) -> None:
    batch = np.zeros((1, 8, 8, 1), np.float32)
    batch[0, 0, 0], batch[0, 0, 1], batch[0, 0, 2] = -2.0, 2.0, np.nan
    (picture,) = pictures(kept(batch, site="inputs/image"))
    assert [picture[0, x, 0] for x in range(4)] == [0, 255, 0, 128]


def test_channels_may_come_first_and_large_ones_are_shrunk(kept: Kept) -> None:
    batch = np.zeros((1, 3, 100, 70), np.uint8)
    batch[0, 2] = 200
    (picture,) = pictures(kept(batch))
    assert picture.shape == (25, 18, 3)
    assert picture[0, 0].tolist() == [0, 0, 200]


@pytest.mark.parametrize("shape", [(2, 9), (2, 3, 3), (2, 8, 8, 7), (2, 4, 4, 4, 4)])
def test_inputs_that_are_not_images_have_no_thumbnail(kept: Kept, shape: tuple[int, ...]) -> None:
    assert pictures(kept(np.ones(shape, np.float32))) == [None, None]


def test_a_step_whose_inputs_were_not_kept_has_no_picture(kept: Kept) -> None:
    assert pictures(kept(np.ones((2, 8, 8), np.float32), site="activations/a")) == [None, None]
