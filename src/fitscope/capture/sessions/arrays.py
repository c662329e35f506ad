"""The values of a session on their way to the writer: arrays, and objects that become arrays on the writer thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Later:
    """An array that is created on the writer thread."""

    make: Callable[[], Array]
    nbytes: int  #: the size of the array until then


class Arrays:
    """The adapter to a session, whose tensors arrive as arrays."""

    def to_numpy(self, tensor: Any) -> Array:
        return tensor.make() if isinstance(tensor, Later) else np.asarray(tensor)

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.nbytes if isinstance(tensor, Later) else np.asarray(tensor).nbytes)


def difference(new: Any, old: Any) -> Later:
    """The difference of two values."""

    def make() -> Array:
        return np.not_equal(new, old) if np.asarray(new).dtype == bool else np.subtract(new, old)

    return Later(make, np.asarray(new).nbytes + np.asarray(old).nbytes)


def dense(values: Any, rows: Any, shape: tuple[int, ...]) -> Later:
    """The dense gradient of an embedding, from slices of a tensor that is zero elsewhere."""

    def make() -> Array:
        whole = np.zeros(shape, np.asarray(values).dtype)
        np.add.at(whole, np.asarray(rows), values)
        return whole

    return Later(make, np.asarray(values).nbytes + np.asarray(rows).nbytes)
