"""Legacy Keras with eager execution off: its train function is a callable of a session, and fitscope can add fetches to it.

Keras makes that function when it needs it, and again when sample weights appear. fitscope patches each one: the same object,
whose calls are recorded. On a captured step it has extra fetches; on all others it is unchanged. Random operations keep
their state in the session, so that both draw from one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tf_keras.src import backend

from fitscope.capture.patch import leaves
from fitscope.capture.recordings import Recordings
from fitscope.capture.sessions.anatomy import GraphAnatomy, GraphLayer, anatomy_of
from fitscope.capture.sessions.arrays import Arrays
from fitscope.capture.sessions.graph import Op, ancestors, executed
from fitscope.capture.sessions.outlets import Outlets
from fitscope.capture.sessions.progress import Progress
from fitscope.capture.sessions.reading import Reading, RunCall, Watched
from fitscope.capture.sessions.recording import SessionRecording
from fitscope.capture.sessions.roles import Roles
from fitscope.capture.sessions.signature import Signature
from fitscope.errors import WatchError, one_of
from fitscope.plan.anatomy import Anatomy, LayerPart, WeightPart
from fitscope.plan.configuration import configuration
from fitscope.watch import Watch

#: The attributes in which a function of Keras keeps its callable and its fetches.
_KEPT = (
    "fetches", "fetch_callbacks", "_callable_fn", "_feed_arrays", "_feed_symbols", "_symbol_vals", "_fetches", "_session",
)  # fmt: skip


class _PatchedFunction(backend.GraphExecutionFunction):  # type: ignore[misc]
    """A function of Keras whose calls are recorded."""

    def __call__(self, inputs: Any) -> Any:
        way: GraphWay = vars(self)["_fitscope"]
        return way.call(self, super().__call__, inputs)


class GraphWay:
    """A model that trains in a graph."""

    def __init__(self, recordings: Recordings, model: Any) -> None:
        self.progress: SessionRecording | None = None
        self.first_epoch = 0
        self.begun: Callable[[Progress], None] = lambda progress: None  # noqa: ARG005
        self._recordings = recordings
        self._model = model
        self._functions: list[Any] = []
        self._calls: dict[tuple[int, str], RunCall] = {}
        self._fetching: dict[
            tuple[int, object], dict[str, Any]
        ] = {}  # the values of `_KEPT` during a captured call
        own = vars(model)
        self._makers = {name: own.get(name) for name in ("_make_train_function", "_make_test_function")}
        for name in self._makers:
            own[name] = self._maker(name, getattr(model, name))

    def train_begin(self) -> None:
        # With a generator Keras has not made it yet; otherwise this does nothing.
        self._model._make_train_function()
        self._see("train_function")
        self.progress = self._recordings.newest = self._begin()
        self.progress.leaving = self.leave
        self.begun(self.progress)

    def test_begin(self) -> None:
        self._model._make_test_function()
        self._see("test_function")

    def leave(self) -> None:
        own = vars(self._model)
        for name, before in self._makers.items():
            if before is None:
                own.pop(name, None)
            else:
                own[name] = before
        for function in self._functions:
            if type(function) is _PatchedFunction:
                function.__class__ = backend.GraphExecutionFunction
                del function._fitscope, function._fitscope_kind
        self._functions = []

    # ---- the functions of Keras ------------------------------------------------------------------------

    def _maker(self, name: str, make: Any) -> Any:
        def made() -> None:
            make()
            if self.progress is not None:
                self._see(name.removeprefix("_make_"))

        return made

    def _see(self, name: str) -> None:
        function = getattr(self._model, name, None)
        if type(function) is backend.GraphExecutionFunction:
            function.__class__ = _PatchedFunction
            vars(function).update(
                _fitscope=self, _fitscope_kind="train" if name == "train_function" else "validation"
            )
            self._functions.append(function)

    def call(self, function: Any, plain: Any, inputs: Any) -> Any:
        """Handles a call of Keras, for a step or a batch of a validation."""
        progress = self.progress
        upcoming = self._before(function) if progress is not None else None
        if progress is None or upcoming is None:
            return plain(inputs)
        own: dict[str, Any] = {}
        try:
            if upcoming.reading is None:
                result = plain(inputs)
            else:
                with _fetched(function, upcoming.reading, self._fetching, own):
                    result = plain(inputs)
        except BaseException as error:
            progress.raised(upcoming, error)
            raise
        shown = _regrouped(upcoming.reading, own) if upcoming.reading is not None else None
        progress.after(upcoming, _run, None, shown)
        return result

    def _before(self, function: Any) -> Any:
        progress = self.progress
        assert progress is not None
        try:
            with progress.lock:
                kind = vars(function)["_fitscope_kind"]
                key = (id(function), kind)
                if key not in self._calls:
                    # Keras made the function again because sample weights appeared: it has another loss.
                    roles = self._roles(function.outputs[0])
                    self._calls[key] = _call(replace(progress.watched, roles=roles), function, kind)
                return progress.begin(self._calls[key], _run)
        except Exception as error:
            progress.recorder.failed(error)
            return None

    def _roles(self, loss: Any) -> Roles:
        model = self._model
        with backend.get_graph().as_default():
            targets, inputs = _own(model._targets), _own(model.inputs)
        named = frozenset(("loss", "predictions", "targets", "inputs"))
        return Roles([loss], list(model.outputs), targets, inputs, named)

    # ---- the plan ------------------------------------------------------------------------------------------

    def _begin(self) -> SessionRecording:
        recordings, model = self._recordings, self._model
        graph = backend.get_graph()
        roles = self._roles(model.total_loss)
        whole = Anatomy.of(model)
        parts = list(_parts(whole, roles))
        if parts:
            watches = tuple(_by_path(watch, whole) for watch in recordings.settings.watches)
            weights = tuple(WeightPart(w.path, w.variable, w.owner) for w in whole.weights)
            anatomy = GraphAnatomy(graph, tuple(parts), weights)
        else:  # a subclassed model has no layer outputs: ask the graph
            anatomy, watches = anatomy_of(graph, roles, recordings.settings.watches)
        before, after = recordings.newest, recordings.of(graph)
        plan, budget = recordings.plan(anatomy, watches, after)
        if before is not None:
            before.recorder.abandon()
        last = after.last_step if after is not None else None
        described = {**anatomy.describe(), "name": model.name, "class": type(model).__name__}
        info = {
            "model": described,
            "configuration": configuration(model),
            "plan": plan.describe(),
            "backend": "tf_keras (graph)",
        }
        recorder = recordings.recorder(info, Arrays(), budget, lambda step: last is not None and last < step)
        recording = SessionRecording(
            Watched(graph, anatomy, roles, Outlets(graph)), plan, recorder, in_graph=False
        )
        recording.next_step = _iterations(model)
        return recording


def _run(fetches: Any) -> Any:
    """Reads variables outside the step."""
    return backend.get_session().run(fetches)


def _iterations(model: Any) -> int:
    try:
        return int(backend.get_value(model.optimizer.iterations))
    except Exception:  # optimizers of tf.compat.v1.train do not have it
        return 0


def _own(tensors: Any) -> list[Any]:
    """A copy of a fed tensor, because a callable cannot fetch a fed tensor itself."""
    return [tf.identity(tensor, name="fitscope/given") for tensor in tf.nest.flatten(tensors)]


def _call(watched: Watched, function: Any, kind: str) -> RunCall:
    fed = frozenset(tensor.name for tensor in tf.nest.flatten(function.inputs))
    ops = executed([function.updates_op, *(out.op for out in function.outputs)], fed)
    ops |= {tensor.op for kind_ in ("targets", "inputs") for tensor in watched.roles.of(kind_)}
    return RunCall(watched, Signature((), fed), ops, kind)


def _parts(whole: Anatomy, roles: Roles) -> Iterator[LayerPart]:
    """The outputs of layers that a step computes. A shared layer has several. A layer of a nested model also has a separate one,
    which no step computes.
    """
    known: set[Op] = set(ancestors([*roles.loss, *roles.predictions]))
    for part in whole.layers:
        if part.container or type(part.layer).__name__ == "InputLayer":
            continue
        found = 0
        for i in range(len(part.layer._inbound_nodes)):
            for suffix, tensor in leaves(part.layer.get_output_at(i)):
                if tensor.op in known:
                    found += not suffix or suffix == "[0]"
                    path = part.path if found == 1 else f"{part.path}#{found}"
                    layer = GraphLayer(path + suffix, tensor, bool(part.layer.trainable_weights))
                    yield LayerPart(path + suffix, layer, container=False)


def _by_path(watch: Watch, whole: Anatomy) -> Watch:
    """The watch with layers and layer classes replaced by paths."""
    found: list[Any] = []
    for selector in watch.layers:
        if isinstance(selector, str):
            found.append(selector)
            continue
        mine = [
            part.path
            for part in whole.layers
            if (isinstance(part.layer, selector) if isinstance(selector, type) else part.layer is selector)
        ]
        if not mine:
            raise WatchError(
                f"fs.{watch.kind}(...) to name a layer of the model",
                repr(selector),
                one_of([part.path for part in whole.layers], ""),
            )
        found += mine
    return replace(watch, layers=tuple(found))


class _fetched:  # noqa: N801 - a block
    """Gives the function additional fetches inside the block. Each callable is created once."""

    def __init__(
        self, function: Any, reading: Reading, known: dict[Any, dict[str, Any]], own: dict[str, Any]
    ) -> None:
        self._own, self._function = vars(function), function
        self._kept = known.setdefault((id(function), id(reading)), {})
        self._reading, self._values = reading, own

    def __enter__(self) -> None:
        self._before = {name: self._own[name] for name in _KEPT}
        if self._kept:
            self._own.update(self._kept)
        else:
            named = list(_flat(self._reading.fetches))
            self._own["fetches"] = [*self._before["fetches"], *(tensor for _, tensor in named)]
            self._own["_callable_fn"] = None
        names: dict[str, list[str]] = {}
        tensors: dict[str, Any] = {}
        for name, tensor in _flat(self._reading.fetches):
            names.setdefault(tensor.name, []).append(name)
            tensors[tensor.name] = tensor
        self._own["fetch_callbacks"] = {
            **self._before["fetch_callbacks"],
            **{tensors[name]: self._sink(sites) for name, sites in names.items()},
        }

    def _sink(self, sites: list[str]) -> Any:
        def take(value: Any) -> None:
            for site in sites:
                self._values[site] = value

        return take

    def __exit__(self, *_: Any) -> None:
        self._kept.update({name: self._own[name] for name in _KEPT})
        self._own.update(self._before)


def _flat(fetches: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, fetch in fetches.items():
        if isinstance(fetch, list):
            for i, tensor in enumerate(fetch):
                yield f"{name}|{i}", tensor
        else:
            yield name, fetch


def _regrouped(reading: Reading, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tensors": {
            name: [own[f"{name}|{i}"] for i in range(len(fetch))] if isinstance(fetch, list) else own[name]
            for name, fetch in reading.fetches.items()
        }
    }
