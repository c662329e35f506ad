"""What Tab offers inside the quotes of `run.series("…")` and its like."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import fitscope as fs
from fitscope.read.completion import candidates

from .conftest import Written, steady

SITES = ["activations/a", "activations/b", "gradients/a", "gradients/b", "loss"]


@pytest.fixture
def names(written: Callable[..., Written]) -> dict[str, Any]:
    run = fs.open(written().add(range(3), steady("ab")).path)
    return {"run": run, "held": SimpleNamespace(run=run), "other": "text"}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ('run.series("', SITES),
        ("x = run.frame('grad", ["gradients/a", "gradients/b"]),
        ('held.run.series("lo', ["loss"]),
        ('run.series("loss", "r', ["rms"]),
        ('run.series("loss", stat="mi', ["min"]),
        ('print(run.plot.spectrogram("', ["activations", "gradients", "loss"]),
        ('run.plot.spectrogram("gradients", mode="p', ["past"]),
        ('run.plot.values("a', ["activations/a", "activations/b", "a"]),
        ('run.series("loss") + other.series("', []),
        ('run.nothing("', []),
        ('run._resolve("', []),
        ('nobody.series("', []),
        ('run.series("loss"', []),
        ('run.sql("select ', []),
    ],
)
def test_the_parameter_decides_the_completions(names: dict[str, Any], line: str, offered: list[str]) -> None:
    assert candidates(line, names)[1] == offered
