"""Scope: the callback that users create, pass to `fit`, and read from.

A scope has the methods of a Keras callback but does not inherit from it, because importing Keras would import a framework. It holds
the settings and forwards the calls of Keras to `capture/life.py`, which makes recordings. A copy of a scope has its settings alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from fitscope.capture.callback import BEGIN, Hooks, caller
from fitscope.capture.life import Life
from fitscope.capture.loop import recorded_step
from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions.named import Named, checked
from fitscope.capture.settings import Json, Settings
from fitscope.diagnose.thresholds import Given
from fitscope.errors import WatchError
from fitscope.pipeline.diagnosis import OnFinding
from fitscope.pipeline.newest import Batch
from fitscope.plan.black_box import BlackBox
from fitscope.reduce.average import Average
from fitscope.schedule import Every
from fitscope.store import Objects
from fitscope.watch import On, Watch

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    import tf_keras

Step = TypeVar("Step", bound=Callable[..., Any])


class Scope(Hooks):
    """A callback that records a training: `model.fit(..., callbacks=[scope])`.

    Args:
        to: A directory or URL. Each training creates a new run in it. If you pass the path of a run, training continues that run.
        watch: What to record. By default the statistics of everything in every layer.
        every: When to capture: every n-th step, `fs.steps(...)`, `fs.epochs(...)` or a function `step -> bool`. A watch may have its
            own. All other steps run your own compiled function. By default the budget decides.
        budget: Without `every`: the share of the training time that capturing may cost. fitscope measures the cost and captures every
            n-th step, with the smallest n that the share allows, at most 1000. `run.overhead["budget"]` has the decisions.
        allowance: Seconds, or a string like "3 s", that every training may spend before the share counts; 0 for none.
            fitscope spreads them over all steps, so it records a training of a minute closely, and one of hours within `budget`.
        exact: Read every value of every tensor. By default fitscope reads some rows of tensors with more than 16,384 values.
        identity: How to make sure that recording changes nothing. "proven": your own program and the tapped program run from the same
            state and must agree bit for bit before the tapped program takes a step; if they differ, fitscope uses "twin". "twin": your
            own program takes every step, and the tapped program runs alongside, which costs one more step for each captured one.
            "trust": no proof. `run.identity` has the result.
        on: Which parts of `fit` to record: "train", "validation" or both. A validation is recorded completely, under `validation/…`.
            Pass the scope to `evaluate` and `predict` to record them under `evaluate/…` and `predict/…`.
        limit: The disk space of a run, in bytes or like "10 GB". At the limit recording stops and training continues. None: no limit.
        memory: The memory of the queue between training and disk.
        when_full: What to do if the queue is full: "block" (training waits, nothing is lost) or "drop" (the run counts the drops).
        reduce: Where to compute statistics: on the "host" (best on a CPU), in the "step" (on an accelerator), or "auto".
        notes: Any JSON data, stored in the run.
        tensorboard: A log directory. fitscope also writes the statistics there during training, as `fitscope export tensorboard` does.
        database: "duckdb:///stats.duckdb" or "sqlite:///stats.sqlite". fitscope also writes the statistics there during training.
        npy: A directory for the kept tensors of each epoch, as `epoch_0003_predictions.npy`.
        on_finding: What to do, once, about a finding of severity warning or error. "stop" ends the training at an error. A function is
            called with the finding on the writer thread, and ends the training if it returns True. A URL ("https://…") receives the
            finding as JSON. fitscope logs and stores findings in any case.
        thresholds: Changes to the thresholds of the rules, as a dict or the path of a TOML file.
        live: Draw the training in the cell of a notebook while it runs. None: if there is a notebook. False: never.
        name: The name of the run; by default date and time. An existing run is continued. Processes of one training may need it.
        black_box: Keep this many of the last steps, or an `fs.BlackBox`, for `run.replay`. Written at an error or a crash.
        ranks: How many processes record everything. In a training with more, the others record only `run.pulse`. "all": every one.

    One scope can record several trainings. `fit` on the same model continues its run, also after `compile`; another model starts one.
    """

    #: Keras dispatches batch ends asynchronously only if every callback sets this.
    async_safe = True

    def __init__(
        self,
        to: str | PathLike[str] | Objects = "runs",
        watch: Iterable[Watch] | Watch | None = None,
        every: Every | None = None,
        *,
        budget: float | None = 0.02,
        allowance: float | str = "3 s",
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
        on_finding: OnFinding | None = None,
        thresholds: Given = None,
        live: bool | None = None,
        name: str | None = None,
        black_box: BlackBox | int | None = None,
        ranks: int | Literal["all"] = 8,
    ) -> None:
        settings = Settings.checked(
            to=to, watch=watch, every=every, budget=budget, allowance=allowance, exact=exact, identity=identity, on=on, limit=limit,
            memory=memory, when_full=when_full, reduce=reduce, notes=notes, tensorboard=tensorboard, database=database, npy=npy,
            on_finding=on_finding, thresholds=thresholds, live=live, name=name, black_box=black_box, ranks=ranks,
        )  # fmt: skip
        self._recordings = Recordings(settings)
        self._life = Life(self._recordings)
        self._server: Any = None  # the page server, created by `url`

    def __repr__(self) -> str:
        facts = self._recordings.facts()
        return f"<Scope: {facts['watches']}; {facts['captures']}; newest run: {facts['newest run']}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_server": None}

    def _repr_html_(self) -> str:
        from fitscope.show.cards import card

        return card("Scope", self._recordings.facts())

    # ---- read by the user -------------------------------------------------------------------------------

    @property
    def batch(self) -> Batch:
        """The newest captured batch: `scope.batch["activations/conv1"]` is a NumPy array."""
        return self._recordings.batch

    def average(self, site: str) -> Average:
        """The mean and std of a site with keep="average", over all batches captured so far."""
        return self._recordings.average(site)

    @property
    def path(self) -> str | None:
        """The path of the newest run, for `fs.open`; None before its first captured step."""
        return self._recordings.path

    @property
    def url(self) -> str:
        """The address of the live page of these runs. The first access starts the server, on this machine only."""
        if self._server is None:
            from fitscope.show.serve import serve

            self._server = serve(self._recordings.settings.to)
        return str(self._server.url)

    def close(self) -> None:
        """Ends the recording: of a custom loop, or of a training that an exception ended while your code still holds it."""
        self._life.leave(sys.exc_info()[1])

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._life.leave(error)

    # ---- custom loops --------------------------------------------------------------------------------------

    def attach(self, model: keras.Model, *, optimizer: keras.optimizers.Optimizer | None = None) -> Scope:
        """Records a custom training loop: `with scope.attach(model):` around it.

        The scope records `train_on_batch`, `test_on_batch` and `predict_on_batch` of the model, and every call of a function under
        `@scope.step`. Without `with`, end the recording with `scope.close()`.

        Args:
            model: The model that the loop trains.
            optimizer: The optimizer that trains it, unless the model was compiled with it.
        """
        self._life.attach(model, optimizer)
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
        """Records a function as a training step: `@scope.step` above a plain function, a `tf.function` or a jitted function.

        Args:
            function: The function that does one step.
            model: The model that it trains, unless `scope.attach` names it.
            optimizer: The optimizer that trains it, unless the model was compiled with it.
        """
        if function is None:
            return lambda function: self.step(function, model=model, optimizer=optimizer)
        return recorded_step(self._life, function, model, optimizer)

    def epoch_end(self) -> None:
        """Ends an epoch of a custom loop or a TF1 session. A session that never calls it ends an epoch with each validation."""
        self._life.loop_epoch_end()

    def checkpoint(self, path: str | PathLike[str]) -> None:
        """Notes a checkpoint. fitscope notes those of `model.save` and `model.save_weights` itself."""
        if self._recordings.newest is None:
            raise WatchError("a recorded training", "none so far", "Call it during the training")
        self._recordings.newest.saved(path)

    # ---- TF1 sessions and legacy Keras ---------------------------------------------------------------------

    def session(
        self, sess: tf.compat.v1.Session, **named: Unpack[Named]
    ) -> AbstractContextManager[tf.compat.v1.Session]:
        """Records the runs of a `tf.compat.v1.Session` inside a `with` block.

        Args:
            sess: The session whose `run()` you call.
            **named: Tensors of the graph, by tensor or name, if fitscope cannot find them: `loss=`, `predictions=`, `targets=`,
                `inputs=`, `train_op=` (the operation of a training step), `grads_and_vars=` (the gradients that it applies).
        """
        known = checked(named)  # before TensorFlow is imported
        from fitscope.capture.sessions.session import session

        return session(self._recordings, sess, known)

    def hook(self, **named: Unpack[Named]) -> tf.compat.v1.train.SessionRunHook:
        """Returns a `SessionRunHook`, for `MonitoredTrainingSession(hooks=[scope.hook()])`. It takes the arguments of `session`."""
        known = checked(named)
        from fitscope.capture.sessions.hook import CaptureHook

        return CaptureHook(self._recordings, known)

    def legacy(self) -> tf_keras.callbacks.Callback:
        """Returns the callback for models of legacy Keras (`tf_keras`): `model.fit(callbacks=[scope.legacy()])`."""
        from fitscope.capture.sessions.legacy import LegacyCallback

        return LegacyCallback(self._recordings)

    # ---- called by Keras ----------------------------------------------------------------------------------

    def set_params(self, params: dict[str, Any]) -> None:
        self._life.params = params or {}

    def set_model(self, model: Any) -> None:
        self._life.model = model

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.train_begin(caller())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._life.epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._life.before_step(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._life.batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._life.epoch_end(logs)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.end("train")

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.test_begin(caller())

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._life.before_pass_step(batch)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.end_pass()
        self._life.end("evaluate")

    def on_predict_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.predict_begin(caller())

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._life.before_pass_step(batch)

    def on_predict_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._life.end_pass()
        self._life.end("predict")

    def _lets_pass(self, hook: str, error: Exception) -> bool:
        """Lets a watch that does not fit the model raise before the first step, because an error is clearer than a warning."""
        return isinstance(error, WatchError) and hook in BEGIN

    def _hook_failed(self, error: Exception) -> None:
        self._recordings.failed(error)
