"""The corpus is what it says: large enough, parted by hash, and its faults are faults. Its scores are counted right."""

from __future__ import annotations

import importlib
from pathlib import Path

import keras
import numpy as np
import pytest

from diagnosis import corpus
from diagnosis.case import KINDS, RULES, Fault, Training, expect
from diagnosis.score import Row, judge, table

FAULTS, HEALTHY = corpus.load()


def test_the_corpus_is_large_enough() -> None:
    assert len(FAULTS) >= 50
    assert len(HEALTHY) >= 40
    for kind in KINDS:
        assert sum(one.kind == kind for one in FAULTS) >= 5, kind
        assert sum(one.kind == kind for one in HEALTHY) >= 4, kind
    planted = {one.rule for fault in FAULTS for one in fault.expected}
    assert set(RULES) - planted == set()
    names = [one.name for one in [*FAULTS, *HEALTHY]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("part", [FAULTS, HEALTHY], ids=["faults", "healthy"])
def test_about_a_third_is_held_out(part: list[Fault]) -> None:
    assert 0.25 < np.mean([one.held_out for one in part if one.part in ("dev", "held_out")]) < 0.42


@pytest.mark.parametrize("program", [*FAULTS, *HEALTHY], ids=lambda one: one.name)
def test_every_program_is_in_the_folder_of_its_name(program: Fault) -> None:
    module = importlib.import_module(program.build.__module__)
    folder = Path(str(module.__file__)).parent.name
    assert folder == {"dev": "diagnosis", "later": "held_out"}.get(program.part, program.part)


def losses(name: str, broken: bool) -> np.ndarray:
    program = corpus.by_name(name)
    keras.utils.set_random_seed(program.seed)
    return np.array(program.build(broken).fit()["loss"])


@pytest.mark.parametrize("name", ["dead_by_bias", "adam_rate_of_one", "rate_too_low_dense"])
def test_a_fault_keeps_the_model_from_learning_and_its_twin_learns(name: str) -> None:
    faulty, repaired = losses(name, True), losses(name, False)
    assert repaired[-1] < 0.5 * repaired[0]
    assert faulty[-1] > 2 * repaired[-1]


def test_a_program_trains_the_same_twice() -> None:
    np.testing.assert_array_equal(losses("adam_rate_of_one", True), losses("adam_rate_of_one", True))


# ---- scores -----------------------------------------------------------------------------------------


def found(rule: str, layer: str | None = None, step: int = 0, severity: str = "warning") -> dict[str, object]:
    return {"rule": rule, "layer": layer, "first_step": step, "severity": severity}


def planted(**settings: object) -> Fault:
    def build(broken: bool) -> Training:
        raise NotImplementedError

    expected = (expect("dead_relu", "h2"), expect("updates_too_large"))
    return Fault("planted", "dense", build, expected=expected, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("findings", "first", "rule", "layer"),
    [
        ([], False, False, False),
        ([found("dead_relu", "h2")], True, True, True),
        ([found("dead_relu", "body/h2")], True, True, True),
        ([found("dead_relu", "h3")], False, True, False),
        ([found("updates_too_large", "h3")], True, True, True),
        ([found("dead_relu", "h2", severity="note")], False, False, False),
        ([found("loss_spike"), found("dead_relu", "h2")], False, True, True),
        ([found("loss_spike", severity="note"), found("dead_relu", "h2")], True, True, True),
    ],
)
def test_a_fault_is_judged_by_rule_layer_and_order(
    findings: list[dict[str, object]], first: bool, rule: bool, layer: bool
) -> None:
    verdict = judge(planted(), Row("planted", "fault", findings))
    assert (verdict.first, verdict.rule, verdict.layer) == (first, rule, layer)


def test_a_note_is_enough_if_only_the_author_can_know() -> None:
    assert judge(
        planted(note=True), Row("planted", "fault", [found("dead_relu", "h2", severity="note")])
    ).first


@pytest.mark.parametrize(("step", "right"), [(59, False), (60, True), (62, True), (63, False)])
def test_a_step_may_be_late_but_not_early(step: int, right: bool) -> None:
    row = Row("planted", "fault", [found("dead_relu", "h2", step)])
    assert judge(planted(step=60, within=2), row).step is right


def test_the_table_counts_misses_and_names_them() -> None:
    rows = [
        Row("planted", "fault", [found("dead_relu", "h3")]),
        Row("planted", "twin", [found("loss_spike")]),
        Row("well", "healthy", [found("saturated", severity="note")]),
    ]
    printed = table([planted()], rows, "title")
    assert "rule, in any warning               1 of   1" in printed
    assert "cause first: rule and layer        0 of   1" in printed
    assert "false alarms, twins                1 of   1" in printed
    assert "false alarms, healthy              0 of   1" in printed
    assert "planted: wanted dead_relu['h2'] or updates_too_large, got dead_relu[h3]@0" in printed
