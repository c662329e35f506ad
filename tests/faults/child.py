"""A process that records for ever, to be killed. What it records follows from the step: all can check it.

    python child.py DIRECTORY [seconds between flushes] [how many steps] [share]

With a `share` of its own (see `store/parts.py`) rows wait for a part from that many flushes on.

Says `flushed N` after each flush: from then on nothing up to step N may be lost.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from fitscope.record import Moment, Record
from fitscope.reduce.stats import Stats
from fitscope.store import RunWriter, parts

#: site: rows, columns, type. In turn several captures to a chunk, one, and several chunks to a capture.
SITES: dict[str, tuple[int, int, str]] = {
    "activations/small": (8, 16, "float32"),
    "activations/middle": (32, 4096, "float32"),
    "activations/large": (20, 1 << 18, "float32"),
    "targets": (32, 1, "int64"),
}


def value(site: str, step: int) -> np.ndarray[Any, Any]:
    """The tensor of a site at a step: every element says which step it belongs to."""
    rows, columns, dtype = SITES[site]
    rows -= step % 7 == 3  # a smaller batch now and then
    x = np.full((rows, columns), step * 10 + 1, dtype)
    x[:, 0] += np.arange(rows, dtype=dtype)
    return x


def records(step: int) -> list[Record]:
    found = []
    for site in SITES:
        if site != "activations/large" or step % 10 == 5:
            x = value(site, step)
            low, high = float(x.min()), float(x.max())
            hist = np.zeros(513, np.int64)
            hist[256 + step % 200] = x.size
            stats = Stats(x.size, low, 0.0, low, high, low, hist=hist)
            found.append(Record(site, Moment(step, 0, step, time.time()), x.shape, x.dtype.name, stats, x))
    return found


def main(directory: str, pause: float = 0.0, steps: int = 10**9, share: int = parts.SHARE) -> None:
    parts.SHARE = share
    writer = RunWriter.create(directory, "run")
    print("flushed -1", flush=True)
    last = time.monotonic()
    for step in range(steps):
        writer.write(records(step))
        if time.monotonic() - last >= pause:
            writer.flush()
            last = time.monotonic()
            print(f"flushed {step}", flush=True)
    writer.close()
    print(f"flushed {steps - 1}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(kind(text) for kind, text in zip((float, int, int), sys.argv[2:], strict=False)))
