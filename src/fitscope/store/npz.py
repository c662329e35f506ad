"""Reads one array of a .npz file that may be damaged or forged: stored plainly, complete, and of numbers or bytes.

NumPy allocates the size that an array claims. fitscope compares the claim with the existing bytes before it allocates anything.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import Any

import numpy as np


def member(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """The array of this name. It shares the memory of the bytes that were read."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"its array {name!r} is compressed")
    file = io.BytesIO(archive.read(info))
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"its array {name!r} is of NPY version {version}, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError(f"its array {name!r} is of type {dtype}, not of numbers")
    left = info.file_size - file.tell()
    if left != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"its array {name!r} of shape {shape} and type {dtype} has {left:,} bytes")
    values = np.frombuffer(file.getbuffer()[file.tell() :], dtype)
    return values.reshape(shape, order="F" if fortran else "C")
