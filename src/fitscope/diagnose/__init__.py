"""Finds problems of a training and their layers, with rules over the recorded data.

`Evidence` takes the records of a run, during training or afterwards. `RULES` are functions from evidence to findings. `diagnose`
applies them, lists symptoms under their causes, and reports the rules that could not be judged, with the reason.

This package depends only on records, sites and the definition of the stats: the writer thread uses it during training, and
`Run.findings()` at any time later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fitscope.diagnose.causes import folded
from fitscope.diagnose.evidence import MOST_SITES, Evidence
from fitscope.diagnose.expect import Expectation, expect, expected
from fitscope.diagnose.finding import SEVERITIES, Finding, NotJudged, Series
from fitscope.diagnose.findings import Findings
from fitscope.diagnose.rule import Rule, rule
from fitscope.diagnose.rules.bad_initial_loss import bad_initial_loss
from fitscope.diagnose.rules.batchnorm import batchnorm
from fitscope.diagnose.rules.class_collapse import class_collapse
from fitscope.diagnose.rules.clipped_gradient import clipped_gradient
from fitscope.diagnose.rules.constant_or_duplicate_features import constant_or_duplicate_features
from fitscope.diagnose.rules.dead_relu import dead_relu
from fitscope.diagnose.rules.dropout_too_high import dropout_too_high
from fitscope.diagnose.rules.exploding_gradient import exploding_gradient
from fitscope.diagnose.rules.exploding_weights import exploding_weights
from fitscope.diagnose.rules.input_not_normalised import input_not_normalised
from fitscope.diagnose.rules.label_problem import label_problem
from fitscope.diagnose.rules.layer_not_learning import layer_not_learning
from fitscope.diagnose.rules.loss_diverging import loss_diverging
from fitscope.diagnose.rules.loss_not_decreasing import loss_not_decreasing
from fitscope.diagnose.rules.loss_spike import loss_spike
from fitscope.diagnose.rules.nonfinite import nonfinite
from fitscope.diagnose.rules.odd_batch import odd_batch
from fitscope.diagnose.rules.optimizer_misconfigured import optimizer_misconfigured
from fitscope.diagnose.rules.output_loss_mismatch import output_loss_mismatch
from fitscope.diagnose.rules.overfitting import overfitting
from fitscope.diagnose.rules.precision_underflow import precision_underflow
from fitscope.diagnose.rules.rank_differs import rank_differs
from fitscope.diagnose.rules.saturated import saturated
from fitscope.diagnose.rules.unshuffled import unshuffled
from fitscope.diagnose.rules.updates_too_large import updates_too_large
from fitscope.diagnose.rules.updates_too_small import updates_too_small
from fitscope.diagnose.rules.vanishing_gradient import vanishing_gradient
from fitscope.diagnose.rules.wrong_axis import wrong_axis
from fitscope.diagnose.thresholds import THRESHOLDS, Given, thresholds
from fitscope.errors import RunError, one_of

MOST_FINDINGS = 100  #: the most findings of one rule: nobody reads more, and fitscope compares each with each

#: Every rule, in the order in which they are applied.
RULES: list[Rule] = [
    nonfinite,  # where the first NaN or Inf was born
    exploding_gradient,  # gradients that grow back through the layers, or from step to step
    vanishing_gradient,  # gradients that shrink on their way back
    dead_relu,  # units that are zero for every sample
    saturated,  # units at the flat ends of their nonlinearity
    layer_not_learning,  # weights that do not move
    updates_too_large,  # steps that replace the weights
    updates_too_small,  # steps that change nothing
    loss_not_decreasing,  # a loss that ends where it began
    loss_spike,  # single batches that stand out
    odd_batch,  # single batches of other data
    rank_differs,  # a process that is not like the others
    loss_diverging,  # a loss that rises
    overfitting,  # validation up, training down
    class_collapse,  # one class for everything
    bad_initial_loss,  # worse than knowing nothing
    input_not_normalised,  # inputs far from unit scale
    constant_or_duplicate_features,  # columns that say nothing
    label_problem,  # targets that cannot be right
    output_loss_mismatch,  # an output that does not fit its loss
    batchnorm,  # moving statistics that cannot be right
    precision_underflow,  # numbers too small for 16 bits
    unshuffled,  # sorted data
    dropout_too_high,  # hardly anything left
    wrong_axis,  # a softmax or normalisation over the wrong axis
    exploding_weights,  # weights without bound
    clipped_gradient,  # gradients cut to nothing
    optimizer_misconfigured,  # settings that defeat the optimizer
]


def diagnose(
    evidence: Evidence,
    *,
    rules: Iterable[Rule | str] | None = None,
    ignore: Iterable[str] = (),
    thresholds: Given = None,
    expect: Expectation | Iterable[Expectation] | None = None,
) -> Findings:
    """Applies rules to evidence.

    Args:
        rules: Which ones; by default `RULES`. Names choose among those.
        ignore: Names of rules to leave out.
        thresholds: Changes to the table, or the path of a TOML file.
        expect: Expected findings from `fs.expect`, in addition to those in the notes of the run.
    """
    chosen = _chosen(rules, ignore)
    if evidence.crowded:
        why = f"the run has more than {MOST_SITES:,} sites"
        return Findings(
            (), tuple(each.name for each in chosen), tuple(NotJudged(why, one.name) for one in chosen)
        )
    limits = _thresholds(thresholds, tuple(each.name for each in chosen))
    said: list[Finding] = []
    silent: list[NotJudged] = []
    for each in chosen:
        answers = each(evidence, limits.get(each.name, {}))
        found = _foremost([answer for answer in answers if isinstance(answer, Finding)])
        said += found
        silent += [NotJudged(a.reason, each.name) for a in answers if isinstance(a, NotJudged) and not found][
            :1
        ]
    meant = expected([evidence.notes, expect])
    loud = [finding for finding in said if not any(one.covers(finding) for one in meant)]
    return Findings(
        folded(loud, evidence), tuple(each.name for each in chosen), tuple(silent), len(said) - len(loud)
    )


_thresholds = thresholds


def _foremost(found: list[Finding]) -> list[Finding]:
    """The findings of one rule. Of very many the worst and earliest, and one that counts the others."""
    if len(found) <= MOST_FINDINGS:
        return found
    found = sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.first_step))
    kept, others = found[:MOST_FINDINGS], found[MOST_FINDINGS:]
    last = max(each.last_step for each in others)
    said = (
        f"{len(others):,} more layers have this problem; the worst and earliest {MOST_FINDINGS} are listed."
    )
    return [*kept, others[0].but(site=None, layer=None, last_step=last, message=said, series=None)]


def _chosen(rules: Iterable[Rule | str] | None, ignore: Iterable[str]) -> list[Rule]:
    known = {each.name: each for each in RULES}
    left_out = {*ignore}
    given: Sequence[Rule | str] = RULES if rules is None else list(rules)
    for name in [*left_out, *(each for each in given if isinstance(each, str))]:
        if name not in known and not any(isinstance(r, Rule) and r.name == name for r in given):
            raise RunError("the name of a rule", repr(name), one_of(known, name))
    chosen = [known[each] if isinstance(each, str) else each for each in given]
    return [each for each in chosen if each.name not in left_out]


__all__ = [
    "RULES",
    "SEVERITIES",
    "THRESHOLDS",
    "Evidence",
    "Finding",
    "Findings",
    "NotJudged",
    "Rule",
    "Series",
    "diagnose",
    "expect",
    "rule",
    "thresholds",
]
