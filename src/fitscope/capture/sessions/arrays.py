"""What a session hands out, on its way to the writer: arrays, and what becomes one when the writer asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Later:
    """An array that is made on the writer's thread."""

    make: Callable[[], Array]
    nbytes: int  #: what it holds until then


class Arrays:
    """The adapter to a session, whose tensors arrive as arrays."""

    def to_numpy(self, tensor: Any) -> Array:
        return tensor.make() if isinstance(tensor, Later) else np.asarray(tensor)

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.nbytes if isinstance(tensor, Later) else np.asarray(tensor).nbytes)


def difference(new: Any, old: Any) -> Later:
    """How far something moved."""

    def make() -> Array:
        return np.not_equal(new, old) if np.asarray(new).dtype == bool else np.subtract(new, old)

    return Later(make, np.asarray(new).nbytes + np.asarray(old).nbytes)


def dense(values: Any, rows: Any, shape: tuple[int, ...]) -> Later:
    """The gradient of an embedding: slices of something that is zero elsewhere."""

    def make() -> Array:
        whole = np.zeros(shape, np.asarray(values).dtype)
        np.add.at(whole, np.asarray(rows), values)
        return whole

    return Later(make, np.asarray(values).nbytes + np.asarray(rows).nbytes)
