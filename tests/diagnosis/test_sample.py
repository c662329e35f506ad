"""A sample of the corpus, as CI can afford it: six programs of the dev part, trained and judged as `make diagnose` does.

The whole corpus takes many minutes. A process of its own, on JAX, whatever backend is tested.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from diagnosis import corpus
from diagnosis.__main__ import process
from diagnosis.case import Fault
from diagnosis.score import Row, judge

FAULTS = ("dead_by_bias", "adam_rate_of_one", "softmax_twice", "exponential_overflows")
SOUND = ("dead_by_bias:twin", "plain_sgd:healthy")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    options = argparse.Namespace(backend="jax", judge=False)
    tasks = [*(f"{name}:fault" for name in FAULTS), *SOUND]
    found = process(tasks, options, "every1", tmp_path_factory.mktemp("sample"))
    return {f"{row.name}:{row.variant}": row for row in found}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_layer_and_its_cause_first(name: str, rows: dict[str, Row]) -> None:
    fault, row = corpus.by_name(name), rows[f"{name}:fault"]
    assert isinstance(fault, Fault)
    assert not fault.held_out
    assert row.error == ""
    assert judge(fault, row).first, row.findings


@pytest.mark.parametrize("task", SOUND)
def test_a_sound_training_has_no_warning(task: str, rows: dict[str, Row], tmp_path: Path) -> None:
    assert rows[task].error == ""
    assert rows[task].loud() == []
