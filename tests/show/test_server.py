"""The live page's side of the server: which runs it has, and what a tick tells."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fitscope.show.server import Asked, Pages, Shelf, Watcher

from .conftest import Written, steady


def pages(tmp_path: Path) -> Pages:
    return Pages(Shelf(tmp_path / "runs"), 1.0, lambda: False)


def told(tick: bytes) -> dict[str, Any]:
    """The facts of a tick; empty if there was none."""
    if not tick:
        return {}
    data = gzip.decompress(base64.b64decode(tick))
    found: dict[str, Any] = json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["facts"]
    return found


def test_a_tick_tells_of_columns_that_changed_though_there_is_no_new_one(
    written: Callable[..., Written], tmp_path: Path
) -> None:
    run = written().add(range(20), steady("abc"))
    for mode in ("absolute", "change"):
        watcher = Watcher(pages(tmp_path), Asked({"measure": "activations.rms", "mode": mode}))
        first = told(watcher.tick())
        assert watcher.tick() == b""
        run.add([7], lambda step: {"activations/b": np.full((2, 3), 9.0)})
        then = told(watcher.tick())
        assert then["matrix"]["rewritten"] > first["matrix"]["rewritten"]
        assert then["matrix"]["count"] == first["matrix"]["count"]
