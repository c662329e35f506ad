"""The script that draws the pictures in the docs: what of it needs no browser."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

from .conftest import Written, steady

SCRIPT = Path(__file__).parents[2] / "docs" / "make_pictures.py"


def test_the_overview_becomes_a_picture_of_a_terminal(written: Callable[..., Written]) -> None:
    terminal = runpy.run_path(str(SCRIPT))["terminal"]
    svg = terminal(written().add(range(20), steady("abc")).path, "fitscope show runs")
    assert svg.startswith("<svg")
    assert "fitscope\xa0show\xa0runs" in svg.replace("&#160;", "\xa0").replace(" ", "\xa0")
    assert "font-face" not in svg, "nothing is fetched"
