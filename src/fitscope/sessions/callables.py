"""Callables of a session, which is how legacy Keras runs its graph: `train_on_batch`, `test_on_batch`, `fit` under `scope.session`.

A callable is made once for a list of fetches. On a run that is captured another one is called in its place, with the same feeds and our
fetches after the user's. What is fed cannot be fetched from a callable: it is taken from the arguments.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from fitscope.sessions.reading import Reading
from fitscope.sessions.recording import Run, RunRequest, SessionRecording
from fitscope.sessions.signature import Signature


class SeenCallable:
    """A callable whose calls are seen."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        options: Any,
        recording: SessionRecording,
        run: Run,
        active: Callable[[], bool],
    ) -> None:
        self._plain = make(options)
        self._make, self._run, self._recording, self._active = make, run, recording, active
        self._options = _copy(options)
        self._connected = {c.to_tensor: c.from_tensor for c in options.tensor_connection}
        self._sig = Signature(
            (*options.fetch, *options.target, *self._connected.values()),
            frozenset((*options.feed, *self._connected)),
        )
        self._made: dict[int, tuple[Reading, list[str], Any]] = {}  # by reading

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fed = dict(zip(self._options.feed, args, strict=False))
        request = self._recording.before_callable(self._run, self._sig, fed) if self._active() else None
        if request is None:
            return self._plain(*args, **kwargs)
        names, both = self._with(request)
        try:
            results = both(*args, **kwargs)
        except BaseException as error:
            self._recording.raised(request, error)
            raise
        users = results[: len(self._options.fetch)]
        shown = None
        if request.reading is not None:
            own = {**fed, **dict(zip(names, results[len(users) :], strict=True))}
            shown = _in_shape(request.reading, own)
        self._recording.after(request, self._run, users, shown)
        return users

    def _with(self, request: RunRequest) -> tuple[list[str], Any]:
        """The names of what is fetched for a request, and the callable that fetches it too."""
        reading = request.reading
        if reading is None:
            return [], self._plain
        if id(reading) not in self._made:
            names = [name for name in _names(reading) if name not in self._options.feed]
            options = _copy(self._options)
            options.fetch.extend(self._connected.get(name, name) for name in names)
            try:
                made = self._make(options)
            except Exception as error:  # TensorFlow refuses it: ours must not harm the user's
                self._recording.failed(request, error)
                return [], self._plain
            self._made[id(reading)] = reading, names, made
        return self._made[id(reading)][1:]


def made_again(session: Any) -> None:
    """Keras keeps the callables that it has made. It makes those of this session anew when it needs them, through the session."""
    kind = getattr(sys.modules.get("tf_keras.src.backend"), "GraphExecutionFunction", None)
    for thing in gc.get_objects() if kind is not None else ():
        if type(thing) is kind and thing._session is session:
            thing._callable_fn = None


def _copy(options: Any) -> Any:
    made = type(options)()
    made.CopyFrom(options)
    return made


def _names(reading: Reading) -> list[str]:
    """The tensors that a reading asks for."""
    asked = reading.asked
    tensors = [
        x for given in asked["tensors"].values() for x in (given if isinstance(given, list) else [given])
    ]
    return list(
        dict.fromkeys(tensor.name for tensor in [*tensors, *([asked["pack"]] if "pack" in asked else [])])
    )


def _in_shape(reading: Reading, values: dict[str, Any]) -> dict[str, Any]:
    """What came back, in the structure in which it was asked for."""
    asked = reading.asked
    tensors = {
        site: [values[x.name] for x in given] if isinstance(given, list) else values[given.name]
        for site, given in asked["tensors"].items()
    }
    return {"tensors": tensors, **({"pack": values[asked["pack"].name]} if "pack" in asked else {})}
