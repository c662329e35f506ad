"""A few of the programs, on every backend: watching changes no bit of them, and misses nothing without naming it.

`make programs` trains all of them.
"""

from __future__ import annotations

import keras
import pytest

from programs.catalog import PROGRAMS, Program
from programs.harness import examine

BACKEND = keras.backend.backend()
QUICK = [one for one in PROGRAMS if one.quick and BACKEND in one.backends and not one.environment]


@pytest.mark.parametrize("program", QUICK, ids=lambda program: program.name)
def test_watching_a_program_changes_nothing_and_misses_nothing(program: Program) -> None:
    outcome = examine(program)
    assert outcome.problems == []
    assert outcome.identical
    assert outcome.captured
