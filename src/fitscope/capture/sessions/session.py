"""A session, or a graph whose session is still to come, brought under a scope."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from fitscope.capture.sessions.anatomy import anatomy_of
from fitscope.capture.sessions.arrays import Arrays
from fitscope.capture.sessions.graph import executed
from fitscope.capture.sessions.outlets import Outlets
from fitscope.capture.sessions.patch import closed, is_monitored, is_session, patched
from fitscope.capture.sessions.reading import ROLES, Watched
from fitscope.capture.sessions.recording import SessionRecording
from fitscope.capture.sessions.roles import infer, tensors_of
from fitscope.capture.sessions.training import losses, training_roots
from fitscope.errors import FitscopeWarning, ModelError
from fitscope.pipeline.handover import Border
from fitscope.pipeline.recorder import Recorder
from fitscope.plan.budget import Budget
from fitscope.plan.plan import resolve
from fitscope.schedule import Schedule
from fitscope.watch import Watch


class Settings(Protocol):
    """What a scope knows that a session needs."""

    _watches: tuple[Watch, ...]
    _on: tuple[str, ...]
    _reduce: str
    _identity: str
    _recording: Any

    def _pace(self, before: Any) -> tuple[Schedule, Budget | None]: ...

    def _recorder(self, info: dict[str, Any], border: Border, goes_on: Callable[[int], bool]) -> Recorder: ...

    def _hook_failed(self, error: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says of a graph, where the graph does not."""

    loss: Any = None
    predictions: Any = None
    targets: Any = None
    inputs: Any = None
    train_op: Any = None
    grads_and_vars: Any = None


def begin(scope: Settings, graph: Any, said: Said, *, again: bool = False) -> SessionRecording:
    """A recording of what runs in this graph. What does not fit it is an error, now.

    `again`: as another attempt at the run before, from whatever step.
    """
    train_ops = _operations(said.train_op)
    roots = training_roots(graph, train_ops)
    if not roots and said.predictions is None:
        raise ModelError(
            "a graph with a training step in it",
            "one without an optimizer's operations",
            "Build the whole graph first (legacy Keras does so in its first `train_on_batch`), or say what is trained with "
            "`train_op=`, or what is predicted with `predictions=`",
        )
    # Gradients that are gathered first, and fed to the step, were taken of something too.
    found = losses(graph, executed(roots)) or losses(graph, set(graph.get_operations()))
    roles = infer(graph, tensors_of(graph, said.loss, "loss") or found)
    for kind in ROLES:
        if getattr(said, kind) is not None:
            setattr(roles, kind, tensors_of(graph, getattr(said, kind), kind))
    roles.said = frozenset(kind for kind in ROLES if getattr(said, kind) is not None)
    anatomy, watches = anatomy_of(graph, roles, scope._watches)
    before = scope._recording
    same = before is not None and before.model is graph
    every, budget = scope._pace(before if same else None)
    plan = resolve(watches, anatomy, every, scope._on)
    given = {
        variable.op.name: gradient for gradient, variable in said.grads_and_vars or () if gradient is not None
    }
    watched = Watched(graph, anatomy, roles, Outlets(graph), train_ops, given)
    if before is not None:
        before.recorder.abandon()
    last = before.last_step if same else None
    info = {"model": anatomy.describe(), "plan": plan.describe(), "backend": "tensorflow session"}
    recorder = scope._recorder(info, Arrays(), lambda step: again or (last is not None and last < step))
    recorder.budget = budget
    in_graph = scope._reduce == "step" or (scope._reduce == "auto" and _on_accelerator())
    return SessionRecording(watched, plan, recorder, in_graph=in_graph, identity=scope._identity)


@contextmanager
def session(scope: Settings, sess: Any, said: Said) -> Iterator[Any]:
    """The session with its runs recorded, for the length of the block."""
    if is_monitored(sess):
        raise ModelError(
            "a tf.compat.v1.Session",
            type(sess).__name__,
            "Its graph is finalized already: give it hooks=[scope.hook()] when it is made",
        )
    if not is_session(sess):
        raise ModelError(
            "a tf.compat.v1.Session", type(sess).__name__, "Pass the session whose run() you call"
        )
    if closed(sess):
        raise ModelError("an open session", "one that is closed", "Make a new session and pass that")
    recording = scope._recording = begin(scope, sess.graph, said)
    try:
        with patched(sess, recording):
            yield sess
    except (tf.errors.OutOfRangeError, StopIteration):  # the data is used up
        recording.complete()
        raise
    except BaseException as error:
        recording.recorder.abandon(error)
        raise
    recording.complete()
    if recording.saw_nothing:
        warnings.warn(
            "fitscope recorded nothing: inside `with scope.session(...)` no run of this session trained or computed predictions",
            FitscopeWarning,
            stacklevel=3,
        )


def _operations(given: Any) -> tuple[Any, ...]:
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return tuple(getattr(one, "op", one) for one in several)


def _on_accelerator() -> bool:
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))
