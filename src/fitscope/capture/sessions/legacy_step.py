"""Legacy Keras with eager execution: its step is traced into one function, with taps, for the whole of a `fit`.

Another trace of the step would draw other random numbers: legacy Keras seeds its operations while it traces, and their state lives in
the function. So there is one trace, which always returns every watched tensor, and fitscope drops those that are not due. Weights
are read outside the
step. Tensors leave the step as in `backends.tensorflow`, so that it rounds as the user's own step does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions import arrays
from fitscope.capture.sessions.arrays import Arrays
from fitscope.capture.sessions.legacy_taps import KEY, LegacyTaps
from fitscope.capture.sessions.progress import Progress, Upcoming, kept
from fitscope.capture.shield import shield
from fitscope.errors import FitscopeWarning, WatchError
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.configuration import configuration
from fitscope.schedule import Turn
from fitscope.sites import Site

_MISSING = object()
_FUNCTIONS = {"train": ("train_function", "train_step"), "validation": ("test_function", "test_step")}


class StepWay:
    """A model whose step is traced."""

    def __init__(self, recordings: Recordings, model: Any) -> None:
        self.progress: StepProgress | None = None
        self.first_epoch = 0
        self.begun: Callable[[Progress], None] = lambda progress: None  # noqa: ARG005
        self._recordings = recordings
        self._model = model
        self._before: dict[str, Any] = {}  # the original functions

    def train_begin(self) -> None:
        model = self._model
        why_not = _why_not(model)
        if why_not is not None:
            warnings.warn(
                f"fitscope records nothing of this training: {why_not}", FitscopeWarning, stacklevel=2
            )
            return
        if all(layer.built for layer in model._flatten_layers()):
            self._begin()
        else:
            self._wait()

    def test_begin(self) -> None:
        """Begins a validation, whose function is in place since the training began."""

    def leave(self) -> None:
        own = vars(self._model)
        for name, function in self._before.items():
            if function is _MISSING:
                own.pop(name, None)
            else:
                own[name] = function
        for _, step in _FUNCTIONS.values():
            own.pop(step, None)
        self._before = {}

    # ---- one function for a whole fit --------------------------------------------------------------------

    def _wait(self) -> None:
        """Builds a model just before its first step, from a trace that is discarded."""
        own, plain = vars(self._model), self._model.train_function
        self._before["train_function"] = plain

        def first(iterator: Any) -> Any:
            own["train_function"] = plain
            tf.function(lambda it: self._model.train_step(next(it))).get_concrete_function(iterator)
            with shield(self._recordings.failed, let=(WatchError,)):
                self._begin()
                if self.progress is not None:
                    self.progress.epoch(self.first_epoch, None)
            return self._model.train_function(iterator)

        own["train_function"] = first

    def _begin(self) -> None:
        self.progress = self._recordings.newest = _begin(self._recordings, self._model)
        self.progress.leaving = self.leave
        self.begun(self.progress)
        self._put_in("train")
        if self.progress.plan.on_validation:
            self._put_in("validation")

    def _put_in(self, in_pass: str) -> None:
        name, step = _FUNCTIONS[in_pass]
        progress, model, own = self.progress, self._model, vars(self._model)
        assert progress is not None
        taps = LegacyTaps(model, progress.plan, in_pass)
        for attribute in (name, name.replace("_function", "_tf_function")):
            self._before.setdefault(attribute, own.get(attribute, _MISSING))
        own[step] = taps.around(getattr(model, step))
        made = (model.make_train_function if in_pass == "train" else model.make_test_function)(force=True)

        def function(iterator: Any) -> Any:
            upcoming = progress.before(in_pass, model)
            try:
                logs = made(iterator)
            except BaseException as error:
                if upcoming is not None:
                    progress.raised(upcoming, error)
                raise
            logs, shown = dict(logs), logs.get(KEY, {})
            logs.pop(KEY, None)
            if upcoming is not None:
                progress.after(upcoming, taps.seen, shown)
            return logs

        own[name] = function


@dataclass(slots=True)
class UpcomingStep(Upcoming):
    """A coming step, with the weights at its start."""

    weights: dict[str, tuple[Any, Any]] = field(default_factory=dict)


class StepProgress(Progress):
    """One `fit` of a legacy model."""

    @kept
    def before(self, in_pass: str, model: Any) -> UpcomingStep:
        """Announces a step, or several in one execution."""
        assert self.next_step is not None
        upcoming = UpcomingStep(in_pass, Turn(self.next_step, 0, 0, None))
        together = int(model._steps_per_execution.numpy()) if model._steps_per_execution is not None else 1
        if in_pass == "train" and together > 1:
            self.recorder.unseen("steps", f"of {together} steps in one execution only the last is handed out")
            self.next_step += together - 1
            self._batch += together - 1
        if (self.step if in_pass == "train" else self.pass_batch)(upcoming):
            wanted = self.wants(upcoming)
            upcoming.weights = {
                w.path: (w.variable, w.variable.numpy())
                for w in self.plan.anatomy.weights
                if ("weights", w.path) in wanted or ("updates", w.path) in wanted
            }
        return upcoming

    @kept
    def after(self, upcoming: UpcomingStep, seen: Harvest, shown: dict[str, Any]) -> None:
        """Takes the result of a step."""
        try:
            for site, why in seen.failed.items():
                self.unseen(site, why, self.wants(upcoming))
            if upcoming.due.all:
                wanted = self.wants(upcoming)
                values: dict[str, Any] = {name: np.asarray(tensor) for name, tensor in shown.items()}
                sites = dict(seen.sites)
                for path, (variable, old) in upcoming.weights.items():
                    if ("weights", path) in wanted:
                        values[Site.at(("weights", path))] = old
                    if ("updates", path) in wanted:
                        values[Site.at(("updates", path))] = arrays.difference(variable.numpy(), old)
                    for kind in ("weights", "updates"):
                        site = Site.at((kind, path))
                        sites[site] = site
                self.deliver(upcoming, sites, values)
        finally:
            self.done(upcoming)


def _why_not(model: Any) -> str | None:
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return "the model trains under tf.distribute with several replicas, which is not supported yet"
    return None


def _begin(recordings: Recordings, model: Any) -> StepProgress:
    anatomy = Anatomy.of(model)
    before, after = recordings.newest, recordings.of(model)
    plan, budget = recordings.plan(anatomy, recordings.settings.watches, after)
    if before is not None:
        before.recorder.abandon()
    last = after.last_step if after is not None else None
    info = {
        "model": anatomy.describe(),
        "configuration": configuration(model),
        "plan": plan.describe(),
        "backend": "tf_keras",
    }
    recorder = recordings.recorder(info, Arrays(), budget, lambda step: last is not None and last < step)
    progress = StepProgress(model, plan, recorder)
    progress.next_step = int(model.optimizer.iterations.numpy())
    return progress
