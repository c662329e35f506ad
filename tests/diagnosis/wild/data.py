"""Data that look like what people train on: a table of houses, transactions, digits, heartbeats, reviews, sales.

Values have the units, skew and order of magnitude of the real thing. A program scales them as its author would, or forgets to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diagnosis.data import Array, Data, parted

#: Digits of a display with five by seven points, one string of 35 points each.
GLYPHS = (
    "01110100011001110101110011000101110", "00100011000010000100001000010001110",
    "01110100010000100010001000100011111", "11111000100010000010000011000101110",
    "00010001100101010010111110001000010", "11111100001111000001000011000101110",
    "00110010001000011110100011000101110", "11111000010001000100010000100001000",
    "01110100011000101110100011000101110", "01110100011000101111000010001001100",
)  # fmt: skip


def houses(n: int = 640, seed: int = 0) -> Data:
    """Area in m², rooms, year, distance in km, income of the district, floor; the price in thousands. Skewed, as prices are."""
    rng = np.random.default_rng(seed)
    more = n + 128
    area = rng.lognormal(4.5, 0.4, more)
    rooms = np.clip(np.round(area / 28 + rng.normal(size=more)), 1, 9)
    year = rng.integers(1900, 2024, more)
    distance = rng.gamma(2.0, 4.0, more)
    income = rng.lognormal(10.4, 0.3, more)
    floor = rng.integers(0, 9, more)
    log_price = (
        0.8 * np.log(area) + 0.3 * np.log(income) - 0.03 * distance + 0.002 * (year - 1960) + 0.01 * floor
    )
    price = np.exp(log_price - 1.2 + rng.normal(size=more) * 0.1)
    x = np.stack([area, rooms, year, distance, income, floor], 1).astype("float32")
    return parted(x, price[:, None].astype("float32"), n)


def standardised(data: Data, log_target: bool = False) -> Data:
    """Columns with mean 0 and spread 1, measured on the training part; the target as well, by its logarithm if asked."""
    mean, spread = data.x.mean(0), data.x.std(0) + 1e-6
    data = data.map_x(lambda x: ((x - mean) / spread).astype("float32"))
    target = data.map_y(np.log) if log_target else data
    middle, width = target.y.mean(0), target.y.std(0)
    return target.map_y(lambda y: ((y - middle) / width).astype("float32"))


def payments(n: int = 1600, frauds: float = 0.1, seed: int = 0) -> Data:
    """Amount, hour, age of the account, payments today, distance: all standardised. A share of them is fraud (1)."""
    rng = np.random.default_rng(seed)
    more = n + 320
    fraud = rng.random(more) < frauds
    x = rng.normal(size=(more, 8))
    x[:, :4] += 1.6 * fraud[:, None]
    x[:, 4] = np.where(fraud, -np.abs(x[:, 4]), x[:, 4])
    return parted(x.astype("float32"), fraud.astype("float32")[:, None], n)


def digits(n: int = 640, classes: int = 10, seed: int = 0, size: int = 12) -> Data:
    """Printed digits somewhere in a picture, of several strengths, with noise: bytes from 0 to 255, as files hold them."""
    rng = np.random.default_rng(seed)
    more = n + 128
    y = rng.permutation(np.arange(more) % classes)
    glyphs = np.array([[int(point) for point in one] for one in GLYPHS]).reshape(10, 7, 5)
    x = rng.integers(0, 40, (more, size, size, 1))
    for i in range(more):
        top, left = rng.integers(0, size - 6), rng.integers(0, size - 4)
        x[i, top : top + 7, left : left + 5, 0] += (glyphs[y[i]] * rng.integers(120, 210)).astype(int)
    return parted(np.clip(x, 0, 255).astype("float32"), y.astype("int32"), n)


def unit(data: Data) -> Data:
    """Pixels between 0 and 1."""
    return data.map_x(lambda x: (x / 255).astype("float32"))


def heartbeats(n: int = 480, length: int = 48, seed: int = 0) -> Data:
    """One lead of an electrocardiogram, in millivolts: regular (0) or with an early beat (1)."""
    rng = np.random.default_rng(seed)
    more = n + 96
    y = rng.permutation(np.arange(more) % 2)
    time = np.arange(length)
    x = 0.05 * np.sin(time / 20 + rng.uniform(0, 6, (more, 1))) + rng.normal(size=(more, length)) * 0.04
    for i in range(more):
        period = rng.uniform(13, 16)
        beats = rng.uniform(0, 8) + period * np.arange(4)
        if y[i]:
            beats[2] -= 0.4 * period
        for beat in beats:
            x[i] += np.exp(-((time - beat) ** 2) / 1.5) - 0.25 * np.exp(-((time - beat - 4) ** 2) / 6)
    return parted(x[..., None].astype("float32"), y.astype("int32"), n)


def reviews(n: int = 480, length: int = 24, words: int = 200, seed: int = 0) -> Data:
    """Reviews as numbers of words, common words first, padded with 0 behind. The label tells praise from blame."""
    rng = np.random.default_rng(seed)
    more = n + 96
    y = rng.permutation(np.arange(more) % 2)
    x = np.zeros((more, length), "int32")
    praise, blame = np.arange(20, 40), np.arange(40, 60)
    for i in range(more):
        long = int(rng.integers(8, length + 1))
        x[i, :long] = np.minimum(rng.zipf(1.3, long), words - 61) + 60
        at = rng.choice(long, 4, replace=False)
        x[i, at] = rng.choice(praise if y[i] else blame, 4)
    return parted(x, y.astype("int32"), n)


def sales(n: int = 480, length: int = 28, seed: int = 0) -> Data:
    """Daily sales of many shops: week, trend, noise. The target is the next day. Each shop by its own mean and spread."""
    rng = np.random.default_rng(seed)
    more = n + 96
    day = np.arange(length + 1)
    week = rng.normal(size=(more, 1)) + 2 * np.pi * day / 7
    x = np.sin(week) + 0.5 * np.sin(2 * week + 1) + rng.normal(size=(more, 1)) * day / length
    x = x + rng.normal(size=x.shape) * 0.15
    x = (x - x[:, :-1].mean(1, keepdims=True)) / x[:, :-1].std(1, keepdims=True)
    return parted(x[:, :-1, None].astype("float32"), x[:, -1:].astype("float32"), n)


def rings(n: int = 640, seed: int = 0) -> Data:
    """Points of an inner (0) and an outer ring (1): no line separates them."""
    rng = np.random.default_rng(seed)
    more = n + 128
    y = rng.permutation(np.arange(more) % 2)
    angle = rng.uniform(0, 2 * np.pi, more)
    radius = np.where(y == 1, 1.6, 0.6) + rng.normal(size=more) * 0.12
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return parted(x.astype("float32"), y.astype("float32")[:, None], n)


def both(data: Data, **names: Any) -> Data:
    """Several targets by name, each a function of the label."""
    return data.map_y(lambda y: {name: make(y) for name, make in names.items()})


__all__ = ["Array", "both", "digits", "heartbeats", "houses", "payments", "reviews", "rings", "sales", "standardised", "unit"]  # fmt: skip
