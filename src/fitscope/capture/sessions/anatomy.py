"""Finds the parts of a TF1 graph: weights, and layers, although a graph has none.

A layer is a scope of names: the innermost scope that holds a trained variable, or else the first part of a name. Its outputs are
the tensors that operations outside it use. `conv1/Conv2D`, `conv1/BiasAdd` and `conv1/Relu` so become the layer `conv1` with the
output
`conv1/Relu:0`. A network that is built again on the same variables has separate layers (`net_1/conv1`, `tower/net/conv1`). A scope
whose weights are kept elsewhere is several layers: the input of the next product is the output of one. Tensors that the user
named are there too, each under the name of its operation.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fitscope.capture.sessions.graph import SHAPE_ONLY, SOURCES, Op, Tensor, ancestors, trainable
from fitscope.capture.sessions.roles import Roles, tensor_of
from fitscope.errors import WatchError, one_of
from fitscope.plan.anatomy import Anatomy, LayerPart, WeightPart
from fitscope.watch import Watch


@dataclass(frozen=True, slots=True)
class GraphLayer:
    """A layer of a graph: a name, and the tensor that is its output."""

    name: str
    output: Tensor
    trainable: bool


class GraphAnatomy(Anatomy):
    """The anatomy of a graph."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        """The description of the graph for the run."""
        sizes = [w.variable.shape.num_elements() or 0 for w in self.weights]
        return {
            "name": "graph",
            "class": "Graph",
            "parameters": int(sum(sizes)),
            "layers": [self._describe(part) for part in self.layers],
        }

    def _describe(self, part: LayerPart) -> dict[str, Any]:
        own = [weight for weight in self.weights if weight.owner.path == part.path]
        output = part.layer.output
        rank = output.shape.rank
        return {
            "path": part.path,
            "name": part.path,
            "type": output.op.type,
            "container": False,
            "trainable": part.layer.trainable,
            "output_shape": None if rank is None else output.shape.as_list(),
            "tensor": output.name,
            "weights": {
                weight.path: {
                    "shape": weight.variable.shape.as_list(),
                    "dtype": weight.variable.dtype.base_dtype.name,
                    "trainable": bool(weight.variable.trainable),
                }
                for weight in own
            },
        }


def anatomy_of(graph: Any, roles: Roles, watches: Sequence[Watch]) -> tuple[GraphAnatomy, tuple[Watch, ...]]:
    """The parts of a graph, and the watches with tensors and tensor names replaced by the paths of parts."""
    parts = [
        LayerPart(path, GraphLayer(path, tensor, trained), container=False)
        for path, tensor, trained in _layers(graph, roles)
    ]
    named: dict[str, Tensor] = {}
    read = tuple(
        replace(watch, layers=tuple(_selector(graph, watch, one, parts, named) for one in watch.layers))
        if (watch.of or watch.kind) in ("activations", "gradients")
        else watch
        for watch in watches
    )
    known = {part.path for part in parts}
    parts += [
        LayerPart(path, GraphLayer(path, tensor, True), container=True)  # only if a watch names it
        for path, tensor in named.items()
        if path not in known
    ]
    return GraphAnatomy(graph, tuple(parts), tuple(_weights(graph, parts))), read


def site_path(tensor: Tensor) -> str:
    """The name of a tensor as part of a site's name."""
    name, _, index = tensor.name.partition(":")
    return name if index == "0" else f"{name}:{index}"


def _selector(graph: Any, watch: Watch, given: Any, parts: list[LayerPart], named: dict[str, Tensor]) -> Any:
    """A glob on the paths of parts, which `resolve` understands. Names of tensors and operations become parts."""
    if not isinstance(given, str):
        if isinstance(given, type):
            raise WatchError(
                f"fs.{watch.kind}(...) in a session to name a layer or a tensor",
                given.__name__,
                "A graph has no classes of layers: give a name, a glob, or the tensor",
            )
        tensor = tensor_of(graph, given, f"fs.{watch.kind}")
    elif ":" not in given and any(fnmatch.fnmatchcase(part.path, given) for part in parts):
        return given
    elif any(c in given for c in "*?["):
        return _glob(graph, watch, given, parts, named)
    else:
        try:
            tensor = tensor_of(graph, given, f"fs.{watch.kind}")
        except WatchError:
            _nothing(watch, given, parts)
    _fetchable(graph, watch, tensor)
    named[site_path(tensor)] = tensor
    return site_path(tensor)


def _glob(graph: Any, watch: Watch, given: str, parts: list[LayerPart], named: dict[str, Tensor]) -> str:
    """A glob on tensor names, if no layer matches it. Backward passes and other internal operations do not count."""
    pattern = given if ":" in given else f"{given}:0"
    found = False
    for op in graph.get_operations():
        for tensor in op.outputs:
            if (
                fnmatch.fnmatchcase(tensor.name, pattern)
                and tensor.dtype.base_dtype.is_floating
                and graph.is_fetchable(tensor)
                and not {"gradients", "save", "fitscope"}
                & {part.partition("_")[0] for part in op.name.split("/")}
            ):
                named[site_path(tensor)] = tensor
                found = True
    if not found:
        _nothing(watch, given, parts)
    return pattern.removesuffix(":0")


def _nothing(watch: Watch, given: str, parts: list[LayerPart]) -> None:
    raise WatchError(
        f"fs.{watch.kind}(...) to name a layer or a tensor of the graph",
        repr(given),
        one_of([part.path for part in parts], given, limit=40),
    ) from None


def _fetchable(graph: Any, watch: Watch, tensor: Tensor) -> None:
    if not graph.is_fetchable(tensor):
        raise WatchError(
            f"fs.{watch.kind}(...) to name a tensor that can be fetched",
            f"{tensor.name!r}, which is computed inside a loop or a branch",
            "Watch a tensor outside it, such as the result of the loop",
        )


def _layers(graph: Any, roles: Roles) -> Iterator[tuple[str, Tensor, bool]]:
    """Layers by path, with their output, in the order of the computation."""
    ends = roles.predictions or roles.loss
    order = ancestors(ends)
    scopes = Scopes(trainable(graph))
    touched, weighed = _touched(order, set(trainable(graph)))
    users: dict[str, list[Op]] = {}
    for op in order:
        for tensor in op.inputs:
            if op.type not in SHAPE_ONLY:
                users.setdefault(tensor.name, []).append(op)
    outputs: dict[str, list[Tensor]] = {}
    last = {tensor.name for tensor in ends}
    weights = weighed - touched
    for op in order:
        if op.type in SOURCES or (op.type == "Identity" and op.inputs[0].op.type in SOURCES):
            continue
        mine = scopes.of(op.name)
        for tensor in op.outputs:
            leaves = any(
                scopes.of(user.name) != mine or (mine not in scopes and _is_product(user, weights))
                for user in users.get(tensor.name, ())
            )
            if (
                tensor.name in touched
                and (leaves or tensor.name in last)
                and tensor.dtype.base_dtype.is_floating
                and tensor.shape.rank != 0
                and (tensor.shape.rank is not None or tensor.name in weighed)  # otherwise it may be a setting
                and graph.is_fetchable(tensor)
            ):
                outputs.setdefault(mine, []).append(tensor)
    for scope, tensors in outputs.items():
        around = any(
            other.startswith(f"{scope}/") for other in outputs
        )  # it contains several layers, so it names none of them
        for tensor in tensors:
            short = len(tensors) == 1 and not around
            yield scope if short else site_path(tensor), tensor, tensor.name in weighed


def _is_product(op: Op, weights: Collection[str]) -> bool:
    """Whether an operation multiplies by a matrix of weights."""
    return any(x.name in weights and (x.shape.rank or 0) > 1 for x in op.inputs)


def _touched(order: list[Op], weights: Collection[str]) -> tuple[set[str], set[str]]:
    """The tensors that depend on data, and those that depend on trained weights."""
    data: set[str] = set()
    weighed: set[str] = set()
    for op in order:
        if op.type in SHAPE_ONLY:
            continue
        from_data = op.type in SOURCES or any(t.name in data for t in op.inputs)
        from_weights = op.name in weights or any(t.name in weighed for t in op.inputs)
        for out in op.outputs:
            data |= {out.name} if from_data else set()
            weighed |= {out.name} if from_weights else set()
    return data, weighed


class Scopes:
    """The scopes that hold trained variables, and those around them."""

    def __init__(self, variables: Collection[str]) -> None:
        self.own = {name.rpartition("/")[0] for name in variables} - {""}
        self._all = {
            _plain("/".join(parts[:n]))
            for s in self.own
            if (parts := s.split("/"))
            for n in range(1, len(parts) + 1)
        }

    def __contains__(self, scope: str) -> bool:
        """Whether it is such a scope, or one inside another scope: `tf.get_variable` ignores name scopes."""
        parts = _plain(scope).split("/")
        return any("/".join(parts[n:]) in self._all for n in range(len(parts)))

    def of(self, name: str) -> str:
        """The layer of an operation. TensorFlow names a scope that is entered again `a_1`, and it counts as another one."""
        parts = name.split("/")
        for n in range(len(parts) - 1, 0, -1):
            scope = "/".join(parts[:n])
            if scope in self:
                return scope
        return parts[0]


def _plain(scope: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", scope)


def _weights(graph: Any, parts: list[LayerPart]) -> Iterator[WeightPart]:
    """Trained variables, and those kept next to them (moving averages), but not those of the optimizer."""
    trained = trainable(graph)
    scopes = Scopes(trained).own
    layers = {part.path: part for part in parts}
    for variable in graph.get_collection("variables"):
        name = variable.op.name
        scope = name.rpartition("/")[0]
        if name in trained or scope in scopes:
            owner = layers.get(scope) or LayerPart(
                scope or name, GraphLayer(scope or name, None, True), container=False
            )
            yield WeightPart(name, variable, owner)
