"""The whole corpus, by part: `dev`, on which rules may be developed, `held_out` and `later`, on which they may not."""

from __future__ import annotations

import importlib
from pathlib import Path

from diagnosis.case import FAULTS, HEALTHY, Fault, Program

PARTS = ("dev", "held_out", "later")


def modules() -> list[str]:
    """The modules with programs, by name."""
    here = Path(__file__).parent
    found = sorted([*here.glob("faults_*.py"), *here.glob("healthy_*.py")])
    aside = sorted([*here.glob("held_out/faults_*.py"), *here.glob("held_out/healthy_*.py")])
    return [f"diagnosis.{one.stem}" for one in found] + [f"diagnosis.held_out.{one.stem}" for one in aside]


def load() -> tuple[list[Fault], list[Program]]:
    """All faults and all healthy programs."""
    for name in modules():
        importlib.import_module(name)
    return list(FAULTS), list(HEALTHY)


def by_name(name: str) -> Program:
    faults, programs = load()
    return next(one for one in [*faults, *programs] if one.name == name)
