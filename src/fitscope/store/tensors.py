"""Writes the tensors of one rank: a Zarr v3 hierarchy with one group per site, which holds one growing array.

`flush` keeps the order that the guarantee needs: chunks, then the arrays' zarr.json, then the root's list of arrays. Groups exist
only so that `zarr.open`, `xarray.open_zarr(group=…)` and `xarray.open_datatree` find the arrays.

A site continues in another array if its dtype or number of dimensions changes, if a capture would need many tiny chunks, and
after `LONGEST_INDEX` captures, because every commit writes the whole index. Each group holds one array, and a group with an array
has no groups below it: xarray requires that a group and its parents agree on the length of `step`.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import Any

import numpy as np

from fitscope.errors import StoreError
from fitscope.record import Record
from fitscope.store.array import Array, ArrayKind, GrowingArray
from fitscope.store.meter import Meter
from fitscope.store.schema import FILL, STORED_AS, TENSORS, site_path

LONGEST_INDEX = 4096  #: captures in one array: some 100 kB of index


class TensorStore:
    """The arrays of one rank. `lost` counts, by site, the captures that could not be kept."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open: dict[ArrayKind, GrowingArray] = {}
        self._full: list[GrowingArray] = []  # arrays that are complete, but not committed yet
        self._listed: list[dict[str, str]] = []  # the arrays in the root's document
        self._listed_put = 0  # the number of arrays in the stored document
        self._root_bytes = 0
        self._leaves: set[str] = set()  # the groups that hold an array
        # The groups above them. Both are in lower case, for file systems that ignore case.
        self._folders: set[str] = set()
        self._groups_put: set[str] = set()
        self.captures = 0
        self.lost: dict[str, int] = {}
        self._kept: Counter[str] = Counter()  # captures committed, by site

    def cost(self, record: Record, tensor: Array) -> int:
        """The approximate number of bytes that this record would add."""
        return self._array_for(record, tensor).cost(tensor.shape)

    def write(self, record: Record, tensor: Array) -> None:
        """Takes one capture; raises OSError if it, and perhaps others of its chunk, could not be kept."""
        array = self._array_for(record, tensor)
        try:
            array.write(tensor, record.at, record.shape[0] if array.kind.batched else 0, record.offset)
        except BaseException:
            self._lose(array.kind.site, array.roll_back())
            raise
        if array.captures >= LONGEST_INDEX:
            self._full.append(self._open.pop(array.kind))

    def flush(self) -> list[OSError]:
        """Commits everything written. Returns the errors; failed writes are repeated next time."""
        errors: list[OSError] = []
        touched = [a for a in (*self._full, *self._open.values()) if a.captures > a.committed]
        for array in touched:
            _attempt(array.stage, errors)
        for array in touched:
            before = array.committed
            if array.stored == array.captures and self._put_groups(array, errors):
                _attempt(array.commit, errors)
                self.captures += array.committed - before
                self._kept[array.kind.site] += array.committed - before
        listed = {entry["path"] for entry in self._listed}
        for array in touched:
            if array.committed and array.path not in listed:
                self._listed.append({"site": array.kind.site, "path": array.path})
        if len(self._listed) > self._listed_put:
            _attempt(self._put_root, errors)
        self._full = [array for array in self._full if self._missing(array)]
        return errors

    def begin_again(self) -> None:
        """Counts all stored arrays as lost, because they are gone, and starts new ones."""
        for site, captures in self._kept.items():
            self._lose(site, captures)
        for array in (*self._full, *self._open.values()):
            self._lose(array.kind.site, array.captures - array.committed)
        lost = self.lost
        self.__init__(self._meter)  # type: ignore[misc]
        self.lost = lost

    def discard(self) -> None:
        """Discards everything that could not be committed."""
        for array in (*self._full, *self._open.values()):
            self._lose(array.kind.site, self._missing(array))
        self._full, self._open = [], {}

    def _missing(self, array: GrowingArray) -> int:
        """The captures that no reader will find: an array must also be listed in the root."""
        unlisted = any(entry["path"] == array.path for entry in self._listed[self._listed_put :])
        return array.captures - (0 if unlisted else array.committed)

    def _lose(self, site: str, captures: int) -> None:
        if captures:
            self.lost[site] = self.lost.get(site, 0) + captures

    def _array_for(self, record: Record, tensor: Array) -> GrowingArray:
        batched, sharded = record.batched and tensor.ndim > 0, record.offset is not None
        kind = ArrayKind(record.site, record.dtype, tensor.dtype, tensor.ndim, batched, sharded)
        array = self._open.get(kind)
        if array is not None and array.suits(tensor.shape):
            return array
        if array is not None:
            self._full.append(array)
        array = GrowingArray(self._meter, self._claim(record.site), kind, tensor.shape)
        self._open[kind] = array
        return array

    def _claim(self, site: str) -> str:
        """A separate group for one more array of a site: not above, below or equal to the group of another array."""
        *above, last = site_path(site).split("/")
        path = ""
        for part in above:
            path = free(f"{path}{part}", self._leaves) + "/"
            self._folders.add(path[:-1].casefold())
        path = free(path + last, self._leaves | self._folders)
        self._leaves.add(path.casefold())
        return path

    def _put_groups(self, array: GrowingArray, errors: list[OSError]) -> bool:
        """Makes sure that the array's group and its parents exist."""
        parts = array.path.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if path not in self._groups_put:
                facts = {"site": array.kind.site} if depth == len(parts) else {}
                try:
                    self._meter.put(f"{TENSORS}/{path}/zarr.json", _group(facts))
                except OSError as problem:
                    errors.append(problem)
                    return False
                self._groups_put.add(path)
        return True

    def _put_root(self) -> None:
        document = _group({"arrays": self._listed})
        self._meter.put(f"{TENSORS}/zarr.json", document, self._root_bytes)
        self._root_bytes = len(document)
        self._listed_put = len(self._listed)


def storable(record: Record) -> Array:
    """The record's tensor in a dtype that every Zarr tool knows, unchanged if possible."""
    tensor = np.asarray(record.tensor)
    kind = stored_as(tensor.dtype)
    if kind is None:
        raise StoreError(
            f"numbers at {record.site!r}",
            f"a tensor of type {tensor.dtype.name}",
            "Only the statistics of this site can be kept; watch it without keep='tensor'",
        )
    return tensor if tensor.dtype is kind else tensor.astype(kind, copy=False)


@functools.cache
def stored_as(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype that stores elements of `dtype`; None if there is none."""
    name = STORED_AS.get(dtype.name, dtype.name)
    return np.dtype(name).newbyteorder("<") if name in FILL else None


def _attempt(action: Any, errors: list[OSError]) -> None:
    try:
        action()
    except OSError as problem:
        errors.append(problem)


def free(path: str, taken: set[str]) -> str:
    """The path, or a similar one that is free, also on file systems that ignore case."""
    free, number = path, 0
    while free.casefold() in taken:
        number += 1
        free = f"{path}+{number}"
    return free


def _group(facts: dict[str, Any]) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": facts}).encode()
