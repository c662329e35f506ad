"""Every threshold of every rule, in one table.

A threshold is relative wherever it can be: to the layers nearer to the output, to the layer's own weights, to the loss at the start.
To change some, give a dict, nested or flat, or the path of a TOML file with a section for each rule:

    run.findings(thresholds={"vanishing_gradient": {"ratio": 1e-6}, "dead_relu.units": 0.8})
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Mapping
from os import PathLike
from typing import Any

from fitscope.errors import RunError, one_of

THRESHOLDS: dict[str, dict[str, float]] = {
    "nonfinite": {},
    "exploding_gradient": {
        "depth": 1e4,  # gradient of a layer ÷ gradient of the layer nearest to the loss
        "alone": 30.0,  # growth across one layer ÷ the next largest growth; from here on that layer is named
        "growth": 100.0,  # gradient ÷ its own median so far
        "peak": 10.0,  # gradient ÷ its largest value in the first tenth of the training
    },
    "vanishing_gradient": {
        "ratio": 1e-4,  # gradient of a layer ÷ gradient of the layer nearest to the loss
        "update": 1e-3,  # update ÷ weight, relative to that of the layer nearest to the loss
        "below": 0.1,  # likewise, if the gradient is below the epsilon of the optimizer
        "layers": 3,  # the fewest layers with weights that are judged
    },
    "dead_relu": {
        "units": 0.6,  # share of units that are never active
        "zeros": 0.99,  # share of zeros, if units were not recorded
        "captures": 3,  # recorded steps that it must last
    },
    "saturated": {
        "units": 0.5,  # share of units that are saturated for every sample
        "values": 0.9,  # share of values at an end, in all units together
        "start": 0.7,  # likewise, if they are there from the first step on
        "scores": 20.0,  # standard deviation of attention scores
        "room": 0.02,  # mean of 1 - x² (tanh) or 4x(1 - x) (sigmoid), if units were not recorded
        "captures": 3,
    },
    "layer_not_learning": {"captures": 3},
    "updates_too_large": {
        "ratio": 0.1,  # update ÷ weight, if the loss suffers
        "alone": 1.0,  # likewise, whatever the loss does
        "ruined": 0.8,  # loss after such steps, to the end ÷ loss before them
        "captures": 3,
    },
    "updates_too_small": {"ratio": 1e-5, "captures": 3, "progress": 0.02},
    "loss_not_decreasing": {
        "progress": 0.03,  # fall of the loss by its level at the start
        "chance": 0.975,  # level of the last third by the loss of guessing, from which on nothing was learned
        "back": 0.95,  # the same for a loss that came down to it from above
        "above": 1.15,  # level at the start by the loss of guessing, to count as above
        "average": 0.985,  # the same by the loss of a model that always predicts the average target
        "far": 1.3,  # by which it may still be on its way there; above that it must not fall any more
        "stays": 0.05,  # fall from the first third to the last, at most, to count as none
        "chance_steps": 100,  # length of training needed for that
        "losses": 40,  # recorded losses needed
        "steps": 40,  # length of training needed
    },
    "loss_spike": {
        "noise": 10.0,  # height by the usual noise
        "scale": 0.3,  # height by how far the loss has fallen in the whole training
        "often": 0.02,  # share of losses from which on spikes are the nature of the loss, and a note
        "clear": 3.0,  # height of a note by the largest rise around it that is no spike
        "window": 25,  # losses before it to compare with
        "warning": 3.0,  # height by that fall, or by the loss of guessing if that is more: a warning from here on
    },
    "rank_differs": {
        "weights": 1e-6,  # relative distance of the rms of a rank's weights from the median of all ranks
        "loss": 0.5,  # how far, relatively, the loss of a rank is above that of every other rank
        "share": 0.8,  # share of the compared steps at which it is
        "slow": 1.5,  # time of a step ÷ that of the other ranks
        "cpu": 2.0,  # likewise for CPU time
        "captures": 8,  # shared steps needed to compare losses
    },
    "odd_batch": {
        "times": 10.0,  # rms of a batch ÷ median of all batches
        "gap": 3.0,  # rms of a batch ÷ largest of the batches that are not odd
        "share": 0.1,  # the largest share of odd batches among the captured ones
        "captures": 8,
    },
    "loss_diverging": {
        "rise": 1.5,  # level at the end by the level at the start
        "from_best": 4.0,  # level at the end by the best level
        "error": 10.0,  # level at the end by the level at the start, from which on it is an error
        "losses": 10,
        "at_once": 100.0,  # last losses before a NaN by the first
        "below": 10.0,  # negative loss at the end by the size of the loss at the start
    },
    "overfitting": {
        "rise": 1.2,  # validation loss at the end ÷ its minimum
        "fall": 0.8,  # training loss at the end ÷ training loss at that minimum
        "epochs": 2,  # epochs since that minimum
        "gap": 2.0,  # validation loss ÷ training loss at the end
        "apart": 5.0,  # likewise in the first epoch; from here on the message says so
    },
    "class_collapse": {
        "predicted": 0.98,  # share of the class predicted most often
        "wanted": 0.8,  # the largest share of the most common class; above it, the other classes are compared
        "named": 0.25,  # how often those are predicted ÷ how often they occur
        "rare": 8.0,  # the fewest samples of those classes
        "imbalance": 0.985,  # share of the most common class above which nothing is judged
        "captures": 5,
        "steps": 20,
    },
    "bad_initial_loss": {
        "times": 3.0,  # first loss ÷ loss of a model that knows nothing
        "above": 1.5,  # first loss − that loss; both must be exceeded
        "high": 6.0,  # first loss ÷ that loss, up to which a loss that falls is a note
        "nats": 6.0,  # likewise as a difference: the right class has e^-6 of the chance that guessing gives it
        "prior": 1.5,  # loss with the output bias alone ÷ loss with a bias of 0
        "regression": 100.0,  # first loss ÷ loss of a model that knows nothing, for squared errors
        "offset": 3.0,  # |mean| of the targets ÷ their standard deviation
        "signal": 30.0,  # growth of the signal through the layers, from which on initial weights are named
    },
    "input_not_normalised": {
        "size": 20.0,  # rms of the inputs
        "tiny": 0.05,  # the largest number of all inputs
        "offset": 20.0,  # |mean| of a feature ÷ its standard deviation
        "ranges": 100.0,  # largest range of a feature ÷ median range
    },
    "constant_or_duplicate_features": {"captures": 2, "few": 256, "share": 0.5},
    "label_problem": {
        "captures": 3,
        "imbalance": 0.95,
        "wrong": 2.5,  # loss of a sample that looks mislabelled
        "share": 0.023,  # share of such samples
        "learned": 0.15,  # the largest loss of the other samples
        "common": 0.9,  # share of the most common class above which single samples are not judged
        "doubt": 0.7,  # how far such a loss may be below that of wrong labels
        "tiny": 0.01,  # the largest target of a binary cross-entropy
    },
    "output_loss_mismatch": {},
    "batchnorm": {
        "high": 0.995,  # momentum from which on a training may be too short for it
        "low": 0.3,  # momentum at or below which the moving statistics are those of the last batches
        "epsilon": 0.1,  # epsilon ÷ variance
        "batch": 2,  # samples of a batch
        "passes": 10.0,  # rms of the output of a frozen layer that never saw data
    },
    "precision_underflow": {"share": 0.5, "lost": 0.5, "captures": 2},
    "unshuffled": {"share": 0.5, "batches": 6},
    "dropout_too_high": {"rate": 0.8, "note": 0.7},
    "wrong_axis": {"sum": 0.05},
    "exploding_weights": {"growth": 20.0, "rewarded": 3.0, "least": 1e-3, "size": 1.0, "still": 1.1, "captures": 5},
    "clipped_gradient": {"times": 100.0, "least": 1e-4},
    "optimizer_misconfigured": {
        "adaptive_rate": 0.1,  # learning rate of Adam and its like that is a note
        "adaptive_rate_warning": 0.5,
        "rate": 5.0,  # learning rate of SGD
        "jump": 20.0,  # learning rate ÷ the highest before it
        "epsilon": 1e-2,
        "decay": 0.3,
        "penalty": 10.0,  # strength of the penalties of Ftrl, which are in units of summed gradients
        "regularizer": 1.0,  # factor of a penalty on the weights of a layer
        "momentum": 0.997,
    },
}  # fmt: skip

MOST_BYTES = 1 << 20  #: the most bytes of a file of thresholds

Given = Mapping[str, Any] | str | PathLike[str] | None


def thresholds(given: Given = None, names: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The table with the given changes. `names`: rules that are not in the table and may have thresholds too."""
    table: dict[str, dict[str, Any]] = {rule: dict(limits) for rule, limits in THRESHOLDS.items()}
    for rule, name, value in _read(given):
        if rule not in table and rule not in names:
            raise RunError("the name of a rule in the thresholds", repr(rule), one_of(table, rule))
        limits = table.setdefault(rule, {})
        if rule in THRESHOLDS and name not in limits:
            raise RunError(f"a threshold of {rule!r}", repr(name), one_of(limits, name))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RunError(
                f"a number for {rule}.{name}", repr(value), "Write it as in diagnose/thresholds.py"
            )
        limits[name] = value
    return table


def _text(path: str | PathLike[str]) -> str:
    """The text of a regular file that is not huge: opening a pipe would wait, and a device never ends."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise OSError(
                errno.EINVAL, f"it is not a regular file of at most {MOST_BYTES:,} bytes", str(path)
            )
        return file.read(MOST_BYTES).decode("utf-8")


def _read(given: Given) -> list[tuple[str, str, Any]]:
    if given is None:
        return []
    if isinstance(given, (str, PathLike)):
        try:
            given = tomllib.loads(_text(given))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise RunError(
                "a TOML file of thresholds", f"{error}", "Give a section for each rule: [dead_relu]"
            ) from error
    found = []
    for key, value in given.items():
        if isinstance(value, Mapping):
            found += [(key, name, inner) for name, inner in value.items()]
        else:
            rule, _, name = key.partition(".")
            found.append((rule, name, value))
    return found
