"""Scope: what the user makes, hands to `fit`, and reads from.

A scope is a Keras callback by shape, not by inheritance: importing Keras would import a framework. It holds the settings and
the life cycle; each training it watches is a `Recording` of its own.
"""

from __future__ import annotations

import functools
import secrets
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from os import PathLike
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from fitscope import sizes
from fitscope.capture.backends import Adapter, adapter
from fitscope.capture.callback import Hooks, caller
from fitscope.capture.dispatch import when_built
from fitscope.capture.identity import CHOICES
from fitscope.capture.leaving import OUTSIDE, Frame, notice, outside
from fitscope.capture.loop import Loop
from fitscope.capture.training import Recording
from fitscope.errors import WatchError, one_of
from fitscope.pipeline.handover import Border
from fitscope.pipeline.newest import Batch
from fitscope.pipeline.recorder import COMPLETE, Recorder
from fitscope.pipeline.sample_loss import SampleLosses
from fitscope.pipeline.sinks import Make
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.budget import Budget
from fitscope.plan.plan import resolve
from fitscope.reduce.average import Average
from fitscope.schedule import Every, Schedule, schedule
from fitscope.shield import described, shield, warn
from fitscope.store import Objects, RunWriter, existing, place
from fitscope.watch import On, Watch, phases, several

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    Fetch: TypeAlias = tf.Tensor | tf.Operation | str  #: a part of a TF1 graph, or its name

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
Step = TypeVar("Step", bound=Callable[..., Any])


class Scope(Hooks):
    """Records what happens inside `model.fit(..., callbacks=[scope])`.

    Args:
        to: A directory or URL. Each training makes a new run in it; given the place of a run that exists, training goes on
            in that run.
        watch: What to record; by default the statistics of everything in every layer.
        every: When: a number of steps, `fs.steps(...)`, `fs.epochs(...)` or a function `step -> bool`. A watch
            may have its own. All other steps run the user's own compiled function.
        budget: Without `every`: the share of the training's time that capturing may cost. What a captured step costs is measured,
            and every n-th step is captured, with the smallest n that the share allows; at least every 1000th. What was decided is in
            `run.overhead["budget"]`.
        exact: Read all of every tensor. Otherwise the statistics of a large one (more than 16,384 numbers) are those of some
            of its rows, the same at every layer; a record says how many numbers it has seen.
        identity: How to make sure that watching changes nothing. "proven": before the program with taps takes a captured
            step, it and your own program run from the same state and must agree bit for bit; if they do not, "twin" is used.
            "twin": your own program takes every step, and the one with taps runs beside it, which costs one more step for
            each captured one. "trust": no proof. `run.identity` says what came of it.
        on: Which parts of `fit`: "train", "validation" or both. A validation is recorded whole, under `validation/…`; so are
            `evaluate` and `predict` when they are given the scope, under `evaluate/…` and `predict/…`.
        limit: Of disk, in bytes or like "10 GB". When it is reached, recording ends and training goes on.
        memory: Of the queue between training and disk.
        when_full: What happens when the queue is full: "block" (training waits, nothing is lost) or "drop" (counted
            and named in the run).
        reduce: Where statistics are computed: "host" (best on a CPU), "step" (on the accelerator), or "auto".
        notes: Anything that can be written as JSON, kept in the run.
        tensorboard: A directory of logs. While the training goes on the statistics are written there too, for TensorBoard, as
            `fitscope export tensorboard` would.
        database: "duckdb:///stats.duckdb" or "sqlite:///stats.sqlite": the same in a database.
        npy: A directory for what is kept of each epoch: `epoch_0003_predictions.npy`.

    One scope may watch several trainings, one after the other. `fit` called again on the same model continues its
    run, also after a new `compile`; another model begins a new one.
    """

    #: Keras dispatches batch ends asynchronously only if every callback says that it does not mind.
    async_safe = True

    def __init__(
        self,
        to: str | PathLike[str] | Objects = "runs",
        watch: Iterable[Watch] | Watch | None = None,
        every: Every | None = None,
        *,
        budget: float | None = 0.02,
        exact: bool = False,
        identity: Literal["proven", "twin", "trust"] = "proven",
        on: On = "train",
        limit: int | str | None = "10 GB",
        memory: int | str = "1 GB",
        when_full: Literal["block", "drop"] = "block",
        reduce: Literal["auto", "host", "step"] = "auto",
        notes: Json = None,
        tensorboard: str | PathLike[str] | None = None,
        database: str | None = None,
        npy: str | PathLike[str] | None = None,
    ) -> None:
        place(to)  # an unusable place is an error now, not in the first step
        self._to = to
        self._watches = tuple(replace(each, exact=True) if exact else each for each in several(watch))
        self._every = None if every is None else schedule(every)
        self._budget = budget
        if every is None:
            if budget is None:
                raise WatchError(
                    "`every` or `budget`", "neither", "Write every=10, or budget=0.02 for two percent"
                )
            Budget(budget)  # what is no share is an error now
        self._identity = _choice("identity", identity, CHOICES)
        self._on = phases(on)
        self._limit = sizes.parse(limit, "limit")
        self._memory = sizes.parse(memory, "memory") or sys.maxsize
        self._when_full = _choice("when_full", when_full, ("block", "drop"))
        self._reduce = _choice("reduce", reduce, ("auto", "host", "step"))
        self._notes = notes
        self._sinks = _sinks(to, tensorboard=tensorboard, database=database, npy=npy)
        self._model: Any = None
        self._owner: Callable[[], Any] = lambda: None  # the list of callbacks that we are called by
        self._frame: Frame | None = None  # of `fit`
        self._phase = ""  # "train", "evaluate" or "predict" while one goes on
        self._pass: tuple[str, int | None] = "", None
        self._epoch, self._batch = 0, 0
        self._wait_no_more: Callable[[], None] = lambda: None
        self._batches: int | None = None
        self._recording: Any = None  # a `Recording`, or what is like it for sessions and legacy Keras
        self._loop: Loop | None = None
        self._run: tuple[Any, str] | None = None  # where the runs are, and the id of the newest
        self._server: Any = None  # of the page, once its address was asked for

    # ---- what the user reads -----------------------------------------------------------------------------

    @property
    def batch(self) -> Batch:
        """The newest captured batch: `scope.batch["activations/conv1"]` is a NumPy array."""
        batch: Batch | None = self._recording.batch if self._recording is not None else None
        if batch is None:
            raise WatchError(
                "a batch that was captured",
                "none so far",
                "Pass the scope to fit() and read `scope.batch` at a step that `every` names, or later",
            )
        return batch

    def average(self, site: str) -> Average:
        """The mean and std of a site that is watched with keep="average", over everything captured so far."""
        recorder: Recorder | None = self._recording.recorder if self._recording is not None else None
        average = recorder.average(site) if recorder is not None else None
        if average is None:
            there = recorder.averages if recorder is not None else []
            raise WatchError(
                "a site whose average is kept",
                repr(site),
                one_of(there, site) if there else 'Watch it with keep="average"',
            )
        return average

    @property
    def path(self) -> str | None:
        """Where the newest run is, for `fs.open`; None before its first captured step."""
        writer = self._recording.recorder.writer if self._recording is not None else None
        return writer.path if writer is not None else None

    @property
    def url(self) -> str:
        """The address of the live page of these runs. Asking for it begins to serve it, on this machine only."""
        if self._server is None:
            from fitscope.show.serve import serve

            self._server = serve(self._to)
        return str(self._server.url)

    def close(self) -> None:
        """Finishes what is being recorded: a hand-written loop, or a training left by an exception that is still held."""
        self._leave(sys.exc_info()[1])

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._leave(error)

    # ---- hand-written loops ------------------------------------------------------------------------------

    def attach(self, model: keras.Model, *, optimizer: keras.optimizers.Optimizer | None = None) -> Scope:
        """Records a training loop of your own: `with scope.attach(model):` around it.

        In there `train_on_batch`, `test_on_batch` and `predict_on_batch` of the model are recorded, and every call of a function
        under `@scope.step`. `optimizer` is the one that trains the model, where that is not the one it was compiled with.
        Without `with`, `scope.close()` ends it.
        """
        border = _border()
        self._leave(None)
        self._model, self._batches = model, None
        before, self._recording = self._recording, None
        optimizers = (optimizer,) if optimizer is not None else ()
        self._loop = Loop(
            model, border, lambda: self._begin(border, None, before, optimizers), self._hook_failed
        )
        return self

    @overload
    def step(
        self,
        function: Step,
        *,
        model: keras.Model | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> Step: ...
    @overload
    def step(
        self, *, model: keras.Model | None = None, optimizer: keras.optimizers.Optimizer | None = None
    ) -> Callable[[Step], Step]: ...
    def step(
        self,
        function: Callable[..., Any] | None = None,
        *,
        model: keras.Model | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> Any:
        """Makes a function a training step that is recorded: `@scope.step` on a plain function, a `tf.function` or a jitted one.

        The model is the one of `scope.attach`, or `@scope.step(model=model)` says it.
        """
        if function is None:
            return lambda function: self.step(function, model=model, optimizer=optimizer)
        if not callable(function):
            raise WatchError(
                "a function", repr(function), "Put @scope.step above the function that does one step"
            )
        if getattr(function, "_fitscope_step", False):
            raise WatchError(
                "a step of one scope", "a function that has one", "Use one scope with all watches"
            )

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            if model is not None and (self._loop is None or self._loop.model is not model):
                self.attach(model, optimizer=optimizer)
            if self._loop is None:
                raise WatchError(
                    "a model that the step trains",
                    "none",
                    "Write `with scope.attach(model):` around the loop, or @scope.step(model=model)",
                )
            return self._loop.step(function, *args, **kwargs)

        step._fitscope_step = True  # type: ignore[attr-defined]
        return step

    def epoch_end(self) -> None:
        """Says that an epoch of a hand-written loop is over, or one of a session, where else a validation tells."""
        loop = self._loop or getattr(self._recording, "loop", None)
        if loop is None:
            raise WatchError(
                "a hand-written loop",
                "none",
                "fit() tells of its epochs by itself; a loop is begun by scope.attach(model)",
            )
        loop.epoch_end()

    def checkpoint(self, path: str | PathLike[str]) -> None:
        """Notes a checkpoint that was saved in a way of your own. What `model.save` and `model.save_weights` save is noted by itself."""
        if self._recording is None:
            raise WatchError("a training that is recorded", "none so far", "Call it during the training")
        self._recording.saved(path)

    def _leave(self, error: BaseException | None) -> None:
        """Ends what is being recorded. A loop that was left without an error is complete: nobody else could say so."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
        if self._recording is not None:
            recorder = self._recording.recorder
            if loop is not None and error is None:
                self._recording.epoch_end()
                recorder.finish(COMPLETE)
            else:
                recorder.abandon(error)

    # ---- TF1 sessions and legacy Keras ---------------------------------------------------------------------

    def session(
        self,
        sess: tf.compat.v1.Session,
        *,
        loss: Fetch | None = None,
        predictions: Fetch | Iterable[Fetch] | None = None,
        targets: Fetch | Iterable[Fetch] | None = None,
        inputs: Fetch | Iterable[Fetch] | None = None,
        train_op: Fetch | Iterable[Fetch] | None = None,
        grads_and_vars: Iterable[tuple[Fetch, Fetch]] | None = None,
    ) -> AbstractContextManager[Any]:
        """Records what a `tf.compat.v1.Session` runs, for the length of a `with` block.

        What the graph does not say is said here, by tensor or name: which tensors are the loss, the predictions, the targets and the
        inputs, what runs a training step, and what gradients it applies.
        """
        from fitscope.capture.sessions.session import Said, session

        return session(self, sess, Said(loss, predictions, targets, inputs, train_op, grads_and_vars))

    def hook(
        self,
        *,
        loss: Fetch | None = None,
        predictions: Fetch | Iterable[Fetch] | None = None,
        targets: Fetch | Iterable[Fetch] | None = None,
        inputs: Fetch | Iterable[Fetch] | None = None,
        train_op: Fetch | Iterable[Fetch] | None = None,
        grads_and_vars: Iterable[tuple[Fetch, Fetch]] | None = None,
    ) -> Any:
        """The same as a `SessionRunHook`, for `MonitoredTrainingSession(hooks=[scope.hook()])` and its like."""
        from fitscope.capture.sessions.hook import CaptureHook
        from fitscope.capture.sessions.session import Said

        return CaptureHook(self, Said(loss, predictions, targets, inputs, train_op, grads_and_vars))

    def legacy(self) -> Any:
        """The callback for models of legacy Keras: `model.fit(callbacks=[scope.legacy()])`, with `tf_keras`."""
        from fitscope.capture.sessions.legacy import LegacyCallback

        return LegacyCallback(self)

    # ---- what Keras calls --------------------------------------------------------------------------------

    def set_params(self, params: dict[str, Any]) -> None:
        self._batches = (params or {}).get("steps")

    def set_model(self, model: Any) -> None:
        self._model = model

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._start("train", caller())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch
        if self._recording is not None:
            self._recording.epoch(epoch, self._batches)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._batch = batch
        if self._recording is not None:
            self._recording.before_step(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._recording is not None:
            self._recording.epoch_end()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._end("train")

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        # A validation is told by the very callback list that told of the training's begin.
        frame = caller()
        if self._loop is not None:
            self._begin_pass("validation", self._batches)
        elif self._phase == "train" and _owner_in(frame) is self._owner():
            self._notice(frame, None)
            self._begin_pass("validation")
        else:
            self._start("evaluate", frame)
            self._begin_pass("evaluate", self._batches)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._batch = batch
        if self._recording is not None:
            self._recording.before_pass_step(batch)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._recording is not None:
            self._recording.end_pass()
        self._end("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._loop is None:
            self._start("predict", caller())
        self._begin_pass("predict", self._batches)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.on_test_batch_begin(batch, logs)

    def on_predict_end(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._recording is not None:
            self._recording.end_pass()
        self._end("predict")

    # ---- life cycle --------------------------------------------------------------------------------------

    def _lets_pass(self, hook: str, error: Exception) -> bool:
        """What the user asked for does not fit the model: said before the first step, it is worth more than a warning."""
        return isinstance(error, WatchError) and hook in _BEGIN

    def _hook_failed(self, error: Exception) -> None:
        """Keeps an error of ours in the run, if there is one, and tells of it."""
        if self._recording is None:
            warn(f"fitscope records nothing of this training. {described(error)}")
            return
        self._recording.recorder.failed(error)
        self._recording.recorder.tell()

    def _start(self, phase: str, frame: FrameType | None) -> None:
        """A training, an evaluation or a prediction begins."""
        if self._loop is not None:
            raise WatchError(
                "a scope that does one thing at a time",
                "fit() with a scope that is attached to a hand-written loop",
                "Leave `with scope.attach(...)` first, or use a second scope",
            )
        # Keras does not tell callbacks of an exception. Its callback list lives just as long as `fit` does.
        owner = _owner_in(frame)
        self._owner = weakref.ref(owner) if owner is not None else lambda: None
        before, self._recording = self._recording, None
        self._phase, self._epoch = phase, self._epoch if phase != "train" else 0
        with shield(
            self._hook_failed
        ):  # what is left of the one before must not keep this one from being recorded
            self._wait_no_more()
            if before is not None:
                before.recorder.abandon()
        self._frame = None
        self._notice(frame, owner)
        border = _border()
        if border.unbuilt(self._model):
            self._wait(border, phase, owner, before)
        else:
            self._begin(border, owner, before)

    def _notice(self, hook: FrameType | None, callbacks: Any) -> None:
        """Has us told what is raised where Keras called this hook of the callback list: in `fit`, `evaluate` or `predict`."""
        frame = outside(hook)
        if frame is None:
            return
        self._frame = self._frame or Frame(frame)
        with shield(self._hook_failed):  # then we do not know how it ends; it is no reason to end it
            import keras  # at this point the user has

            notice(frame, callbacks, self, self._raised, batches=keras.backend.backend() in OUTSIDE)

    def _raised(self, error: BaseException) -> None:
        if self._phase and self._recording is not None:
            self._recording.raised(error)

    def _begin_pass(self, name: str, batches: int | None = None) -> None:
        self._pass = name, batches
        if self._recording is not None:
            self._recording.begin_pass(name, batches)

    def _end(self, phase: str) -> None:
        if self._phase == phase:
            self._phase = ""
            if self._recording is not None:
                self._recording.recorder.finish(COMPLETE)

    def _wait(self, border: Adapter, phase: str, owner: Any, before: Recording | None) -> None:
        """Begins in the first step, which is what builds this model."""
        owner_alive = self._owner

        def begin(failure: BaseException | None) -> None:
            # After the first step nothing is raised any more, not even what the user got wrong.
            with shield(self._hook_failed, let=(WatchError,) if failure is None else ()):
                begin_now(failure)

        def begin_now(failure: BaseException | None) -> None:
            recording = self._begin(border, owner_alive(), before)
            if recording is None:
                return
            if failure is not None:
                recording.recorder.failed(
                    f"the first step was not captured, as the model could not be built before it: {failure}"
                )
            recording.epoch(self._epoch, self._batches)
            if phase != "train":
                recording.begin_pass(*self._pass)
            if failure is None:
                (recording.before_step if phase == "train" else recording.before_pass_step)(self._batch)

        function = {"train": "train", "evaluate": "test", "predict": "predict"}[phase]
        self._wait_no_more = when_built(border, self._model, function, begin)
        if owner is not None:
            weakref.finalize(owner, self._wait_no_more)

    def _begin(
        self, border: Adapter, owner: Any, before: Recording | None, optimizers: tuple[Any, ...] = ()
    ) -> Recording | None:
        """A recording of what begins now. What does not fit the model is an error, before the first step."""
        anatomy = Anatomy.of(self._model, optimizers)
        after = before if before is not None and before.model is anatomy.model else None
        every, budget = self._pace(after)
        plan = resolve(self._watches, anatomy, every, self._on)
        why_not = border.why_not(self._model)
        if why_not is not None:
            warn(f"fitscope records nothing of this training: {why_not}")
            return None
        last = after.last_step if after is not None else None
        info = {
            "model": anatomy.describe(),
            "plan": plan.describe(),
            "backend": border.name,
        }

        in_step = self._reduce == "step" or (self._reduce == "auto" and border.on_accelerator())
        per_sample = [watch for watch in self._watches if watch.per_sample]
        ids = next((watch.ids for watch in per_sample if watch.ids is not None), None)
        recorder = self._recorder(
            info,
            border,
            lambda step: after is not None and (last is None or last < step),
            (lambda note: SampleLosses(anatomy.model, ids, border, note)) if per_sample else None,
        )
        recorder.budget = budget
        recording = self._recording = Recording(
            plan, border, recorder, in_step=in_step, identity=self._identity, after=after
        )
        recording.note_saves()
        if owner is not None:
            recording.notice_steps()
            recorder.finish_with(owner, self._frame)
        return recording

    def _pace(self, after: Any) -> tuple[Schedule, Budget | None]:
        """When to capture, and what decides it; what is known from the recording that this one goes on from is kept."""
        if self._every is not None:
            return self._every, None
        assert self._budget is not None
        budget = (after.recorder.budget if after is not None else None) or Budget(self._budget)
        budget.again()
        # With nothing to decide on it would say things that are not so.
        return budget.schedule, budget if any(watch.every is None for watch in self._watches) else None

    def _recorder(
        self,
        info: dict[str, Any],
        border: Border,
        goes_on: Callable[[int], bool],
        samples: Callable[[Callable[[str, str], None]], SampleLosses] | None = None,
    ) -> Recorder:
        """What takes captures to a run: the one that goes on from its newest step, one that was named, or a new one."""

        def open_run(step: int) -> RunWriter:
            self._run = (self._run if goes_on(step) else None) or existing(self._to)
            begin = RunWriter.create if self._run is None else RunWriter.attempt
            runs, name = self._run or (self._to, _new_name())
            told = {**info, "notes": self._notes}
            writer = begin(runs, name, told, start_step=step, limit=self._limit)
            self._run = runs, writer.id
            return writer

        return Recorder(
            open_run,
            border,
            memory=self._memory,
            when_full=self._when_full,
            samples=samples,
            sinks=self._sinks,
        )


def _sinks(to: Any, **wanted: Any) -> Mapping[str, Make]:
    """Where else what is recorded goes."""
    if all(value is None for value in wanted.values()):
        return {}
    from fitscope.export import live

    return live.sinks(to, **wanted)


def _new_name() -> str:
    """A name that nobody else takes, and that sorts after those given before."""
    now = datetime.now()
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{secrets.token_hex(1)}"


#: The hooks that begin something: nothing of it has run yet.
_BEGIN = ("on_train_begin", "on_test_begin", "on_predict_begin")


def _owner_in(frame: FrameType | None) -> Any:
    """The callback list whose method this frame runs."""
    return None if frame is None else frame.f_locals.get("self")


def _border() -> Adapter:
    import keras  # at this point the user has

    return adapter(keras.backend.backend())


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise WatchError(f"`{name}` to be one of {known}", repr(value), one_of(known, str(value)))
    return value
