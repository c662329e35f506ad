"""`fs.lint(model)`: findings from the configuration of a compiled model, before its first step."""

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
    """Checks a compiled model before it trains: a loss that does not fit the output, optimizer settings that cannot work, …

    Args:
        model: The compiled model.
        rules: The rules to apply, by name, or your own. By default `fs.RULES`. Most rules need a training and report that.
        ignore: Names of rules to skip.
        thresholds: Changes to `fitscope.diagnose.THRESHOLDS`, as a dict or the path of a TOML file.
        expect: Findings that you expect, from `fs.expect(…)`.
        fit: The arguments of the coming `fit` that matter: `{"batch_size": 1, "epochs": 3, "steps_per_epoch": 100}`.
    """
    if not hasattr(model, "_flatten_layers"):
        raise ModelError("a Keras model", type(model).__name__, "Pass the model you call fit() on")
    evidence = Evidence(Anatomy.of(model).describe(), configuration(model, fit=fit or {}))
    return diagnose(evidence, rules=rules, ignore=ignore, thresholds=thresholds, expect=expect)
