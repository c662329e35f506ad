"""Two of the kills that `make kills` makes fifty of: one of two ranks dies at a random moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from multiprocess import kills


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_rank_loses_no_flushed_rows_of_any_rank(seed: int, tmp_path: Path) -> None:
    left = kills.attempt("plain", random.Random(seed), tmp_path)
    assert left.problems == []
    assert min(left.flushed) >= 0, "both had flushed something"
