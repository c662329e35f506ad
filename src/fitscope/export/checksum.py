"""CRC-32C, the checksum of event files, computed with NumPy. The `tensorboard` package runs Python code for every byte.

The checksum is linear: each byte adds a number that depends on its value and its distance from the end. So the checksum of many
bytes is one table lookup and one exclusive or.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78  #: Castagnoli's polynomial, reflected
STRETCH = 1024  #: bytes that are added at once; the table has 1 kB for each

Table = np.ndarray[tuple[int, int], np.dtype[np.uint32]]


def crc32c(data: bytes) -> int:
    table = _table()
    state = 0xFFFFFFFF
    for start in range(0, len(data), STRETCH):
        stretch = np.frombuffer(data[start : start + STRETCH], np.uint8).copy()
        # The state goes into the first four bytes. If there are fewer, the rest of the state stays.
        taken = min(4, len(stretch))
        stretch[:taken] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)[:taken]
        found: Any = np.bitwise_xor.reduce(table[np.arange(len(stretch) - 1, -1, -1), stretch])
        state = int(found) ^ (state >> 8 * taken)
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    """The checksum in the form of event files: rotated by 15 bits, plus a constant, as four bytes."""
    crc = crc32c(data)
    turned = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return ((turned + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


@functools.cache
def _table() -> Table:
    """The number that a byte adds, by its distance from the end and its value."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(POLYNOMIAL), first >> 1).astype(np.uint32)
    table = np.empty((STRETCH, 256), np.uint32)
    table[0] = first
    for distance in range(1, STRETCH):
        before = table[distance - 1]
        table[distance] = before >> 8 ^ first[before & 0xFF]
    return table
