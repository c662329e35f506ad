"""The network for the rules: its layers in the order in which they run, their connections, and their configuration.

It is made from the configuration and the model description of a run, or from one of them. In a model that is
a graph the order is that of the data; in a custom model it is the order in which the layers were made, and a layer is taken to feed
the next one that was recorded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

#: Nonlinearities, grouped by their possible faults.
RELU_LIKE = frozenset(("relu", "relu6", "ReLU", "crelu", "threshold", "hard_shrink"))
SIGMOID_LIKE = frozenset(("sigmoid", "hard_sigmoid", "Sigmoid"))
TANH_LIKE = frozenset(("tanh", "hard_tanh", "softsign"))
SOFTMAX_LIKE = frozenset(("softmax", "Softmax"))

_ACTIVATION_LAYERS = {
    "ReLU": "relu",
    "Softmax": "softmax",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "PReLU": "prelu",
}
FARTHEST = 20_000  #: the most layers between two recorded ones; a forged model may have any number
MOST_EDGES = 1_000_000  #: the most connections; a forged nested model can have the square of what it lists
MOST_WALKED = 20_000_000  #: the most layers visited between recorded ones, in all questions together


class Network:
    """The layers of a model."""

    def __init__(
        self, model: Mapping[str, Any] | None = None, configuration: Mapping[str, Any] | None = None
    ) -> None:
        described = list((model if isinstance(model, dict) else {}).get("layers") or ())
        configured = list((configuration or {}).get("layers") or ())
        self.layers: dict[str, dict[str, Any]] = {}
        for layer in described:
            self.layers[str(layer.get("path"))] = {
                "class": layer.get("type"),
                "inbound": layer.get("from") or [],
                "trainable": layer.get("trainable", True),
                "container": layer.get("container", False),
                "output_shape": layer.get("output_shape"),
                "parameters": sum(_size(w.get("shape")) for w in (layer.get("weights") or {}).values()),
            }
        for layer in configured:
            known = self.layers.setdefault(str(layer.get("path")), {})
            known.update({key: value for key, value in layer.items() if value is not None})
        names = list(self.layers)
        inbound = {
            name: [str(s) for s in self.layers[name].get("inbound") or () if s in self.layers]
            for name in names
        }
        _lead_through(inbound)
        if sum(map(len, inbound.values())) > MOST_EDGES:
            inbound = {name: [] for name in names}
        # Layers inside another layer, such as an attention layer, are never connected.
        placed = [name for name in names if name.rpartition("/")[0] not in self.layers or inbound[name]]
        #: Whether it lists connections.
        self.graph = sum(bool(inbound[name]) for name in placed) >= max(1, len(placed) // 2)
        self.order = _sorted(names, inbound)
        self.known = frozenset(self.order)  #: all layers
        self._inbound = inbound
        self._consumers: dict[str, list[str]] = {}
        for name in self.order:
            for source in inbound[name]:
                self._consumers.setdefault(source, []).append(name)
        self._depth = {name: i for i, name in enumerate(self.order)}
        self.outputs = self._outputs(configuration or {})
        self.ends = frozenset(self.outputs)
        self._walked = 0
        self._line: tuple[frozenset[str], list[str], list[int]] | None = (
            None  # some layers in order, their depths
        )

    def _outputs(self, configuration: Mapping[str, Any]) -> list[str]:
        said = [
            str(o.get("layer")) for o in configuration.get("outputs") or () if o.get("layer") in self.layers
        ]
        if said:
            return said
        if self.graph:
            return [
                n
                for n in self.order
                if n not in self._consumers and not self.layers[n].get("container") and self._inbound[n]
            ]
        inner = {around for name in self.order for around in _around(name)}
        leaves = [n for n in self.order if n not in inner]
        return leaves[-1:]

    def depth(self, layer: str) -> int:
        """The place of the layer in the order of the forward pass; unknown layers come last."""
        return self._depth.get(layer, len(self.order))

    def sorted(self, layers: Iterable[str]) -> list[str]:
        """Layers in the order of the forward pass."""
        return sorted(layers, key=self.depth)

    def inbound(self, layer: str) -> list[str]:
        """The layers whose outputs this one takes directly, if known."""
        return self._inbound.get(layer, [])

    def producers(self, layer: str, among: Iterable[str]) -> list[str]:
        """The layers among these whose outputs this one takes, directly or through others."""
        return self._next(layer, self._inbound, frozenset(among), backward=True)

    def consumers(self, layer: str, among: Iterable[str]) -> list[str]:
        """The layers among these that take the output of this one, directly or through others."""
        return self._next(layer, self._consumers, frozenset(among), backward=False)

    def _next(
        self, layer: str, edges: Mapping[str, list[str]], among: frozenset[str], *, backward: bool
    ) -> list[str]:
        if not self.graph:  # the neighbour in the order is the best guess
            return self._neighbour(layer, among, backward=backward)
        reached: list[str] = []
        todo, seen = deque(edges.get(layer, ())), {layer}
        while todo and len(seen) <= FARTHEST and self._walked < MOST_WALKED:
            self._walked += 1
            name = todo.popleft()
            if name in seen:
                continue
            seen.add(name)
            if name in among:
                reached.append(name)
            else:
                todo.extend(edges.get(name, ()))
        return reached

    def _neighbour(self, layer: str, among: frozenset[str], *, backward: bool) -> list[str]:
        """The last of these layers before this one, or the first after it."""
        if self._line is None or self._line[0] is not among:
            names = self.sorted(among)
            self._line = among, names, [self.depth(name) for name in names]
        _, names, depths = self._line
        here = self.depth(layer)
        at = bisect_left(depths, here) - 1 if backward else bisect_right(depths, here)
        return [names[at]] if 0 <= at < len(names) else []

    def placed(self, layer: str) -> str:
        """The layer itself, or the one around it that data is known to flow through."""
        while "/" in layer and not (self._inbound.get(layer) or self._consumers.get(layer)):
            layer = layer.rpartition("/")[0]
        return layer

    def downstream(self, layer: str) -> set[str]:
        """All layers that depend on the output of this one."""
        if not self.graph:
            return set(self.order[self.depth(layer) + 1 :])
        reached: set[str] = set()
        todo = list(self._consumers.get(layer, ()))
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo.extend(self._consumers.get(name, ()))
        return reached

    def upstream(self, layers: Iterable[str]) -> set[str]:
        """All layers whose output one of these depends on."""
        if not self.graph:
            return set(self.order[: max(map(self.depth, layers), default=0)])
        reached: set[str] = set()
        todo = [source for name in layers for source in self.inbound(name)]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo.extend(self.inbound(name))
        return reached

    @cached_property
    def answers(self) -> frozenset[str]:
        """The layers that give the answer of the model: outputs, and those after which no layer has weights."""
        having = (name for name in self.order if self.get(name, "parameters", 0))
        return self.ends | (self.upstream(self.ends) - self.upstream(having))

    def kind(self, layer: str) -> str:
        """The class of the layer."""
        return str(self.layers.get(layer, {}).get("class") or "")

    def activation(self, layer: str) -> str:
        """The nonlinearity at the output of the layer; "" if it has none or it is unknown."""
        about = self.layers.get(layer, {})
        found = about.get("activation")
        name = str(found) if found else _ACTIVATION_LAYERS.get(self.kind(layer), "")
        return "" if name == "linear" else name

    def get(self, layer: str, key: str, default: Any = None) -> Any:
        """One setting of a layer."""
        value = self.layers.get(layer, {}).get(key)
        return default if value is None else value


def _lead_through(inbound: dict[str, list[str]]) -> None:
    """Leads the edges of a nested model through its layers: the inputs of the model feed its first layers, and its last layers feed it."""
    directly: dict[str, list[str]] = {}
    for name in inbound:
        directly.setdefault(name.rpartition("/")[0], []).append(name)
    for name in list(inbound):  # a model comes before the models inside it
        sources = inbound[name]
        inside = directly.get(name, [])
        fed = {source for n in inside for source in inbound[n]}
        connected = [n for n in inside if inbound[n] or n in fed]
        if connected:
            for first in (n for n in connected if not inbound[n]):
                inbound[first] = sources
            inbound[name] = [n for n in connected if n not in fed]


def _sorted(names: list[str], inbound: Mapping[str, list[str]]) -> list[str]:
    """The layers, each after all layers that feed it, otherwise in the given order. Cycles keep their order."""
    done: dict[str, None] = {}
    for name in names:
        stack = [(name, False)]
        open_: set[str] = set()
        while stack:
            now, ready = stack.pop()
            if ready:
                done.setdefault(now)
            elif now not in done and now not in open_:
                open_.add(now)
                stack.append((now, True))
                stack.extend((source, False) for source in reversed(inbound[now]))
    return list(done)


def _around(name: str) -> Iterator[str]:
    """The layers around a layer, the nearest first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _size(shape: Any) -> int:
    size = 1
    for n in shape or ():
        size *= int(n or 0)  # in a TF1 graph a dimension may be unknown
    return size
