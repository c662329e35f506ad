"""Reads the kept tensors of a run, capture by capture, and streams them into an `.npy` file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fitscope.store.schema import STORED_AS

if TYPE_CHECKING:
    from fitscope.read import Run
    from fitscope.read.tensors import Captures

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

BLOCK_BYTES = 64 << 20  #: bytes of small captures that are read at once; a single one may be larger


def sites(run: Run) -> list[str]:
    """The sites with kept tensors."""
    run._state.look()
    found = {site for rank in run._state.ranks for site in rank.arrays()}
    run._state.damaged.warn(4)
    return sorted(found)


def captures(run: Run, site: str) -> Captures:
    """All committed captures of a site, given its full name."""
    return next(run._captures_of([site]))


def all_captures(run: Run, names: Iterable[str]) -> dict[str, Captures]:
    """The captures of several sites. The run's list of arrays is read once."""
    names = list(names)
    return dict(zip(names, run._captures_of(names), strict=True))


def dtype(captures: Captures, place: int | None = None) -> DType:
    """The dtype that holds all captures, or one capture."""
    entries = captures.entries if place is None else [captures.entries[place]]
    return np.result_type(*{segment.array.dtype for entry in entries for segment in entry.segments})


def stored(dtype: DType) -> DType:
    """A dtype that every NumPy can load: bfloat16 and similar types become the wider type of the store."""
    return np.dtype(STORED_AS.get(dtype.name, dtype)).newbyteorder("=")


def blocks(captures: Captures) -> tuple[tuple[int, ...], DType, Iterator[Array]]:
    """All captures as one array (step, …): its shape, its dtype and its blocks along the steps."""
    from fitscope.read.lazy import lazy

    whole = lazy(captures)
    kind = stored(whole.dtype)
    count = whole.shape[0]
    each = int(np.prod(whole.shape[1:], dtype=np.int64)) * max(whole.dtype.itemsize, kind.itemsize)
    length = max(1, BLOCK_BYTES // max(1, each))
    pieces = (np.asarray(whole[start : start + length].values, kind) for start in range(0, count, length))
    return whole.shape, kind, pieces


def write_npy(file: IO[bytes], shape: Sequence[int], dtype: DType, blocks: Iterable[Array]) -> None:
    """Writes an `.npy` file of this shape from blocks along its first axis."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(int(extent) for extent in shape),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for block in blocks:
        file.write(np.ascontiguousarray(block, dtype).data.cast("B") if block.size else b"")
