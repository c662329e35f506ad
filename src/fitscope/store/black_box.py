"""Stores the steps of a black box in a folder of the rank, and reads them back.

    <rank>/black_box/0000/lap-0.0.npz       the state before the first step of a lap: arrays "0", "1", … in volumes
    <rank>/black_box/0000/lap-0.step-2.npz  a step of it: its batch, what others changed before it, its random state, its logs
    <rank>/black_box/0000/model.json        the model's configuration, if it has one
    <rank>/black_box/0000/box.json          ← commits them all

An archive is plain NumPy (.npz, not compressed, nothing pickled). Types that NumPy lacks (bfloat16, float8) are stored as their bytes
in unsigned integers; box.json has the type of each array. The folder is written once and never changed.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitscope.store import schema
from fitscope.store._base import Objects
from fitscope.store.meter import Meter
from fitscope.store.npz import member

Array = np.ndarray[Any, Any]

VOLUME = 64 << 20  #: bytes of arrays in one archive; a larger array has a separate one
MOST_ARCHIVE = 8 << 30  #: the most bytes of an archive that is read
BOX = "box.json"
MODEL = "model.json"
_PLAIN = "biufcS"  #: kinds of types that NumPy stores itself


@dataclass(slots=True)
class KeptCall:
    """One execution of the training step: one step, or several (`steps_per_execution`)."""

    step: int
    epoch: int
    batch: int
    forms: list[Any]  #: the forms of its batches: see `structure`
    arrays: list[Array]  #: the arrays of all its batches
    changed: dict[int, Array]  #: values assigned since the previous step, by number of the variable
    random: dict[str, Array]  #: the random state of each generator
    facts: dict[str, Any]  #: facts that the backend needs for a replay
    logs: Mapping[str, Any] | None = None  #: the logs that it returned; None if it did not return

    @property
    def steps(self) -> int:
        return len(self.forms)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.arrays, *self.changed.values(), *self.random.values()))


@dataclass(slots=True)
class Lap:
    """The state before a step, and the steps from there on."""

    step: int
    state: list[Array]
    names: list[tuple[str, str]]  #: group and path of each variable
    calls: list[KeptCall] = field(default_factory=list)
    nbytes: int = 0  #: the bytes of state and calls
    put: int = 0  #: the number of written calls

    def __post_init__(self) -> None:
        self.nbytes = sum(array.nbytes for array in self.state)

    def add(self, call: KeptCall) -> None:
        self.calls.append(call)
        self.nbytes += call.nbytes

    @property
    def steps(self) -> int:
        return sum(call.steps for call in self.calls)

    @property
    def fresh(self) -> bool:
        """Whether a lap has steps that were not written yet."""
        return len(self.calls) > self.put


class NoRoomError(Exception):
    """The disk limit of the run leaves no room for a box."""


class Boxes:
    """Writes the boxes of one rank."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._written = 0

    def write(self, laps: Sequence[Lap], facts: Mapping[str, Any], model: bytes | None) -> str:
        """Writes laps, and returns the path of their folder. OSError if that fails; `NoRoomError` beyond the limit."""
        calls = [list(lap.calls) for lap in laps]  # the training adds calls meanwhile
        size = sum(lap.nbytes for lap in laps) + len(model or b"")
        if not self._meter.room(size + size // 50 + (64 << 10)):
            raise NoRoomError(f"it takes {size:,} bytes, more than the limit of the run leaves")
        folder = f"{schema.BLACK_BOX}/{self._written:04d}"
        self._written += 1
        document = {**facts, "laps": [], "model": model is not None}
        for number, (lap, some) in enumerate(zip(laps, calls, strict=True)):
            document["laps"].append(
                {
                    "step": lap.step,
                    "state": self._put_state(f"{folder}/lap-{number}", lap),
                    "calls": [self._put_call(f"{folder}/lap-{number}", call) for call in some],
                }
            )
            lap.put = len(some)
        if model is not None:
            self._meter.put(f"{folder}/{MODEL}", model)
        self._meter.put(f"{folder}/{BOX}", schema.encode(document))
        return folder

    def _put_state(self, path: str, lap: Lap) -> list[dict[str, Any]]:
        """Puts a state in volumes. Returns an entry for each variable."""
        index: list[dict[str, Any]] = []
        volume: dict[str, Array] = {}
        number, size = 0, 0

        def put() -> None:
            nonlocal volume, number, size
            self._meter.put(f"{path}.{number}.npz", packed(volume))
            volume, number, size = {}, number + 1, 0

        for place, (array, (group, variable)) in enumerate(zip(lap.state, lap.names, strict=True)):
            if volume and size + array.nbytes > VOLUME:
                put()
            volume[str(place)], size = array, size + array.nbytes
            where = entry(array, f"{path.rpartition('/')[2]}.{number}.npz", str(place))
            index.append({"group": group, "path": variable, **where})
        if volume:
            put()
        return index

    def _put_call(self, path: str, call: KeptCall) -> dict[str, Any]:
        named = {f"batch-{n}": array for n, array in enumerate(call.arrays)}
        named |= {f"changed-{n}": array for n, array in call.changed.items()}
        named |= {f"random-{name}": array for name, array in call.random.items()}
        logs = {name: np.asarray(value) for name, value in (call.logs or {}).items()}
        named |= {f"logs-{n}": array for n, array in enumerate(logs.values())}
        key = f"{path}.step-{call.step}.npz"
        self._meter.put(key, packed(named))
        file = key.rpartition("/")[2]

        def about(name: str) -> dict[str, Any]:
            return entry(named[name], file, name)

        return {
            "step": call.step,
            "epoch": call.epoch,
            "batch": call.batch,
            "forms": call.forms,
            "arrays": [about(f"batch-{n}") for n in range(len(call.arrays))],
            "changed": [[n, about(f"changed-{n}")] for n in call.changed],
            "random": {name: about(f"random-{name}") for name in call.random},
            "facts": call.facts,
            "logs": None if call.logs is None else {name: about(f"logs-{n}") for n, name in enumerate(logs)},
        }


def entry(array: Array, file: str, name: str) -> dict[str, Any]:
    """The place of an array, with its type and shape."""
    return {"file": file, "name": name, "dtype": array.dtype.name, "shape": list(array.shape)}


def packed(arrays: Mapping[str, Array]) -> bytes:
    """Arrays as an archive."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: _plain(array) for name, array in arrays.items()})
    return file.getvalue()


def _plain(array: Array) -> Array:
    array = np.ascontiguousarray(array) if array.ndim else array
    if array.dtype.kind in _PLAIN:
        return array
    if array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.itemsize in (1, 2, 4, 8):
        return array.view(f"u{array.dtype.itemsize}")  # bfloat16, float8, …
    raise TypeError(f"an array of type {array.dtype} cannot be stored")


# ---- reading -------------------------------------------------------------------------------------------------


def unpacked(objects: Objects, folder: str, entries: Sequence[Mapping[str, Any]]) -> list[Array]:
    """The arrays of these entries, in order. Raises ValueError, KeyError or OSError if the data is damaged or forged."""
    found: list[Array | None] = [None] * len(entries)
    by_file: dict[str, list[int]] = {}
    for place, one in enumerate(entries):
        by_file.setdefault(one["file"], []).append(place)
    for file, places in by_file.items():
        if "/" in file:
            raise ValueError(f"its field `file` is {file!r}, which is outside its folder")
        data = objects.get(f"{folder}/{file}", MOST_ARCHIVE)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for place in places:
                found[place] = _read(archive, entries[place])
    return [array for array in found if array is not None]


def _read(archive: zipfile.ZipFile, about: Mapping[str, Any]) -> Array:
    """One array, which must have the type and shape in its entry."""
    name, shape, dtype = about["name"], tuple(about["shape"]), _dtype(about["dtype"])
    found = member(archive, name)
    plain = found.dtype.kind in _PLAIN and found.flags.c_contiguous
    if not plain or found.dtype.itemsize != dtype.itemsize or found.shape != shape:
        raise ValueError(
            f"its array {name!r} is of type {found.dtype} and shape {found.shape}, not {dtype} and {shape}"
        )
    return found.view(dtype).copy()


def _dtype(name: Any) -> np.dtype[Any]:
    """A type by its name: one of NumPy's numbers, text in bytes, or one of ml_dtypes."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"its field `dtype` is {name!r}, not the name of a type")
    if name.startswith("bytes") and name[5:].isdecimal() and int(name[5:]) % 8 == 0:
        return np.dtype(f"S{int(name[5:]) // 8}")
    odd = getattr(_odd_types(), name, None)
    dtype = np.dtype(odd) if isinstance(odd, type) and issubclass(odd, np.generic) else np.dtype(name)
    if dtype.kind not in "biufcV" or dtype.hasobject:
        raise ValueError(f"its field `dtype` is {name!r}, not a type of numbers")
    return dtype


def _odd_types() -> Any:
    """The types that NumPy lacks. Every framework brings ml_dtypes; a reader without a framework may lack it."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


def folders(objects: Objects) -> Iterator[str]:
    """The folders of the boxes of a rank, in the order in which they were written."""
    for name in objects.list(schema.BLACK_BOX):
        if name.endswith("/") and BOX in objects.list(f"{schema.BLACK_BOX}/{name[:-1]}"):
            yield f"{schema.BLACK_BOX}/{name[:-1]}"
