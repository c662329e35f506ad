"""`sess.run`, seen. The session's own method is replaced on the instance, and put back.

`op.run()`, `tensor.eval()` and `Saver.save` go through it as well. The user's fetches are nested beside ours in one call, so that they
come back in the very structure they were given in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fitscope.sessions.recording import Run, RunRequest, SessionRecording


@contextmanager
def patched(session: Any, recording: SessionRecording) -> Iterator[None]:
    """Every run of the session is shown to the recording, for the length of the block."""
    take_out = put_in(session, recording)
    try:
        yield
    finally:
        take_out()


def put_in(session: Any, recording: SessionRecording) -> Any:
    """Puts the patch in. Returns what takes it out again."""
    own = vars(session)
    missing = object()
    before = own.get("run", missing)
    raw = session.run
    active = True

    def run(fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        request = recording.before(raw, fetches, feed_dict) if active else None
        if request is None:
            return raw(fetches, feed_dict, options, run_metadata)
        try:
            results, shown = _together(recording, request, raw, fetches, (feed_dict, options, run_metadata))
        except BaseException as error:
            recording.raised(request, error)
            raise
        recording.after(request, raw, results, shown)
        return results

    own["run"] = run

    def take_out() -> None:
        nonlocal active
        active = False
        if own.get("run") is run:
            if before is missing:
                own.pop("run", None)
            else:
                own["run"] = before

    return take_out


def _together(
    recording: SessionRecording, request: RunRequest, raw: Run, fetches: Any, rest: tuple[Any, ...]
) -> tuple[Any, Any]:
    """The user's fetches and ours in one run: what the user gets, and what we get."""
    if request.reading is None:
        return raw(fetches, *rest), None
    try:
        both = raw({"user": fetches, "fitscope": request.reading.asked}, *rest)
        return both["user"], both["fitscope"]
    except (TypeError, ValueError, RuntimeError) as error:
        failure = error  # TensorFlow refuses a call with these before it runs anything
    # Outside of the handler: should the user's own call be refused as well, its error bears no trace of ours.
    results = raw(fetches, *rest)
    recording.failed(request, failure)
    return results, None


def closed(session: Any) -> bool:
    return bool(getattr(session, "_closed", False))


def is_session(thing: Any) -> bool:
    return isinstance(thing, tf.compat.v1.Session | tf.compat.v1.InteractiveSession)


def is_monitored(thing: Any) -> bool:
    monitored = tf.compat.v1.train.MonitoredSession, tf.compat.v1.train.SingularMonitoredSession
    return isinstance(thing, monitored)
