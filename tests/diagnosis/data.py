"""Small data sets that a tiny model learns in a hundred steps. Each is drawn from its own seed and comes with a validation part.

Inputs are standardised and classes are balanced, so that a program is healthy unless it spoils them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Data:
    """`x` and `y` to train on, `validation` of the same kind."""

    x: Array
    y: Array
    validation: tuple[Array, Array]

    def parts(self) -> dict[str, Any]:
        """As `Training` takes them."""
        return {"x": self.x, "y": self.y, "validation": self.validation}

    def map_x(self, change: Any) -> Data:
        """The same with other inputs, in both parts."""
        return Data(change(self.x), self.y, (change(self.validation[0]), self.validation[1]))

    def map_y(self, change: Any) -> Data:
        """The same with other targets, in both parts."""
        return Data(self.x, change(self.y), (self.validation[0], change(self.validation[1])))


def parted(x: Array, y: Array, n: int) -> Data:
    return Data(x[:n], y[:n], (x[n:], y[n:]))


def scaled(x: Array) -> Array:
    return ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype("float32")


def blobs(n: int = 480, features: int = 8, classes: int = 3, spread: float = 1.0, seed: int = 0) -> Data:
    """Points around one centre per class; the label is the class."""
    rng = np.random.default_rng(seed)
    more = n + 96
    y = rng.permutation(np.arange(more) % classes)
    centres = rng.normal(size=(classes, features)) * 1.5
    x = centres[y] + rng.normal(size=(more, features)) * spread
    return parted(scaled(x), y.astype("int32"), n)


def binary(n: int = 480, features: int = 8, spread: float = 1.0, seed: int = 0) -> Data:
    """Two classes, with the label as a column of floats, as `binary_crossentropy` takes it."""
    return blobs(n, features, 2, spread, seed).map_y(lambda y: y.astype("float32")[:, None])


def curve(n: int = 480, features: int = 6, noise: float = 0.05, seed: int = 0) -> Data:
    """Regression: a smooth function of the inputs, mean 0 and variance 1, in a column."""
    rng = np.random.default_rng(seed)
    more = n + 96
    x = rng.normal(size=(more, features)).astype("float32")
    y = np.sin(x[:, 0] * 1.5) + x[:, 1] * x[:, 2] * 0.5 + x[:, 3] + rng.normal(size=more) * noise
    return parted(x, scaled(y[:, None]), n)


def images(n: int = 320, size: int = 8, classes: int = 3, noise: float = 0.6, seed: int = 0) -> Data:
    """Grey pictures of a bar, whose angle is the class, with noise."""
    rng = np.random.default_rng(seed)
    more = n + 64
    y = rng.permutation(np.arange(more) % classes)
    x = rng.normal(size=(more, size, size)) * noise
    at = rng.integers(1, size - 1, more)
    for i in range(more):
        if y[i] == 0:
            x[i, at[i], :] += 2
        elif y[i] == 1:
            x[i, :, at[i]] += 2
        elif y[i] == 2:
            x[i, np.arange(size), np.arange(size)] += 2
        else:
            x[i, np.arange(size), size - 1 - np.arange(size)] += 2
    x = (x - x.mean()) / x.std()
    return parted(x[..., None].astype("float32"), y.astype("int32"), n)


def waves(n: int = 320, length: int = 12, features: int = 2, classes: int = 2, seed: int = 0) -> Data:
    """Sequences: sines whose frequency is the class, with noise."""
    rng = np.random.default_rng(seed)
    more = n + 64
    y = rng.permutation(np.arange(more) % classes)
    phase = rng.uniform(0, 6.28, (more, 1, features))
    time = np.arange(length)[None, :, None]
    x = (
        np.sin(time * (0.5 + 0.8 * y[:, None, None]) + phase)
        + rng.normal(size=(more, length, features)) * 0.2
    )
    return parted((x / x.std()).astype("float32"), y.astype("int32"), n)


def tokens(n: int = 320, length: int = 10, vocabulary: int = 20, seed: int = 0) -> Data:
    """Sentences of token numbers from 1; the label tells which half of the vocabulary prevails. 0 is for padding."""
    rng = np.random.default_rng(seed)
    more = n + 64
    y = rng.permutation(np.arange(more) % 2)
    half = vocabulary // 2
    common = rng.random((more, length)) < 0.75
    low, high = rng.integers(1, half, (more, length)), rng.integers(half, vocabulary, (more, length))
    x = np.where(common == (y[:, None] == 1), high, low)
    return parted(x.astype("int32"), y.astype("int32"), n)


def thinned(data: Data, share: float) -> Data:
    """Class 0 whole, and of all others only a share, in both parts."""
    rng = np.random.default_rng(0)

    def kept(x: Array, y: Array) -> tuple[Array, Array]:
        keep = (y.reshape(len(y)) == 0) | (rng.random(len(y)) < share)
        return x[keep], y[keep]

    return Data(*kept(data.x, data.y), kept(*data.validation))
