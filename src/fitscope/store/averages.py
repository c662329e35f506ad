"""The running averages of one rank: one NumPy archive per site, replaced as a whole from time to time.

An average may be as large as the largest tensor of a model. So it is written at most every `PUT_SECONDS`, only if it changed, and
at the end. Its size never changes, so its space is reserved once.
"""

from __future__ import annotations

import io
import math
import time
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.reduce.average import Average
from fitscope.store.meter import Meter
from fitscope.store.npz import member
from fitscope.store.schema import AVERAGES, site_path
from fitscope.store.tensors import free

PUT_SECONDS = 10.0
MOST_BYTES = 256 << 20  #: the most bytes of an archive, so that it can be read in little memory
HEAD_BYTES = 3_000  #: approximate bytes of an archive in addition to its numbers


@dataclass(slots=True)
class _Staged:
    path: str
    average: Average
    promised: int  #: bytes of the object that are not in the store yet
    put: int = 0  #: bytes of the object in the store
    captures: int = 0  #: captures in the stored object
    at: float = -np.inf  #: the time when it was put


class Averages:
    """The averages of one rank that are being written."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._staged: dict[str, _Staged] = {}
        self._taken: set[str] = set()

    @property
    def paths(self) -> dict[str, str]:
        """The paths of the stored averages, by site."""
        return {site: staged.path for site, staged in self._staged.items() if staged.put}

    def stage(self, site: str, average: Average) -> bool:
        """Takes an average, to be written at the next flush; returns False if there is no space for it."""
        known = self._staged.get(site)
        if known is not None:
            known.average = average
            return True
        size = archive_bytes(average)
        if not self._meter.room(size):
            return False
        path = free(site_path(site), self._taken)
        self._taken.add(path.casefold())
        self._meter.promised += size
        self._staged[site] = _Staged(path, average, size)
        return True

    def flush(self, *, last: bool = False) -> list[OSError]:
        """Writes the averages that changed and are due. Returns the errors; failed writes are repeated next time."""
        errors: list[OSError] = []
        now = time.monotonic()
        for site, staged in self._staged.items():
            changed = staged.average.captures != staged.captures
            if not changed or not (last or now - staged.at >= PUT_SECONDS):
                continue
            data = encode(site, staged.average)
            try:
                self._meter.put(f"{AVERAGES}/{staged.path}.npz", data, staged.put)
            except OSError as problem:
                errors.append(problem)
                continue
            self._meter.promised -= staged.promised
            staged.promised, staged.put = 0, len(data)
            staged.captures, staged.at = staged.average.captures, now
        return errors

    def begin_again(self) -> None:
        """Writes all averages again, because the stored ones are gone."""
        for staged in self._staged.values():
            staged.promised, staged.put, staged.captures, staged.at = (
                archive_bytes(staged.average),
                0,
                0,
                -np.inf,
            )
            self._meter.promised += staged.promised

    def unput(self) -> list[str]:
        """The sites whose newest average was never stored."""
        return [site for site, s in self._staged.items() if s.average.captures != s.captures]


def archive_bytes(average: Average) -> int:
    """The approximate size of the archive of an average, in bytes."""
    return 2 * 8 * math.prod(average.shape or ()) + HEAD_BYTES


def encode(site: str, average: Average) -> bytes:
    """Encodes an average as an archive."""
    arrays = {
        "site": np.array(site.encode("utf-8", "surrogatepass").decode("utf-8", "replace")),
        "mean": average.mean,
        "std": average.std,
        **{
            name: np.array(getattr(average, name) or 0, np.int64)
            for name in ("count", "captures", "first_step", "last_step")
        },
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def decode(data: bytes) -> Average:
    """Decodes the average of an archive; raises ValueError, KeyError or OSError if it is not one.

    NumPy would allocate the size that an array claims, so this compares it with the bytes there are.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        count, captures, first, last = (
            int(_member(archive, name, "iu", ())) for name in ("count", "captures", "first_step", "last_step")
        )
        mean = _member(archive, "mean", "f")
        std = _member(archive, "std", "f", mean.shape)
    if min(count, captures) < 0:
        raise ValueError(f"its count is {count} and its captures are {captures}; neither may be negative")
    with np.errstate(over="ignore"):
        return Average(mean, std * std * count, count, captures, (first, last))


def _member(
    archive: zipfile.ZipFile, name: str, kinds: str, shape: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """One array, which must have this kind and shape."""
    found = member(archive, name)
    if found.dtype.kind not in kinds or (shape is not None and found.shape != shape):
        wanted = f"kind {' or '.join(kinds)}" + (f" and shape {shape}" if shape is not None else "")
        raise ValueError(f"its {name} is of type {found.dtype} and shape {found.shape}, not of {wanted}")
    return found
