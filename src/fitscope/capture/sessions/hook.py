"""A `SessionRunHook` for sessions that TensorFlow creates itself, such as `MonitoredTrainingSession`.

`begin` adds the necessary operations to the graph, because TensorFlow finalizes it right after. fitscope then records the runs of
the session like those of any other, including the fetches and the checkpoints of other hooks.
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
        """Called when the graph is complete and not finalized yet."""
        self._recording = self._recordings.newest = begin(
            self._recordings, tf.compat.v1.get_default_graph(), self._named
        )
        self._recording.prepare()

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """Called with a new session: the first, or after a lost worker another one that continues from a checkpoint."""
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
        """Called when the training is over, unless an exception ended it."""
        self._take_out()
        self._recording.complete()

    def _closed(self, error: BaseException | None) -> None:
        """Called when the session is closed, perhaps by an exception; `end` is not called then."""
        if error is not None and not isinstance(error, RECOVERED):
            self._take_out()
            self._recording.recorder.abandon(error)


#: A monitored session recovers from these errors with a new session.
RECOVERED = (tf.errors.AbortedError, tf.errors.UnavailableError)


def _closing(session: Any, told: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Patches `session.close` to call `told` with the exception being handled, if any.

    Returns a function that restores the session's own `close`.
    """
    own, plain = vars(session), session.close

    def close() -> None:
        try:
            told(sys.exc_info()[1])
        finally:
            plain()

    own["close"] = close
    return lambda: own.pop("close", None) and None
