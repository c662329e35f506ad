"""Synthetic data that look like what people train on: tables of mixed scales, pictures with masks, recordings and sentences.

Each function draws from its own seed. Inputs come standardised, unless the name says `raw`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnosis.data import Array, Data, parted, scaled

MORE = 96  #: rows for validation


def people(n: int = 640, seed: int = 0) -> tuple[Array, Array]:
    """Raw columns age, income, a ratio, visits, a score of 5 and a distance; and a hidden score that depends on them."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n + MORE, 6))
    columns = [
        40 + 12 * z[:, 0],
        np.exp(10 + 0.5 * z[:, 1]),
        1 / (1 + np.exp(-z[:, 2])),
        np.floor(np.exp(1.5 + 0.5 * z[:, 3])),
        5 + 2 * z[:, 4],
        np.exp(0.7 * z[:, 5]),
    ]
    score = 1.2 * z[:, 0] - z[:, 1] + z[:, 2] * z[:, 4] + 0.8 * z[:, 5] + 0.3 * rng.normal(size=n + MORE)
    return np.stack(columns, 1), score


def tamed(raw: Array) -> Array:
    """The columns of `people` as a careful analyst would feed them: logarithms of the skewed ones, then standardised."""
    raw = raw.copy()
    raw[:, [1, 3, 5]] = np.log1p(raw[:, [1, 3, 5]])
    return scaled(raw)


def grouped(score: Array, classes: int) -> Array:
    """The score cut into classes of the same size."""
    return np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score).astype("int32")


def scenes(n: int = 320, size: int = 12, colours: int = 3, seed: int = 0) -> tuple[Array, Array, Array]:
    """Raw pictures from 0 to 255 of a bright disc or square on a dim background, the mask of the thing, and its kind."""
    rng = np.random.default_rng(seed)
    more = n + MORE
    kind = rng.permutation(np.arange(more) % 2)
    rows, columns = np.mgrid[:size, :size]
    centre = rng.uniform(size * 0.3, size * 0.7, (more, 2, 1, 1))
    away = np.stack([rows - centre[:, 0], columns - centre[:, 1]], 1)
    radius = rng.uniform(size * 0.2, size * 0.3, (more, 1, 1))
    disc = (away**2).sum(1) < radius**2
    cross = (np.abs(away).min(1) < 1.0) & (np.abs(away).max(1) < radius * 1.4)
    mask = np.where(kind[:, None, None] == 0, disc, cross)
    paint = rng.uniform(120, 220, (more, 1, 1, colours))
    picture = 60 + rng.normal(size=(more, size, size, colours)) * 20 + mask[..., None] * (paint - 60)
    return np.clip(picture, 0, 255).astype("float32"), mask[..., None].astype("float32"), kind.astype("int32")


def standard_scenes(n: int = 320, size: int = 12, colours: int = 3, seed: int = 0) -> Data:
    """Standardised pictures with the kind of the thing in them."""
    x, _, kind = scenes(n, size, colours, seed)
    return parted((x - x.mean()) / x.std(), kind, n)


def recordings(n: int = 400, length: int = 24, channels: int = 4, classes: int = 3, seed: int = 0) -> Data:
    """Sensors that swing at a frequency of the class; each channel has a phase, a share and noise of its own."""
    rng = np.random.default_rng(seed)
    more = n + MORE
    y = rng.permutation(np.arange(more) % classes)
    time = np.arange(length)[None, :, None]
    phase = rng.uniform(0, 6.28, (more, 1, channels))
    x = np.sin(time * (0.35 + 0.45 * y[:, None, None]) + phase) * rng.uniform(0.7, 1.3, (more, 1, channels))
    x = x + rng.normal(size=x.shape) * 0.4
    return parted((x / x.std()).astype("float32"), y.astype("int32"), n)


def sentences(n: int = 480, length: int = 14, words: int = 60, topics: int = 3, seed: int = 0) -> Data:
    """Word numbers from 2 on; rare and common words, a third of which belong to the topic. 0 is padding, 1 is unknown."""
    rng = np.random.default_rng(seed)
    more = n + MORE
    y = rng.permutation(np.arange(more) % topics)
    own = (words - 2) // (2 * topics)
    common = 2 + topics * own + np.minimum(rng.geometric(0.08, (more, length)), words - topics * own - 2) - 1
    special = 2 + y[:, None] * own + rng.integers(0, own, (more, length))
    x = np.where(rng.random((more, length)) < 0.35, special, common)
    return parted(x.astype("int32"), y.astype("int32"), n)


def first_of_two(n: int = 800, length: int = 10, seed: int = 0) -> Data:
    """Sentences with one word 2 and one word 3 among others; the label tells which of them comes first."""
    rng = np.random.default_rng(seed)
    more = n + MORE
    x = rng.integers(4, 20, (more, length))
    y = rng.permutation(np.arange(more) % 2)
    for i in range(more):
        first, second = np.sort(rng.choice(length, 2, replace=False))
        x[i, first], x[i, second] = (2, 3) if y[i] else (3, 2)
    return parted(x.astype("int32"), y.astype("int32"), n)


def successors(n: int = 400, length: int = 12, words: int = 40, seed: int = 0) -> Data:
    """Sentences in which each word mostly decides the next; the targets are the next words."""
    rng = np.random.default_rng(seed)
    more = n + MORE
    follows = rng.permutation(words)
    x = np.empty((more, length + 1), "int32")
    x[:, 0] = rng.integers(0, words, more)
    for t in range(length):
        x[:, t + 1] = np.where(rng.random(more) < 0.85, follows[x[:, t]], rng.integers(0, words, more))
    return parted(x[:, :-1], x[:, 1:], n)


def split(parts: list[Array], y: Any, n: int) -> dict[str, Any]:
    """Several inputs as `Training` takes them."""
    return {
        "x": [one[:n] for one in parts],
        "y": y[:n],
        "validation": ([one[n:] for one in parts], y[n:]),
    }
