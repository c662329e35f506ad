"""What the tests of the picture's numbers ask."""

from __future__ import annotations

from typing import Any

import numpy as np

import fitscope as fs
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import VALUE

from .conftest import Written

NAMES = ("a", "b", "c")


def gathered(run: Written) -> Gathered:
    found = Gathered(fs.open(run.path))
    found.update()
    return found


def numbers(g: Gathered, measure: str, mode: str = "absolute", **more: Any) -> np.ndarray:
    matrix = g.matrix(measure, mode, **more)
    cells = matrix.cells()
    return np.where(cells.flags & VALUE, matrix.code.decode(cells.high), np.nan)
