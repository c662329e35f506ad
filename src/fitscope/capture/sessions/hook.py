"""A `SessionRunHook`, for sessions that TensorFlow makes itself: `MonitoredTrainingSession` and its like.

`begin` adds to the graph what is needed, because it is finalized right after. When the session is there, its runs are seen as those of
any other, together with what other hooks fetch in them, and the checkpoints that other hooks save.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions.named import Named
from fitscope.capture.sessions.patch import put_in
from fitscope.capture.sessions.session import begin


class CaptureHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Records the runs of a monitored session."""

    def __init__(self, recordings: Recordings, named: Named) -> None:
        self._recordings = recordings
        self._named = named
        self._recording: Any = None
        self._take_out: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """The graph is complete and not finalized yet."""
        self._recording = self._recordings.newest = begin(
            self._recordings, tf.compat.v1.get_default_graph(), self._named
        )
        self._recording.prepare()

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """A session is there: the first, or, after a worker was lost, another that goes on from a checkpoint."""
        self._take_out()
        if self._recording.next_step is not None:
            self._recording = self._recordings.newest = self._recording.again(
                lambda: begin(self._recordings, session.graph, self._named, again=True)
            )
        self._recording.recorder.finish_with(session)
        take_out = put_in(session, self._recording)
        put_back = _closing(session, self._closed)

        def undo() -> None:
            put_back()
            take_out()

        self._take_out = undo

    def end(self, session: Any) -> None:  # noqa: ARG002
        """The training is over; not called when it was left by an exception."""
        self._take_out()
        self._recording.complete()

    def _closed(self, error: BaseException | None) -> None:
        """The session is being closed, because of an exception if there is one: `end` is not called then."""
        if error is not None and not isinstance(error, RECOVERED):
            self._take_out()
            self._recording.recorder.abandon(error)


#: A monitored session goes on after these, with another session.
RECOVERED = (tf.errors.AbortedError, tf.errors.UnavailableError)


def _closing(session: Any, told: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Tells when the session is closed and what is being handled then. Returns what puts its own method back."""
    own, plain = vars(session), session.close

    def close() -> None:
        try:
            told(sys.exc_info()[1])
        finally:
            plain()

    own["close"] = close
    return lambda: own.pop("close", None) and None
