"""Trains one program without and with a scope, and says in which way watching was not as promised.

What a program promises is the same for all of them: both trainings end in the same bits; nothing is raised, warned of or left
patched; loss, activations, gradients and weights are recorded; and each watched site is recorded or named in `run.unseen`.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

import fitscope as fs
from complete import unexplained
from programs import checks
from programs.catalog import Program
from programs.program import Trained, Unwatched

#: Every second step: one captured and one of the user's own take turns, so that each starts from the other's state.
EVERY = 2
#: What every training has, whatever it trains.
USUAL = ("loss", "activations", "gradients", "weights", "weight_gradients", "updates")


@dataclass
class Outcome:
    """What came of one program on one backend: a row of the table."""

    program: str
    backend: str
    captured: int = 0  #: steps
    sites: int = 0
    unseen: dict[str, str] = field(default_factory=dict)  #: by site, why not
    identical: bool | None = None
    identity: str = ""  #: what the run says of itself
    why: str = ""  #: it is not "proven"
    problems: list[str] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)  #: without and with a scope


def examine(program: Program) -> Outcome:
    """Trains the program twice from the same seed and compares."""
    outcome = Outcome(program.name, keras.backend.backend())
    with tempfile.TemporaryDirectory() as folder:
        try:
            _examine(program, outcome, Path(folder))
        except Exception:
            outcome.problems.append(traceback.format_exc(limit=-3)[-1200:])
    return outcome


def _examine(program: Program, outcome: Outcome, folder: Path) -> None:
    framework = checks.framework_functions()
    plain, seconds_plain = _train(program, Unwatched(), [])
    scope = fs.Scope(folder / "runs", watch=_watches(), every=EVERY, on=("train", "validation"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fs.FitscopeWarning)
        watched, seconds = _train(program, scope, [scope])
    outcome.seconds = seconds_plain, seconds
    differing = checks.differences(plain, watched)
    outcome.identical = not differing
    if differing:
        again, _ = _train(program, Unwatched(), [])
        itself = checks.differences(plain, again)
        repeats = "" if not itself else f" (and {len(itself)} without any scope)"
        outcome.problems.append(f"{len(differing)} differ{repeats}: {'; '.join(differing[:3])}")
    outcome.problems += _unexpected(program, caught)
    outcome.problems += [f"left on {what}" for what in checks.left_over(plain, watched)]
    if checks.framework_functions() != framework:
        outcome.problems.append("a function of the framework is still replaced")
    _read(program, outcome, watched, folder / "runs")


def _watches() -> list[Any]:
    return [
        fs.activations(), fs.gradients(), fs.weights(), fs.weight_gradients(), fs.updates(), fs.loss(), fs.metrics(),
        fs.taps(), fs.inputs(), fs.targets(), fs.predictions(),
    ]  # fmt: skip


def _train(program: Program, scope: Any, callbacks: list[Any]) -> tuple[Trained, float]:
    """One training, from a state that the one before has not touched."""
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(7)
    module = importlib.import_module(f"programs.{program.name}")
    began = time.perf_counter()
    trained = module.train(scope, callbacks)
    return trained, time.perf_counter() - began


def _unexpected(program: Program, caught: list[warnings.WarningMessage]) -> list[str]:
    texts = {str(one.message) for one in caught if issubclass(one.category, fs.FitscopeWarning)}
    return [
        f"warned: {text}"
        for text in sorted(texts)
        if not any(re.search(pattern, text) for pattern in program.warns)
    ]


def _read(program: Program, outcome: Outcome, trained: Trained, folder: Path) -> None:
    """What the runs themselves say."""
    runs = fs.runs(folder) if folder.exists() else []
    if len(runs) != program.runs:
        outcome.problems.append(f"made {len(runs)} runs, not {program.runs}")
    kinds: set[str] = set()
    for run in (fs.open(folder / brief.id) for brief in runs):
        stats = run.stats
        outcome.captured += stats[~stats.site.str.startswith("validation/")].step.nunique()
        outcome.sites += len(run.sites)
        outcome.unseen.update(run.unseen)
        kinds |= {site.split("/")[0] for site in run.sites}
        outcome.identity, outcome.why = str(run.identity), run.identity.why
        if run.status != "complete":
            outcome.problems.append(f"the run is {run.status}")
        outcome.problems += [f"error: {text}" for text in run.errors]
        passes = ("train", "validation") if checks.validated(trained) else ("train",)
        missing = unexplained(run, passes)
        if missing:
            outcome.problems.append(f"{len(missing)} neither recorded nor unseen: {', '.join(missing[:4])}")
    absent = [kind for kind in USUAL if kind not in kinds and kind not in program.without]
    if absent:
        outcome.problems.append(f"not recorded at all: {', '.join(absent)}")
