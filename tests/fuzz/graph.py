"""Draws the layers of a model and how they are connected, as plain data.

A graph has inputs, nodes and outputs. A node is a layer, a layer used again (`same`), a graph inside the graph, or an operation
(`op`); it names what it takes by reference, so that a node can be deleted by giving its users what it took itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fuzz.chance import Args, Chance
from fuzz.kinds import UNKNOWN, Kind, Shape, common
from fuzz.layers import LAYERS, drawable

Graph = dict[str, Any]
Node = dict[str, Any]

MOST = 256  #: numbers in a sample's tensor
OPERATIONS = [
    "keras.ops.tanh({0})",
    "{0} * 0.5",
    "keras.ops.relu({0}) + 1.0",
    "keras.ops.stop_gradient({0})",
    "{0} + {0}",
]


def augments(name: str) -> bool:
    """Whether a layer is expensive to compile: such are drawn when it is their turn, never by the way."""
    return name.startswith(("Random", "Rand")) or name in (
        "AugMix", "AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "CutMix", "Equalization", "MixUp", "Pipeline",
        "Solarization", "ConvLSTM2D", "ConvLSTM3D",
    )  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Something a node may take."""

    ref: str
    shape: Shape
    takes: str  #: its type
    of: frozenset[str]  #: the inputs and nodes it is made of


class Drawing:
    """One graph being drawn. Names count on through graphs inside it."""

    def __init__(self, chance: Chance, count: list[int], *, linear: bool) -> None:
        self.chance = chance
        self.count = count
        self.linear = linear  #: each node takes the one before it
        self.inputs: list[dict[str, Any]] = []
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []
        self._layers: dict[str, tuple[Shape, Shape]] = {}  # that can be used again: from which shape to which

    def input(self, shape: Shape, takes: str) -> Tensor:
        ref = f"x{self._next()}"
        self.inputs.append({"id": ref, "shape": list(shape), "takes": takes})
        self.tensors.append(Tensor(ref, shape, takes, frozenset([ref])))
        return self.tensors[-1]

    def layer(self, name: str, given: Tensor, args: Args | None = None, out: Shape = UNKNOWN) -> Tensor:
        """A layer of this kind on this tensor; with drawn arguments unless they are given."""
        kind, chance = LAYERS[name], self.chance
        outputs: Any = out
        if args is None:
            args, outputs = kind.arguments(chance, given.shape)
            args = args if kind.plain else args | common(chance)
        if self.linear and isinstance(outputs, list):  # a Sequential model takes one output of each layer
            args.pop("return_state")
            outputs = outputs[0]
        taken = [given]
        while len(taken) < kind.inputs:
            taken.append(
                chance.member([t for t in self.tensors if t.shape == given.shape and t.takes == given.takes])
            )
        node: Node = {
            "layer": kind.name or name,
            "args": args,
            "call": kind.call,
            "kwargs": kind.calling(chance),
        }
        if kind.prelude:
            node["prelude"] = kind.prelude
        several = outputs if isinstance(outputs, list) else None
        found = self._add(node, taken, outputs[0] if several else outputs, kind.gives, several)
        if not several and kind.inputs == 1 and "prelude" not in node and outputs != UNKNOWN:
            self._layers[node["id"]] = given.shape, outputs
        return found

    def _add(
        self,
        node: Node,
        taken: list[Tensor],
        shape: Shape,
        gives: str = "float",
        several: list[Shape] | None = None,
    ) -> Tensor:
        ref = node["id"] = f"n{self._next()}"
        node["in"] = [tensor.ref for tensor in taken]
        self.nodes.append(node)
        of = frozenset([ref]).union(*(tensor.of for tensor in taken))
        if several is not None:
            node["outs"] = len(several)
            self.tensors += [
                Tensor(f"{ref}_{i}", shape, gives, of) for i, shape in reversed(list(enumerate(several)))
            ]
        else:
            self.tensors.append(Tensor(ref, shape, gives, of))
        return self.tensors[-1]

    def _next(self) -> int:
        self.count[0] += 1
        return self.count[0] - 1

    # ---- one step of the walk --------------------------------------------------------------------------------

    def step(self, given: Tensor, depth: int) -> Tensor:
        """Something drawn on this tensor."""
        chance = self.chance
        if given.shape == UNKNOWN or math.prod(given.shape) > MOST:
            return self.layer("Dense", self.layer("Flatten", given, {}), {"units": "4"}, (4,))
        if given.takes == "float" and not self.linear:
            again = [n for n, (shape, _) in self._layers.items() if shape == given.shape]
            if again and chance.maybe(0.12):
                which = chance.member(again)
                return self._add({"same": which}, [given], self._layers[which][1])
            if chance.maybe(0.06):
                return self._add({"op": chance.member(OPERATIONS)}, [given], given.shape)
        if given.takes == "float" and depth == 0 and chance.maybe(0.1):
            inner = draw_inside(chance, self.count, given.shape)
            return self._add({"graph": inner[0]}, [given], inner[1])
        found = self.layer(chance.member(self._possible(given)), given)
        if found.shape == given.shape and not self.linear and found.takes == "float" and chance.maybe(0.2):
            return self._add(
                {"layer": chance.one_of("Add", "Multiply"), "args": {}, "call": "list", "kwargs": {}},
                [given, found],
                found.shape,
            )
        return found

    def _possible(self, given: Tensor) -> list[str]:
        def suits(kind: Kind) -> bool:
            return kind.fits(given.shape, given.takes) and not (self.linear and kind.inputs > 1)

        return [name for name in drawable(self.chance.backend) if suits(LAYERS[name]) and not augments(name)]

    # ---- the end ---------------------------------------------------------------------------------------------

    def flat(self, given: Tensor) -> Tensor:
        """A vector of floats for each sample, whatever this is."""
        while given.takes == "string":
            given = self.step(given, depth=1)
        if given.takes == "int":
            given = self.layer("Embedding", given)
        rank = len(given.shape)
        if given.shape != UNKNOWN and rank == 1:
            return given
        if given.shape != UNKNOWN and 2 <= rank <= 4 and self.chance.maybe(0.4):
            pooled = f"Global{self.chance.one_of('Average', 'Max')}Pooling{rank - 1}D"
            return self.layer(pooled, given, {}, given.shape[-1:])
        size = (-1,) if given.shape == UNKNOWN else (math.prod(given.shape),)
        return self.layer("Flatten", given, {}, size)

    def join(self, given: list[Tensor]) -> Tensor:
        node = {"layer": "Concatenate", "args": {}, "call": "list", "kwargs": {}}
        return self._add(node, given, (sum(t.shape[-1] for t in given),))

    def graph(self, style: str, outputs: list[Tensor]) -> Graph:
        """What was drawn, without what no output is made of. A subclassed model may keep that: it computes it in vain."""
        nodes = self.nodes
        if not (style == "subclass" and self.chance.maybe(0.3)):
            used = frozenset().union(*(tensor.of for tensor in outputs))
            nodes = [node for node in nodes if node["id"] in used or self._holds(node, used)]
        return {
            "style": style,
            "inputs": self.inputs,
            "nodes": nodes,
            "outputs": [tensor.ref for tensor in outputs],
        }

    def _holds(self, node: Node, used: frozenset[str]) -> bool:
        """Whether a node that is used is this one's layer again."""
        return any(other.get("same") == node["id"] and other["id"] in used for other in self.nodes)


def draw_inside(chance: Chance, count: list[int], shape: Shape) -> tuple[Graph, Shape]:
    """A model inside the model, with one input and one output, and the shape of that."""
    style = chance.one_of("functional", "sequential", "subclass")
    drawing = Drawing(chance, count, linear=style == "sequential")
    tensor = drawing.input(shape, "float")
    for _ in range(chance.between(1, 2)):
        tensor = drawing.step(tensor, depth=1)
    if tensor.shape == UNKNOWN or drawing.nodes[-1].get("outs"):
        tensor = drawing.layer("Dense", drawing.flat(tensor), {"units": "4"}, (4,))
    return drawing.graph(style, [tensor]), tensor.shape


def draw_graph(
    chance: Chance, style: str, must: str, *, most: int, inputs: int, shape: Shape | None = None
) -> tuple[Drawing, list[Tensor]]:
    """The body of a model that has a layer of the kind `must`, and the tensors its outputs are to be made of.

    The first input has a shape that this layer takes, or the one given.
    """
    drawing = Drawing(chance, [0], linear=style == "sequential")
    kind = LAYERS[must]
    tensor = drawing.input(shape or chance.member(kind.shapes), kind.takes)
    for _ in range(inputs - 1):
        drawing.input(chance.member([(4,), (6, 4), tensor.shape]), "float")
    if chance.maybe(0.3) and kind.takes == "float":
        before = drawing.layer("Dense", tensor)
        tensor = before if kind.fits(before.shape, before.takes) else tensor
    if drawing.linear and kind.inputs > 1:
        drawing.linear = False
    tensor = found = drawing.layer(must, tensor)
    wanted = drawing.nodes[-1]["id"]
    for _ in range(chance.between(0, most)):
        if not drawing.linear and chance.maybe(0.25):
            tensor = chance.member(drawing.tensors)
        tensor = drawing.step(tensor, depth=0)
    last = [t for t in drawing.tensors if wanted in t.of][-1] if not drawing.linear else tensor
    outputs = [last]
    if not drawing.linear and chance.maybe(0.25):
        outputs.append(chance.one_of(found, chance.member(drawing.tensors)))
    missing = [x["id"] for x in drawing.inputs if not any(x["id"] in t.of for t in outputs)]
    if missing:
        more = [drawing.flat([t for t in drawing.tensors if ref in t.of][-1]) for ref in missing]
        outputs[0] = drawing.join([drawing.flat(outputs[0]), *more])
    return drawing, outputs
