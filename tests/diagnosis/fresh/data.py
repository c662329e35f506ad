"""Toy data of the kind that notebooks draw for themselves: moons, a table of wines, coloured shapes, letters, series with a trend.

Nothing is balanced or scaled beyond what its author would do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnosis.data import Array, Data, parted


def moons(n: int = 600, noise: float = 0.2, seed: int = 0) -> Data:
    """Two half circles that interlock; the label is a column of 0 and 1."""
    rng = np.random.default_rng(seed)
    more = n + 120
    y = rng.integers(0, 2, more)
    angle = rng.uniform(0, np.pi, more)
    x = np.where(y == 0, np.cos(angle), 1 - np.cos(angle))
    z = np.where(y == 0, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, z], 1) + rng.normal(size=(more, 2)) * noise
    return parted(points.astype("float32"), y.astype("float32")[:, None], n)


def wines(n: int = 560, scaled: bool = True, seed: int = 0, shares: Any = (0.33, 0.4, 0.27)) -> Data:
    """Ten measured columns, from 0.1 to 1000 in size, of three kinds of wine."""
    rng = np.random.default_rng(seed)
    more = n + 140
    y = rng.choice(len(shares), size=more, p=shares)
    size = np.array([13, 2.3, 2.4, 19, 100, 2.3, 0.36, 1.6, 5.0, 750.0])
    centre = rng.normal(size=(len(shares), 10)) * 0.12
    x = size * (1 + centre[y] + rng.normal(size=(more, 10)) * 0.13)
    if scaled:
        x = (x - x[:n].mean(0)) / x[:n].std(0)
    return parted(x.astype("float32"), y.astype("int32"), n)


def bicycles(n: int = 640, seed: int = 0, mean: float = 0.0, spread: float = 1.0, noise: float = 0.2) -> Data:
    """Rentals by temperature, hour, humidity, wind and weekday; the inputs are standardised, the target has the units asked for."""
    rng = np.random.default_rng(seed)
    more = n + 160
    x = rng.normal(size=(more, 7))
    y = x[:, 0] + np.sin(2 * x[:, 1]) - 0.5 * x[:, 2] * (x[:, 3] > 0) + 0.3 * x[:, 4] ** 2
    y = (y - y.mean()) / y.std() + noise * rng.normal(size=more)
    return parted(x.astype("float32"), (mean + spread * y).astype("float32")[:, None], n)


def shapes(n: int = 360, size: int = 12, seed: int = 0, classes: int = 3) -> Data:
    """Coloured squares, discs and crosses on a dark ground: values from 0 to 1, three channels."""
    pictures, _, y = drawn(n + 90, size, seed, classes)
    return parted(pictures, y, n)


def masks(n: int = 300, size: int = 16, seed: int = 0) -> Data:
    """The same with the mask of the shape as the target."""
    pictures, mask, _ = drawn(n + 60, size, seed, 3)
    return parted(pictures, mask, n)


def drawn(n: int, size: int, seed: int, classes: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = np.zeros((n, size, size, 3))
    mask = np.zeros((n, size, size, 1))
    rows, columns = np.mgrid[:size, :size]
    for i in range(n):
        r = rng.uniform(2.0, size / 4)
        top, left = rng.uniform(r, size - 1 - r, 2)
        down, right = np.abs(rows - top), np.abs(columns - left)
        inside = (
            np.maximum(down, right) <= r
            if y[i] == 0
            else down**2 + right**2 <= (1.1 * r) ** 2
            if y[i] == 1
            else (np.minimum(down, right) <= 0.8) & (np.maximum(down, right) <= r + 1)
        )
        mask[i, ..., 0] = inside
        x[i] = 0.1 * rng.random((size, size, 3)) + inside[..., None] * rng.uniform(0.4, 0.9, 3)
    return np.clip(x, 0, 1).astype("float32"), mask.astype("float32"), y.astype("int32")


def text(n: int = 420, length: int = 16, seed: int = 0) -> Data:
    """Letters of made-up words out of few syllables, as numbers below 20; the target is the next letter at each place."""
    rng = np.random.default_rng(seed)
    syllables = rng.integers(1, 20, (12, 3))
    flow = rng.dirichlet(np.full(12, 0.3), 12)
    rows = []
    for _ in range(n + 100):
        at, row = int(rng.integers(12)), []
        while len(row) <= length:
            row += list(syllables[at])
            at = int(rng.choice(12, p=flow[at]))
        rows.append(row[: length + 1])
    whole = np.array(rows, dtype="int32")
    return parted(whole[:, :-1], whole[:, 1:], n)


def reversals(n: int = 480, length: int = 6, seed: int = 0) -> tuple[Array, Array, Array]:
    """Digits 1 to 9, the decoder's input (shifted by one, begins with 0) and the digits backwards."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 10, (n, length))
    y = x[:, ::-1]
    before = np.concatenate([np.zeros((n, 1)), y[:, :-1]], 1)
    return x.astype("int32"), before.astype("int32"), y.astype("int32")


def series(n: int = 420, length: int = 24, seed: int = 0, trend: float = 0.02) -> Data:
    """Windows of one long series with a season and a trend, scaled by the whole; the target is the next value."""
    rng = np.random.default_rng(seed)
    time = np.arange(n + 100 + length)
    values = np.sin(time / 5) + 0.4 * np.sin(time / 1.7) + trend * time + 0.1 * rng.normal(size=len(time))
    values = (values - values.mean()) / values.std()
    x = np.stack([values[i : i + length] for i in range(n + 100)])
    y = values[length : length + n + 100]
    order = rng.permutation(n + 100)
    return parted(x[order, :, None].astype("float32"), y[order, None].astype("float32"), n)


def shops(n: int = 600, columns: int = 40, seed: int = 0) -> Data:
    """Zero-inflated counts: most baskets lack most goods. The target is how often the shopper comes back."""
    rng = np.random.default_rng(seed)
    more = n + 150
    rate = rng.gamma(0.4, 1.5, columns)
    x = rng.poisson(rate, (more, columns)) * (rng.random((more, columns)) < 0.3)
    drive = np.log1p(x) @ (rng.normal(size=columns) * 0.4)
    y = rng.poisson(np.exp(np.clip(0.5 + drive - drive.mean(), -3, 3)))
    return parted(np.log1p(x).astype("float32"), y.astype("float32")[:, None], n)


def genes(n: int = 400, length: int = 30, seed: int = 0) -> Data:
    """One-hot letters; half of the sequences carry a motif."""
    rng = np.random.default_rng(seed)
    more = n + 100
    letters = rng.integers(0, 4, (more, length))
    y = rng.integers(0, 2, more)
    for i in np.flatnonzero(y):
        at = rng.integers(0, length - 6)
        letters[i, at : at + 6] = (0, 2, 3, 3, 1, 2)
    return parted(np.eye(4, dtype="float32")[letters], y.astype("float32")[:, None], n)


def clouds(n: int = 400, points: int = 20, seed: int = 0) -> Data:
    """Sets of points on a ring, a line or in a lump."""
    rng = np.random.default_rng(seed)
    more = n + 100
    y = rng.integers(0, 3, more)
    angle = rng.uniform(0, 6.28, (more, points))
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    line = np.stack([angle / 3.14 - 1, angle / 3.14 - 1], -1)
    lump = rng.normal(size=(more, points, 2)) * 0.6
    x = np.stack([ring, line, lump])[y, np.arange(more)] + rng.normal(size=(more, points, 2)) * 0.1
    return parted(x.astype("float32"), y.astype("int32"), n)


def ratings(n: int = 1200, seed: int = 0) -> tuple[Array, Array, Array]:
    """Numbers of users and films (a few of them popular), and stars from 1 to 5."""
    rng = np.random.default_rng(seed)
    users, films = rng.integers(0, 120, n), np.minimum(rng.geometric(0.03, n), 299)
    taste, kind = rng.normal(size=(120, 2)), rng.normal(size=(300, 2))
    stars = np.clip(np.round(3.4 + (taste[users] * kind[films]).sum(1) + 0.3 * rng.normal(size=n)), 1, 5)
    return users.astype("int32"), films.astype("int32"), stars.astype("float32")[:, None]
