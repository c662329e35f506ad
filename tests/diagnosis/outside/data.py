"""Data sets drawn for this part: displays, textures, machines, loans, flats, logs of words, series of a river and a heart.

Every generator takes its own seed and returns inputs that are ready for a net unless a program spoils them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnosis.data import Array, Data, parted

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def displays(n: int = 500, classes: int = 10, noise: float = 0.25, seed: int = 0) -> Data:
    """Digits of a seven-segment display, 12 x 10 grey values from 0 to about 1, shifted by a pixel or two."""
    rng = np.random.default_rng(seed)
    more = n + 120
    y = rng.integers(0, classes, more)
    x = rng.random((more, 12, 10, 1)) * noise
    strokes = {
        "a": (slice(0, 1), slice(1, 6)),
        "g": (slice(4, 5), slice(1, 6)),
        "d": (slice(8, 9), slice(1, 6)),
        "f": (slice(0, 5), slice(0, 1)),
        "b": (slice(0, 5), slice(6, 7)),
        "e": (slice(4, 9), slice(0, 1)),
        "c": (slice(4, 9), slice(6, 7)),
    }
    for i in range(more):
        down, right = rng.integers(0, 4), rng.integers(0, 4)
        part = x[i, down : down + 9, right : right + 7, 0]
        for one in SEGMENTS[y[i]]:
            part[strokes[one]] += rng.uniform(0.6, 0.9)
    return parted(np.clip(x, 0, 1).astype("float32"), y.astype("int32"), n)


def textures(n: int = 360, size: int = 16, seed: int = 0, classes: int = 4) -> Data:
    """Coloured stripes in four directions, standardised."""
    rng = np.random.default_rng(seed)
    more = n + 90
    y = rng.integers(0, classes, more)
    rows, columns = np.mgrid[:size, :size]
    along = np.stack([rows, columns, rows + columns, rows - columns])[y]
    phase, pitch = rng.uniform(0, 6.28, (more, 1, 1)), rng.uniform(0.9, 1.3, (more, 1, 1))
    grey = np.sin(along * pitch + phase)[..., None] * rng.uniform(0.4, 1.0, (more, 1, 1, 3))
    x = grey + rng.normal(size=(more, size, size, 3)) * 0.5
    return parted(((x - x.mean()) / x.std()).astype("float32"), y.astype("int32"), n)


def machines(
    n: int = 700, columns: int = 12, classes: int = 4, overlap: float = 1.0, seed: int = 0, shares: Any = None
) -> Data:
    """Readings of sensors, correlated with one another; the label is the state of the machine. Two lumps for each state."""
    rng = np.random.default_rng(seed)
    more = n + 180
    y = rng.choice(classes, more, p=shares)
    lump = rng.integers(0, 2, more)
    centres = rng.normal(size=(classes, 2, columns)) * 1.3
    mixing = np.eye(columns) + 0.25 * rng.normal(size=(columns, columns))
    x = (centres[y, lump] + overlap * rng.normal(size=(more, columns))) @ mixing
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    return parted(x.astype("float32"), y.astype("int32"), n)


def loans(n: int = 800, rare: float = 0.4, seed: int = 0, noise: float = 0.4) -> Data:
    """Nine standardised columns of an applicant and whether the loan failed, as a column of 0 and 1."""
    rng = np.random.default_rng(seed)
    more = n + 200
    x = rng.normal(size=(more, 9))
    x[:, 5:] = x[:, 5:] > 0.3
    score = (
        x[:, 0] - x[:, 1] * x[:, 5] + 0.8 * np.abs(x[:, 2]) + 0.5 * x[:, 3] + noise * rng.normal(size=more)
    )
    y = score > np.quantile(score, 1 - rare)
    x = (x - x.mean(0)) / x.std(0)
    return parted(x.astype("float32"), y.astype("float32")[:, None], n)


def flats(
    n: int = 700, mean: float = 0.0, spread: float = 1.0, noise: float = 0.15, seed: int = 0, columns: int = 8
) -> Data:
    """Eight columns of a flat and its rent: mean 0 and spread 1, or in the units asked for."""
    rng = np.random.default_rng(seed)
    more = n + 180
    x = rng.normal(size=(more, columns))
    y = x[:, 0] + 0.6 * x[:, 1] * (x[:, 2] > 0) + np.tanh(x[:, 3]) + 0.4 * x[:, 4] ** 2 - 0.5 * x[:, 5]
    y = (y - y.mean()) / y.std() + noise * rng.normal(size=more)
    return parted(x.astype("float32"), (mean + spread * y).astype("float32")[:, None], n)


def commands(n: int = 500, length: int = 14, vocabulary: int = 24, classes: int = 3, seed: int = 0) -> Data:
    """Lines of word numbers: three marker words stand somewhere among fillers, and the last of them decides the class."""
    rng = np.random.default_rng(seed)
    more = n + 120
    x = rng.integers(classes + 1, vocabulary, (more, length))
    places = np.sort(np.argsort(rng.random((more, length)), 1)[:, :2], 1)
    marks = rng.integers(0, classes, (more, 2))
    for i in range(more):
        x[i, places[i]] = marks[i] + 1
    return parted(x.astype("int32"), marks[:, 1].astype("int32"), n)


def topics(n: int = 480, length: int = 18, vocabulary: int = 60, classes: int = 4, seed: int = 0) -> Data:
    """Bags of words from overlapping topics; 0 fills up short lines at the end."""
    rng = np.random.default_rng(seed)
    more = n + 120
    y = rng.integers(0, classes, more)
    topic = rng.dirichlet(np.full(vocabulary - 1, 0.15), classes) * 0.7 + 0.3 / (vocabulary - 1)
    x = np.stack([rng.choice(np.arange(1, vocabulary), length, p=topic[one]) for one in y])
    x[np.arange(length) >= rng.integers(8, length + 1, (more, 1))] = 0
    return parted(x.astype("int32"), y.astype("int32"), n)


def needles(n: int = 500, length: int = 16, features: int = 6, seed: int = 0) -> Data:
    """Sets of vectors in which one is marked by its first number; the rest of that vector tells the class."""
    rng = np.random.default_rng(seed)
    more = n + 120
    x = rng.normal(size=(more, length, features))
    x[:, :, 0] = 0.2 * rng.normal(size=(more, length))
    y = rng.integers(0, 3, more)
    at = rng.integers(0, length, more)
    x[np.arange(more), at, 0] = 3.0
    x[np.arange(more), at, 1:4] = 2.5 * np.eye(3)[y] + 0.3 * rng.normal(size=(more, 3))
    return parted(x.astype("float32"), y.astype("int32"), n)


def river(n: int = 500, length: int = 20, seed: int = 0, mean: float = 0.0, spread: float = 1.0) -> Data:
    """Windows of a level with a season and slow noise; the target is the level two steps ahead."""
    rng = np.random.default_rng(seed)
    more = n + 120
    time = np.arange(more + length + 2)
    slow = np.convolve(rng.normal(size=len(time) + 9), np.ones(10) / 10, "valid")
    level = np.sin(time / 4) + 0.5 * np.sin(time / 11) + slow
    level = (level - level.mean()) / level.std()
    x = np.stack([level[i : i + length] for i in range(more)])[..., None]
    y = level[length + 1 : length + 1 + more, None]
    order = rng.permutation(more)
    x, y = mean + spread * x[order], mean + spread * y[order]
    return parted(x.astype("float32"), y.astype("float32"), n)


def beats(n: int = 420, length: int = 32, classes: int = 3, seed: int = 0) -> Data:
    """Two channels of a heart: the class is the shape of the beat that repeats."""
    rng = np.random.default_rng(seed)
    more = n + 100
    y = rng.integers(0, classes, more)
    time = np.arange(length) + rng.uniform(0, 8, (more, 1))
    shape = np.stack([np.sin(time * 0.8), np.sign(np.sin(time * 0.8)), np.abs(np.sin(time * 0.4)) * 2 - 1])
    wave = shape[y, np.arange(more)]
    x = np.stack([wave, np.roll(wave, 3, 1)], -1) + 0.35 * rng.normal(size=(more, length, 2))
    return parted((x / x.std()).astype("float32"), y.astype("int32"), n)


def parity_first(n: int = 480, length: int = 30, seed: int = 0) -> Data:
    """Sequences of noise whose class is the sign of the first value."""
    rng = np.random.default_rng(seed)
    more = n + 120
    x = rng.normal(size=(more, length, 1))
    y = rng.integers(0, 2, more)
    x[:, 0, 0] = 2.0 * (2 * y - 1)
    return parted(x.astype("float32"), y.astype("float32")[:, None], n)


def faces(n: int = 500, features: int = 24, seed: int = 0) -> Array:
    """Points near a curved sheet of three dimensions, from 0 to 1, for an autoencoder that samples."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    out = np.tanh(hidden @ rng.normal(size=(3, 16))) @ rng.normal(size=(16, features)) * 0.6
    return (1 / (1 + np.exp(-out - 0.1 * rng.normal(size=(n, features))))).astype("float32")
