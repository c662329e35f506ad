"""Patches a session: replaces its methods on the instance, and restores them.

`op.run()`, `tensor.eval()` and `Saver.save` call `run`. One call fetches the user's fetches together with fitscope's, so they
come back in their own structure. `make_callable` is routed through `run` as well; `callables` handles those of Keras. fitscope
cannot fetch anything from partial runs (`partial_run`); it counts and reports them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fitscope.capture.sessions.callables import SeenCallable, made_again
from fitscope.capture.sessions.identity import Ways
from fitscope.capture.sessions.recording import Run, SessionRecording, UpcomingRun


@contextmanager
def patched(session: Any, recording: SessionRecording) -> Iterator[None]:
    """Records every run of the session inside the block."""
    take_out = put_in(session, recording)
    try:
        yield
    finally:
        take_out()


def put_in(session: Any, recording: SessionRecording) -> Callable[[], None]:
    """Installs the patch. Returns a function that removes it."""
    own = vars(session)
    seen = _PatchedSession(session, recording)
    mine = {
        name: getattr(seen, name)
        for name in ("run", "partial_run", "make_callable", "_make_callable_from_options")
    }
    before = {name: own[name] for name in mine if name in own}
    own.update(mine)
    made_again(session)

    def take_out() -> None:
        seen.active = False
        for name, method in mine.items():
            if own.get(name) is method:
                own.pop(name)
                own.update({name: before[name]} if name in before else {})
        made_again(session)

    return take_out


class _PatchedSession:
    """The methods that run a session, all of them recorded."""

    def __init__(self, session: Any, recording: SessionRecording) -> None:
        self.active = True
        self._session, self._recording = session, recording
        self._raw_run, self._raw_partial_run = session.run, session.partial_run
        self._raw_make, self._raw_from_options = session.make_callable, session._make_callable_from_options
        # These bypass all watchers of this session, because fitscope's own runs are not steps.
        self._base_run = functools.partial(type(session).run, session)
        self._base_from_options = functools.partial(type(session)._make_callable_from_options, session)
        base_make = functools.partial(type(session).make_callable, session)
        recording.identify(self._base_run, base_make, shared=bool(session.sess_str))

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        recording, raw = self._recording, self._raw_run
        upcoming = recording.before(raw, fetches, feed_dict) if self.active else None
        if upcoming is None:
            return raw(fetches, feed_dict, options, run_metadata)
        try:
            ways = self._ways(upcoming, fetches, (feed_dict, options, run_metadata))
            results, shown = recording.made(upcoming, ways)
        except BaseException as error:
            recording.raised(upcoming, error)
            raise
        recording.after(upcoming, raw, results, shown)
        return results

    def _ways(self, upcoming: UpcomingRun, fetches: Any, rest: tuple[Any, ...]) -> Ways:
        raw, base, quiet = self._raw_run, self._base_run, rest[:2]  # a rehearsal leaves no metadata
        return Ways(
            own=lambda: raw(fetches, *rest),
            both=lambda: _together(self._recording, upcoming, raw, fetches, rest),
            rehearse_own=lambda: base(fetches, *quiet),
            rehearse=lambda: _both(base, upcoming, fetches, quiet),
            look=lambda: base(_asked(upcoming), *quiet),
        )

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        upcoming = self._recording.before_part(self._raw_run, fetches, feed_dict) if self.active else None
        try:
            results = self._raw_partial_run(handle, fetches, feed_dict)
        except BaseException as error:
            if upcoming is not None:
                self._recording.raised(upcoming, error)
            raise
        if upcoming is not None:
            self._recording.after(upcoming, self._raw_run, results, None)
        return results

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        plain = self._raw_make(fetches, feed_list, accept_options)  # this raises TensorFlow's own errors
        if feed_list is not None:
            return plain  # it calls `run`
        return lambda *args, **kwargs: (
            self._session.run(fetches, None, *args, **kwargs) if self.active else plain(*args, **kwargs)
        )

    def _make_callable_from_options(self, options: Any) -> Any:
        makers = self._raw_from_options, self._base_from_options
        return SeenCallable(makers, options, self._recording, self._raw_run, lambda: self.active)


def _together(
    recording: SessionRecording, upcoming: UpcomingRun, raw: Run, fetches: Any, rest: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Fetches the user's fetches and fitscope's in one run, and returns both."""
    try:
        return _both(raw, upcoming, fetches, rest)
    except (TypeError, ValueError, RuntimeError) as error:
        failure = error  # TensorFlow refuses a call with these before it runs anything
    # Outside the handler, so that an error of the user's own call does not show fitscope's as its context.
    results = raw(fetches, *rest)
    recording.failed(upcoming, failure)
    return results, None


def _both(run: Run, upcoming: UpcomingRun, fetches: Any, rest: tuple[Any, ...]) -> tuple[Any, Any]:
    both = run({"user": fetches, "fitscope": _asked(upcoming)}, *rest)
    return both["user"], both["fitscope"]


def _asked(upcoming: UpcomingRun) -> dict[str, Any]:
    assert upcoming.reading is not None
    return upcoming.reading.asked


def closed(session: Any) -> bool:
    return bool(getattr(session, "_closed", False))


def is_session(thing: Any) -> bool:
    return isinstance(thing, tf.compat.v1.Session | tf.compat.v1.InteractiveSession)


def is_monitored(thing: Any) -> bool:
    monitored = tf.compat.v1.train.MonitoredSession, tf.compat.v1.train.SingularMonitoredSession
    return isinstance(thing, monitored)
