"""`fs.lint(model)`: what the configuration of a compiled model alone tells, before its first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fitscope.diagnose import Evidence, Findings, Rule, diagnose
from fitscope.diagnose.expect import Expectation
from fitscope.diagnose.thresholds import Given
from fitscope.errors import ModelError
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.configuration import configuration

if TYPE_CHECKING:
    import keras


def lint(
    model: keras.Model,
    *,
    rules: Iterable[Rule | str] | None = None,
    ignore: Iterable[str] = (),
    thresholds: Given = None,
    expect: Expectation | Iterable[Expectation] | None = None,
    fit: Mapping[str, int | bool | None] | None = None,
) -> Findings:
    """Finds what is wrong with a compiled model before it trains: losses that do not fit outputs, settings that defeat an optimizer, …

    Args:
        rules: Which rules to apply, by name, or your own; by default `fs.RULES`. Most of them need a training and say so.
        ignore: Names of rules to leave out.
        thresholds: Changes to the table of thresholds, as a dict or the path of a TOML file.
        expect: What is meant to be so, from `fs.expect(…)`.
        fit: How `fit` will be called, where that matters: `{"batch_size": 1, "epochs": 3, "steps_per_epoch": 100}`.
    """
    if not hasattr(model, "_flatten_layers"):
        raise ModelError("a Keras model", type(model).__name__, "Pass the model you call fit() on")
    evidence = Evidence(Anatomy.of(model).describe(), configuration(model, fit=fit or {}))
    return diagnose(evidence, rules=rules, ignore=ignore, thresholds=thresholds, expect=expect)
