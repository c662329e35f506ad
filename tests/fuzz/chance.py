"""Random choices for drawing a model. Everything drawn from one seed comes from one `Chance`, so a seed names a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
Args = dict[str, str]  #: keyword arguments of a call, each value a Python expression


class Chance:
    """A source of random choices that knows for which backend it chooses."""

    def __init__(self, backend: str, *seed: int) -> None:
        self.backend = backend
        self._random = random.Random(f"{backend} {seed}")

    def one_of(self, *options: T) -> T:
        return self._random.choice(options)

    def member(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def some(self, options: Sequence[T], most: int, least: int = 0) -> list[T]:
        """Several different members, in their own order."""
        number = self._random.randint(min(least, len(options)), min(most, len(options)))
        chosen = set(self._random.sample(range(len(options)), number))
        return [option for i, option in enumerate(options) if i in chosen]

    def weighted(self, options: dict[T, float]) -> T:
        return self._random.choices(list(options), list(options.values()))[0]

    def maybe(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(low, high)

    def options(self, probability: float, **possible: Sequence[str]) -> Args:
        """Each of these arguments with this probability, with one of its values."""
        return {name: self.member(values) for name, values in possible.items() if self.maybe(probability)}
