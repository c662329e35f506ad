"""The whole corpus, by part: `dev`, on which rules may be developed, and the parts that measure them (see README.md)."""

from __future__ import annotations

import importlib
from pathlib import Path

from diagnosis.case import FAULTS, HEALTHY, Fault, Program

PARTS = ("dev", "held_out", "later", "wild", "fresh", "outside", "unseen")
FOLDERS = ("", "held_out", "wild", "fresh", "outside", "unseen")


def modules() -> list[str]:
    """The modules with programs, by name."""
    here = Path(__file__).parent
    found = [
        one
        for folder in FOLDERS
        for one in sorted(
            [*here.joinpath(folder).glob("faults_*.py"), *here.joinpath(folder).glob("healthy_*.py")]
        )
    ]
    return [".".join(("diagnosis", *one.relative_to(here).with_suffix("").parts)) for one in found]


def load() -> tuple[list[Fault], list[Program]]:
    """All faults and all healthy programs."""
    for name in modules():
        importlib.import_module(name)
    return list(FAULTS), list(HEALTHY)


def by_name(name: str) -> Program:
    faults, programs = load()
    return next(one for one in [*faults, *programs] if one.name == name)
