"""Data sets of the healthy programs of this part: crops, species, documents, spectra, glyphs, sessions, tags.

Every generator takes its own seed, and its inputs are ready for a net.
"""

from __future__ import annotations

import numpy as np

from diagnosis.data import Array, Data, parted, scaled

HELD = 128  #: rows to validate on


def crops(n: int = 640, noise: float = 0.2, seed: int = 0) -> Data:
    """Regression: the yield of a field by rain, warmth, soil and five more columns; standardised."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + HELD, 8))
    best = 1.0 - 0.4 * (x[:, 0] - 0.3) ** 2 + 0.6 * x[:, 1] + 0.5 * np.tanh(2 * x[:, 2] * x[:, 3])
    y = best + 0.3 * x[:, 4] + noise * rng.normal(size=n + HELD)
    return parted(x.astype("float32"), scaled(y[:, None]), n)


def species(n: int = 640, classes: int = 4, features: int = 10, spread: float = 0.7, seed: int = 0) -> Data:
    """Classes of two clusters each, so that no straight line parts them."""
    rng = np.random.default_rng(seed)
    more = n + HELD
    y = rng.integers(0, classes, more)
    centres = rng.normal(size=(classes, 2, features))
    x = centres[y, rng.integers(0, 2, more)] + spread * rng.normal(size=(more, features))
    return parted(scaled(x), y.astype("int32"), n)


def documents(n: int = 640, words: int = 300, classes: int = 4, seed: int = 0) -> Data:
    """TF-IDF of short documents: about 30 of 300 columns are not zero, and each row has length one."""
    rng = np.random.default_rng(seed)
    more = n + HELD
    y = rng.integers(0, classes, more)
    common = 1.0 / np.arange(1, words + 1)
    topic = common * rng.choice([0.3, 4.0], p=[0.8, 0.2], size=(classes, words))
    topic /= topic.sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(60, topic[one]) for one in y])
    rare = np.log((1 + more) / (1 + (counts > 0).sum(0))) + 1
    x = np.log1p(counts) * rare
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return parted(x.astype("float32"), y.astype("int32"), n)


def spectra(n: int = 480, length: int = 48, classes: int = 4, seed: int = 0) -> Data:
    """Signals with three peaks; the distance of the first two is the class. Standardised."""
    rng = np.random.default_rng(seed)
    more = n + HELD
    y = rng.integers(0, classes, more)
    place = np.arange(length)[None]
    first = rng.uniform(4, 20, more)
    x = 0.15 * rng.normal(size=(more, length))
    for at, height in ((first, 1.0), (first + 5 + 4 * y, 0.8), (rng.uniform(2, 46, more), 0.3)):
        x += height * np.exp(-0.5 * ((place - at[:, None]) / 1.2) ** 2)
    x = (x - x.mean()) / x.std()
    return parted(x[..., None].astype("float32"), y.astype("int32"), n)


def glyphs(n: int = 480, size: int = 12, classes: int = 5, noise: float = 0.15, seed: int = 0) -> Data:
    """Pictures of one smooth sign per class, moved by up to two pixels; grey values from 0 to about 1."""
    rng = np.random.default_rng(seed)
    more = n + HELD
    y = rng.integers(0, classes, more)
    rough = rng.normal(size=(classes, size - 4, size - 4))
    for axis in (1, 2):
        rough = (np.roll(rough, 1, axis) + 2 * rough + np.roll(rough, -1, axis)) / 4
    signs = (rough > 0.15).astype("float64")
    x = np.abs(noise * rng.normal(size=(more, size, size)))
    for i in range(more):
        down, right = rng.integers(0, 5, 2)
        x[i, down : down + size - 4, right : right + size - 4] += signs[y[i]] * rng.uniform(0.6, 1.0)
    return parted(np.clip(x, 0, 1)[..., None].astype("float32"), y.astype("int32"), n)


def sessions(n: int = 480, length: int = 20, pages: int = 30, seed: int = 0) -> Data:
    """Visits as page numbers, padded with 0 behind; the visitor buys if a page of the cart comes after one of a product."""
    rng = np.random.default_rng(seed)
    more = n + HELD
    x = rng.integers(7, pages, (more, length))
    y = rng.integers(0, 2, more)
    for i in range(more):
        long = rng.integers(5, 13)
        x[i, long:] = 0
        early, late = np.sort(rng.choice(long, 2, replace=False))
        product, cart = rng.integers(1, 4), rng.integers(4, 7)
        x[i, early], x[i, late] = (product, cart) if y[i] else (cart, product)
    return parted(x.astype("int32"), y.astype("float32")[:, None], n)


def tagged(n: int = 480, length: int = 14, words: int = 24, seed: int = 0) -> Data:
    """Sentences with a tag per word: its own kind, or the fourth tag if a negation stands before or behind it."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, words, (n + HELD, length))
    negation = x <= 3
    near = np.zeros_like(negation)
    near[:, 1:] |= negation[:, :-1]
    near[:, :-1] |= negation[:, 1:]
    y = np.where(near, 3, x % 3)
    return parted(x.astype("int32"), y.astype("int32"), n)


def lines_of_text(n: int = 400, length: int = 24, seed: int = 0) -> Data:
    """Letters of words from a list of twelve, cut anywhere; the target is the next letter."""
    rng = np.random.default_rng(seed)
    words = ["the", "river", "runs", "under", "stone", "and", "over", "sand", "until", "it", "finds", "sea"]
    letters = sorted(set("".join(words) + " "))
    rows = []
    for _ in range(n + HELD):
        text = " ".join(rng.choice(words, length))
        start = rng.integers(0, 12)
        rows.append([letters.index(one) for one in text[start : start + length + 1]])
    both: Array = np.array(rows, "int32")
    return parted(both[:, :-1], both[:, 1:], n)
