"""Records callables of a session. Legacy Keras runs its graph with them: `train_on_batch`, `test_on_batch`, `fit` under `scope.session`.

A callable is made once for a list of fetches. For a captured run fitscope calls another one instead, with the same feeds, and with its own
fetches after the user's. A callable cannot fetch a fed tensor, so fitscope takes it from the arguments.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from fitscope.capture.sessions.identity import Ways
from fitscope.capture.sessions.reading import Reading
from fitscope.capture.sessions.recording import Run, SessionRecording, UpcomingRun
from fitscope.capture.sessions.signature import Signature


class SeenCallable:
    """A callable whose calls are recorded."""

    def __init__(
        self,
        makers: tuple[Callable[[Any], Any], Callable[[Any], Any]],
        options: Any,
        recording: SessionRecording,
        run: Run,
        active: Callable[[], bool],
    ) -> None:
        self._makers = makers  # two makers: other scopes of the session see the first, and not the second
        self._run, self._recording, self._active = run, recording, active
        self._options = _copy(options)
        self._connected = {c.to_tensor: c.from_tensor for c in options.tensor_connection}
        self._sig = Signature(
            (*options.fetch, *options.target, *self._connected.values()),
            frozenset((*options.feed, *self._connected)),
        )
        # The callables made so far, by the id of the reading and the kind of call ("own", "both", "look", …).
        self._made: dict[tuple[int, str], tuple[Reading | None, Any]] = {}
        self._plain = self._callable(None, "own")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fed = dict(zip(self._options.feed, args, strict=False))
        upcoming = self._recording.before_callable(self._run, self._sig, fed) if self._active() else None
        if upcoming is None:
            return self._plain(*args, **kwargs)
        try:
            results, shown = self._recording.made(upcoming, self._ways(upcoming, fed, args, kwargs))
        except BaseException as error:
            self._recording.raised(upcoming, error)
            raise
        self._recording.after(upcoming, self._run, results, shown)
        return results

    def _ways(
        self, upcoming: UpcomingRun, fed: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ways:
        reading, users = upcoming.reading, len(self._options.fetch)

        def ours(values: Any) -> dict[str, Any]:
            assert reading is not None
            return _in_shape(reading, {**fed, **dict(zip(self._names(reading), values, strict=True))})

        def both(way: str, **more: Any) -> tuple[Any, Any]:
            results = self._callable(reading, way)(*args, **more)
            return results[:users], ours(results[users:])

        def take() -> tuple[Any, Any]:
            try:
                self._callable(reading, "both")
            except Exception as error:  # TensorFlow refuses the extra fetches; the user's must still work
                self._recording.failed(upcoming, error)
                return self._plain(*args, **kwargs), None
            return both("both", **kwargs)

        return Ways(
            own=lambda: self._plain(*args, **kwargs),
            both=take,
            rehearse_own=lambda: self._callable(None, "rehearse own")(*args),
            rehearse=lambda: both("rehearse"),
            look=lambda: ours(self._callable(reading, "look")(*args)),
        )

    def _callable(self, reading: Reading | None, way: str) -> Any:
        """The callable that also fetches the tensors of a reading, or only these."""
        key = id(reading), way
        if key not in self._made:
            options = _copy(self._options)
            if way == "look":
                del options.fetch[:], options.target[:]
            if reading is not None:
                options.fetch.extend(self._connected.get(name, name) for name in self._names(reading))
            make = self._makers[0 if way in ("own", "both") else 1]
            self._made[key] = reading, make(options)
        return self._made[key][1]

    def _names(self, reading: Reading) -> list[str]:
        """The tensors to fetch for a reading; fed tensors cannot be fetched."""
        return [name for name in _names(reading) if name not in self._options.feed]


def made_again(session: Any) -> None:
    """Makes Keras create its callables again. Keras caches them; it then creates those of this session through the session."""
    kind = getattr(sys.modules.get("tf_keras.src.backend"), "GraphExecutionFunction", None)
    for thing in gc.get_objects() if kind is not None else ():
        if type(thing) is kind and thing._session is session:
            thing._callable_fn = None


def _copy(options: Any) -> Any:
    made = type(options)()
    made.CopyFrom(options)
    return made


def _names(reading: Reading) -> list[str]:
    """The tensors of a reading."""
    asked = reading.asked
    tensors = [
        x for given in asked["tensors"].values() for x in (given if isinstance(given, list) else [given])
    ]
    return list(
        dict.fromkeys(tensor.name for tensor in [*tensors, *([asked["pack"]] if "pack" in asked else [])])
    )


def _in_shape(reading: Reading, values: dict[str, Any]) -> dict[str, Any]:
    """The result in the structure of the request."""
    asked = reading.asked
    tensors = {
        site: [values[x.name] for x in given] if isinstance(given, list) else values[given.name]
        for site, given in asked["tensors"].items()
    }
    return {"tensors": tensors, **({"pack": values[asked["pack"].name]} if "pack" in asked else {})}
