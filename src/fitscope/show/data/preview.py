"""Makes thumbnails of samples, if the inputs of their batch were kept and look like images.

An image has two axes, or three with one, three or four channels last (or first). It is reduced to `SIDE` pixels by dropping rows
and columns, and scaled to bytes: 0…255 and 0…1 unchanged, anything else from the lowest to the highest value of the batch.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from fitscope.errors import RunError
from fitscope.show.data.gather import Gathered
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

SIDE = 32  #: the most pixels along a side
LEAST = 4  #: a smaller input is a table of numbers, not a picture
CHANNELS = (1, 3, 4)


def previews(g: Gathered, step: int, samples: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The thumbnails by place in the batch: `wide`, `high` and the bytes (RGB, base64)."""
    batch = _batch(g, step)
    if batch is None:
        return {}
    kept = [sample for sample in samples if 0 <= sample < len(batch)]
    if not kept:
        return {}
    every = max(-(-max(batch.shape[1:3]) // SIDE), 1)
    small = batch[kept][:, ::every, ::every]
    shown = _bytes(small, *_ends(batch))
    return {
        sample: {
            "wide": image.shape[1],
            "high": image.shape[0],
            "rgb": base64.b64encode(image.tobytes()).decode(),
        }
        for sample, image in zip(kept, shown, strict=True)
    }


def _batch(g: Gathered, step: int) -> Array | None:
    """The inputs of a batch as samples × height × width × 3, if they were kept and are images."""
    for site in sorted(g.kept):
        if Site.parse(site).kind == "inputs":
            try:
                found = _image_like(g.run.array(site, step))
            except RunError:  # this step has no inputs
                continue
            if found is not None:
                return found
    return None


def _image_like(batch: Array) -> Array | None:
    if batch.dtype.kind not in "fuib" or not batch.size:
        return None
    if batch.ndim == 3:
        batch = batch[..., None]
    if batch.ndim == 4 and batch.shape[3] not in CHANNELS:
        batch = np.moveaxis(batch, 1, 3)
    if batch.ndim != 4 or batch.shape[3] not in CHANNELS or min(batch.shape[1:3]) < LEAST:
        return None
    return np.repeat(batch, 3, axis=3) if batch.shape[3] == 1 else batch[..., :3]


def _ends(batch: Array) -> tuple[float, float]:
    numbers = batch[np.isfinite(batch)] if batch.dtype.kind == "f" else batch
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= 0 and high <= 255:
        return 0.0, 255.0
    return low, high


def _bytes(images: Array, low: float, high: float) -> Array:
    scaled = (np.nan_to_num(images.astype(np.float64), nan=low) - low) * (255 / ((high - low) or 1))
    return np.ascontiguousarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))
