"""CRC-32C checksums of tensor chunks.

The writer keeps the checksum of every chunk in the index of its array, which is put after the chunk. So a reader notices damage,
and also a chunk that is older than its index, as a power cut can leave it. A checksum inside the chunk would fit an old chunk as well.

A chunk that several captures share grows from its beginning, and its index may count fewer captures than it holds. The checksum
therefore covers the bytes of the captures that the index counts. It grows with them: each byte is read once.

`google-crc32c` uses the instruction of the CPU, at about 0.1 ns per byte. If only its Python form is installed, which is a thousand
times slower, fitscope writes no checksums.
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

FAST: bool = google_crc32c.implementation == "c"
MOST = 2**32 - 1


def crc32c(data: Bytes, before: int = 0) -> int:
    """The checksum of contiguous bytes, or of these after the bytes with the checksum `before`."""
    return int(google_crc32c.extend(before, data))
