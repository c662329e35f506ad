"""Attaches a scope to a session, or to a graph whose session does not exist yet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions.anatomy import anatomy_of
from fitscope.capture.sessions.arrays import Arrays
from fitscope.capture.sessions.graph import executed
from fitscope.capture.sessions.named import Named
from fitscope.capture.sessions.outlets import Outlets
from fitscope.capture.sessions.patch import closed, is_monitored, is_session, patched
from fitscope.capture.sessions.reading import ROLES, Watched
from fitscope.capture.sessions.recording import SessionRecording
from fitscope.capture.sessions.roles import infer, tensors_of
from fitscope.capture.sessions.train_ops import losses, training_roots
from fitscope.errors import FitscopeWarning, ModelError


def begin(recordings: Recordings, graph: Any, named: Named, *, again: bool = False) -> SessionRecording:
    """Begins a recording of the runs in this graph. A watch that does not fit it is an error now.

    `again` makes it another attempt at the previous run, from any step.
    """
    train_ops = _operations(named.get("train_op"))
    roots = training_roots(graph, train_ops)
    if not roots and named.get("predictions") is None:
        raise ModelError(
            "a graph with a training step in it",
            "one without an optimizer's operations",
            "Build the whole graph first (legacy Keras does so in its first `train_on_batch`), or name the training operation with "
            "`train_op=`, or the predictions with `predictions=`",
        )
    # Gradients that the program gathers first and feeds to the step have a loss too.
    found = losses(graph, executed(roots)) or losses(graph, set(graph.get_operations()))
    roles = infer(graph, tensors_of(graph, named.get("loss"), "loss") or found)
    for kind in ROLES:
        if named.get(kind) is not None:
            setattr(roles, kind, tensors_of(graph, named.get(kind), kind))
    roles.named = frozenset(kind for kind in ROLES if named.get(kind) is not None)
    anatomy, watches = anatomy_of(graph, roles, recordings.settings.watches)
    before, after = recordings.newest, recordings.of(graph)
    plan, budget = recordings.plan(anatomy, watches, after)
    given = {
        variable.op.name: gradient
        for gradient, variable in named.get("grads_and_vars") or ()
        if gradient is not None
    }
    watched = Watched(graph, anatomy, roles, Outlets(graph), train_ops, given)
    if before is not None:
        before.recorder.abandon()
    last = after.last_step if after is not None else None
    info = {"model": anatomy.describe(), "plan": plan.describe(), "backend": "tensorflow session"}
    recorder = recordings.recorder(
        info, Arrays(), budget, lambda step: again or (last is not None and last < step)
    )
    settings = recordings.settings
    in_graph = settings.reduce == "step" or (settings.reduce == "auto" and _on_accelerator())
    return SessionRecording(watched, plan, recorder, in_graph=in_graph, identity=settings.identity)


@contextmanager
def session(recordings: Recordings, sess: Any, named: Named) -> Iterator[Any]:
    """The session, with its runs recorded inside the block."""
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
    recording = recordings.newest = begin(recordings, sess.graph, named)
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
