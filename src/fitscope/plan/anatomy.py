"""The parts of a Keras model by name: its layers, its weights, and a description for the run.

Every layer has one *path*, its place below the model (`conv1`, `encoder/dense`). Every weight has the path of its layer and its own name
(`conv1/kernel`). The root is not part of the path. This module imports no framework: it reads a model through the attributes of every Keras
layer. A layer that is not built has no weights yet, but is a part too. So is the model itself, even if a custom step calls only its layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fitscope.errors import ModelError


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A layer and its path."""

    path: str
    layer: Any
    container: bool  #: a nested model, whose output is that of one of its layers
    looped: str = (
        ""  #: the layer that runs this one once per time step; no single call is a value of the step
    )


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A weight, and the layer that owns it."""

    path: str
    variable: Any
    owner: LayerPart


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The parts of a model."""

    model: Any
    layers: tuple[LayerPart, ...]
    weights: tuple[WeightPart, ...]
    optimizers: tuple[Any, ...] = ()  #: further optimizers that train it

    @classmethod
    def of(cls, model: Any, optimizers: tuple[Any, ...] = ()) -> Anatomy:
        if not hasattr(model, "_flatten_layers"):
            raise ModelError("a Keras model", type(model).__name__, "Pass the model you call fit() on")
        layers = tuple(_layers(model, "", "", seen={id(model)}))
        return cls(model, layers, tuple(_weights(model, layers)), optimizers)

    def same(self, other: Anatomy) -> bool:
        """Whether both describe one model whose parts did not change in between."""
        return self.model is other.model and self._identity() == other._identity()

    def _identity(self) -> list[tuple[str, int]]:
        return [(p.path, id(p.layer)) for p in self.layers] + [(w.path, id(w.variable)) for w in self.weights]

    def describe(self) -> dict[str, Any]:
        """The description of the model for the run."""
        model = self.model
        optimizer = getattr(model, "optimizer", None)
        policy = getattr(model, "dtype_policy", None)
        return {
            "name": model.name,
            "class": type(model).__name__,
            # Not `count_params()`: it refuses a model that is never called itself, such as the container of a GAN.
            "parameters": sum(math.prod(int(n) for n in w.variable.shape) for w in self.weights),
            "optimizer": type(optimizer).__name__ if optimizer is not None else None,
            "loss": _name_of(getattr(model, "loss", None)),
            "dtype_policy": getattr(policy, "name", None),
            "jit_compile": bool(getattr(model, "jit_compile", False)),
            "run_eagerly": bool(getattr(model, "run_eagerly", False)),
            "layers": [self._describe(part) for part in self.layers],
        }

    def _describe(self, part: LayerPart) -> dict[str, Any]:
        layer = part.layer
        own = [weight for weight in self.weights if weight.owner is part]
        return {
            "path": part.path,
            "name": layer.name,
            "type": type(layer).__name__,
            "container": part.container,
            "trainable": bool(layer.trainable),
            "output_shape": _shape_of(layer),
            "from": sorted(_sources(layer, {id(p.layer): p.path for p in self.layers})),
            "weights": {
                weight.path: {
                    "shape": [int(n) for n in weight.variable.shape],
                    "dtype": str(weight.variable.dtype),
                    "trainable": bool(weight.variable.trainable),
                }
                for weight in own
            },
        }


def unbuilt(model: Any) -> list[Any]:
    """The layers, including the model, that create weights or layers when they are first called.

    A model that only holds built layers is not one of them, even if Keras does not call it built: a custom `train_step` may never
    call the model itself.
    """
    return [layer for layer in model._flatten_layers() if not layer.built and not _only_holds(layer)]


def _only_holds(layer: Any) -> bool:
    own_build = not str(getattr(type(layer).build, "__module__", "")).startswith("keras.")
    inside = layer._flatten_layers(include_self=False, recursive=False)
    return hasattr(layer, "train_step") and not own_build and next(iter(inside), None) is not None


#: Layers that run another one in a loop over time, by class, and the attribute that holds it.
_LOOPS = {"RNN": "cell", "TimeDistributed": "layer"}


def _layers(parent: Any, prefix: str, loop: str, seen: set[int]) -> Iterator[LayerPart]:
    used: set[str] = set()
    in_loop = [getattr(parent, _LOOPS.get(kind.__name__, ""), None) for kind in type(parent).__mro__]
    for layer in parent._flatten_layers(include_self=False, recursive=False):
        if id(layer) in seen:
            continue  # a shared layer keeps the first path at which it was found
        seen.add(id(layer))
        path = _free(prefix + layer.name, used)
        # Anything that has its own `fit` is a model, and only a container for its layers.
        looped = loop or (prefix[:-1] if any(layer is inner for inner in in_loop) else "")
        yield LayerPart(path, layer, container=hasattr(layer, "train_step"), looped=looped)
        yield from _layers(layer, path + "/", looped, seen)


def _weights(model: Any, layers: tuple[LayerPart, ...]) -> Iterator[WeightPart]:
    """Each weight once, under the innermost layer that has it."""
    owner: dict[int, tuple[Any, LayerPart]] = {}
    for part in (LayerPart("", model, container=True), *layers):  # outer layers come before inner ones
        for variable in part.layer.weights:
            known = owner.get(id(variable))
            if known is None or part.path.startswith(known[1].path and known[1].path + "/"):
                owner[id(variable)] = (variable, part)
    used: set[str] = set()
    for variable, part in owner.values():
        name = variable.name.rpartition("/")[2].partition(":")[0]  # legacy Keras has `dense/kernel:0`
        yield WeightPart(_free("/".join(filter(None, (part.path, name))), used), variable, part)


def _free(path: str, used: set[str]) -> str:
    """The path itself, or `path#2` if two things on one level have the same name."""
    name, n = path, 1
    while name in used:
        n += 1
        name = f"{path}#{n}"
    used.add(name)
    return name


def _name_of(thing: Any) -> str | None:
    if thing is None or isinstance(thing, str):
        return thing
    return getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__


def _shape_of(layer: Any) -> list[int | None] | None:
    try:
        shape = layer.output.shape
    except (AttributeError, ValueError):  # the layer is in no functional graph, or has several outputs
        return None
    return [None if n is None else int(n) for n in shape]


def _sources(layer: Any, paths: dict[int, str]) -> set[str]:
    """The layers whose outputs this layer takes, if the model is a graph."""
    found = set()
    for node in getattr(layer, "_inbound_nodes", ()):
        tensors = getattr(node, "input_tensors", ())
        for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
            source = paths.get(id(getattr(getattr(tensor, "_keras_history", None), "operation", None)))
            if source is not None:
                found.add(source)
    return found
