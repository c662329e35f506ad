"""Decides whether a run that computes predictions for labelled data is a validation, or evaluates the training batch.

Many programs print the accuracy of the training batch, before or after its step. That is not a validation and ends no epoch. A
fingerprint of the fed values identifies the data of a run. If a pipeline provides the data, nothing is fed, and every such run is
a validation. Runs just before a step are held until the step shows which batch it trains on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fitscope.pipeline.handover import Shown
from fitscope.record import Moment

Data = dict[str, Any]  #: a fingerprint of each fed value, by name

_LOOKED_AT = 64  #: elements of an array that a fingerprint reads
_ROWS = 8  #: rows of a list that it reads
_HELD = 2  #: held batches: a validation batch and a training batch, in either order
_REMEMBERED = 10_000  #: remembered training batches


def fingerprints(fed: Mapping[str, Any]) -> Data:
    """The fingerprints of the fed data, without rates and switches. A pipeline selected by its handle counts too."""
    return {name: mark for name, value in fed.items() if (mark := _fingerprint(value)) is not None}


def _fingerprint(value: Any) -> Any:
    if isinstance(value, bytes | str):
        return value
    if isinstance(value, list | tuple):
        return _of_rows(value)
    if not hasattr(value, "__array__"):
        return None
    array = np.asarray(value)
    if array.ndim == 0:
        return array.item() if array.dtype.kind in "OSU" else None
    some = array.flat[:: 1 + array.size // _LOOKED_AT]
    return array.shape, array.dtype.str, _checksum(some)


def _of_rows(rows: Sequence[Any]) -> Any:
    """The fingerprint of a list, whose rows may have different lengths."""
    try:
        some = [_checksum(np.asarray(row)) for row in rows[:: 1 + len(rows) // _ROWS]]
    except ValueError:
        return len(rows), repr(rows[:1])[:1000]
    return len(rows), tuple(some)


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())


def same(one: Data, other: Data) -> bool:
    """Whether two runs got the same data."""
    common = one.keys() & other.keys()
    return bool(common) and all(one[name] == other[name] for name in common)


@dataclass(slots=True, eq=False)
class _Held:
    data: Data
    at: Moment | None = None  #: None: nothing of it was recorded
    shown: Shown | None = None


class Evaluations:
    """The runs since the last step that may have been validations."""

    def __init__(self, put: Callable[[Moment, Shown], None]) -> None:
        self._put = put
        self._newest: Data = {}  # the newest training batch
        self._trained: set[int] = set()  # fingerprints of the earlier ones
        self._looks: bool | None = None  # whether this program evaluates batches before it trains on them
        self._held: list[_Held] = []
        self._validated = False

    def begin(self, data: Data) -> bool:
        """Begins a run on labelled data. Returns whether it may be a validation."""
        if same(data, self._newest):
            return False
        if len(self._held) >= _HELD:
            self.release()
        self._held.append(_Held(data))
        return True

    def show(self, at: Moment, shown: Shown) -> None:
        """Takes the result of the newest of them."""
        self._held[-1].at, self._held[-1].shown = at, shown

    def step(self, data: Data) -> tuple[bool, bool]:
        """Begins a step on this data. Returns whether there was a validation before it, and whether this data was evaluated."""
        mine = [held for held in self._held if same(held.data, data)]
        if mine and self._looks is None:
            # Data that comes again after it was trained on is a part of the training set, used for validation.
            self._looks = _key(data) not in self._trained
        if not self._looks:
            mine = []
        self._held = [held for held in self._held if held not in mine]
        validated = self.release()
        self._newest, self._validated = data, False
        if self._looks is None and data and len(self._trained) < _REMEMBERED:
            self._trained.add(_key(data))
        return validated, bool(mine)

    def release(self) -> bool:
        """Releases the held runs as a validation. Returns whether there was one since the last step."""
        for batch, held in enumerate(self._held):
            self._validated = True
            if held.at is not None and held.shown is not None:
                self._put(held.at if held.at.batch >= _HELD else replace(held.at, batch=batch), held.shown)
        self._held = []
        return self._validated


def _key(data: Data) -> int:
    return hash(frozenset(data.items()))
