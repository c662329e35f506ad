"""Tiny data sets, made by NumPy from fixed seeds: enough for a few steps that learn something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def table(n: int = 48, features: int = 8, outputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, and targets that depend on them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, features)).astype("float32")
    return x, (x @ rng.normal(size=(features, outputs))).astype("float32")


def digits(n: int = 48, size: int = 8, channels: int = 1, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright bar whose place is their class."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, classes, n)
    images = rng.uniform(0.0, 0.3, size=(n, size, size, channels))
    for image, label in zip(images, labels, strict=True):
        image[label * size // classes] += 0.7
    return images.astype("float32"), labels.astype("int32")


def sentences(n: int = 48, length: int = 12, vocabulary: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens, padded with 0 at their ends, and whether they hold more small than large ones."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, vocabulary, size=(n, length))
    tokens[np.arange(length) >= rng.integers(length // 2, length + 1, size=(n, 1))] = 0
    small = ((tokens > 0) & (tokens < vocabulary // 2)).sum(1) > (tokens >= vocabulary // 2).sum(1)
    return tokens.astype("int32"), small.astype("int32")


def batches(*arrays: np.ndarray, size: int = 16) -> Iterator[Any]:
    """The arrays in batches, in their order."""
    for start in range(0, len(arrays[0]), size):
        yield tuple(array[start : start + size] for array in arrays)
