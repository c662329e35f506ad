"""`fs.with_taps(model, layers)`: the model with `Tap` layers in it, made of the same layers.

The graph of the model is walked once more, calling the same layer objects, with a tap after each that was chosen. The
new model therefore has no weights of its own. The model it was made of stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.models.functional import Functional, functional_like_constructor

from fitscope.errors import ModelError, WatchError
from fitscope.layers import Tap
from fitscope.plan.anatomy import Anatomy, LayerPart
from fitscope.plan.selection import is_input, select, shown
from fitscope.watch import Layers

#: What a class of models may do its own way, and a plain functional model would then do otherwise.
_OWN_WAYS = ("call", "train_step", "test_step", "predict_step", "compute_loss")


def with_taps(model: keras.Model, layers: Layers) -> keras.Model:
    """A model with the same layers, and an `fs.layers.Tap` named `<layer>_tap` after each chosen one.

    Args:
        model: A functional or sequential model that is built. Models inside it may be either, too.
        layers: One or more of: a name, a glob on name or path, a class, a layer; as in `fs.activations`.

    Both models have the same weights: training one trains the other, and they predict the same to the last bit. A layer that
    is called several times has a tap for each call, `<layer>_tap`, `<layer>_tap_2`. An output that is tapped is named after its
    tap, where losses or targets are given by name.

    The new model is not compiled. An optimizer keeps its state by the position of the weights in one model, and in a
    graph with branches taps may change the order of the layers, so it is given an optimizer of its own.
    """
    alone = isinstance(layers, str | type | keras.layers.Layer)
    selectors = [layers] if alone else list(layers)  # type: ignore[arg-type]
    if not selectors:
        raise WatchError("with_taps(model, layers) to name layers", "none", 'Write with_taps(model, "conv*")')
    anatomy = Anatomy.of(model)
    if not model.built:
        raise ModelError(
            "a model whose layers are built",
            f"{model.name!r}, which has no weights yet",
            "Call it on a batch or model.build(...) first",
        )
    _graph(model)
    in_graph = {id(layer) for layer in _in_graph(model)}
    parts = {id(part.layer): part for part in _tappable(selectors, anatomy, in_graph)}
    return _Chosen(parts, names={part.layer.name for part in anatomy.layers}).tapped(model)


@dataclass
class _Chosen:
    """The layers to be tapped, and what their taps are called."""

    parts: dict[int, LayerPart]
    names: set[str]  #: those that are taken
    first: dict[str, str] = field(default_factory=dict)  #: path → the name of the tap of its first call

    def tapped(self, model: Any) -> Any:
        """The model anew, from the same layers, with the taps."""
        graph = _graph(model)
        # The same graph as a model that is not compiled: what is cloned takes the settings over, with a new optimizer.
        source = _class_of(model)(graph.input, graph.output, name=model.name)
        instead: dict[int, Any] = {}  # a model inside that has taps now → what it was made of

        def same(operation: Any) -> Any:
            if not _is_graph(operation) or not any(id(layer) in self.parts for layer in _in_graph(operation)):
                return operation
            anew = self.tapped(operation)
            instead[id(anew)] = operation
            return anew

        def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = operation(*args, **kwargs)
            part = self.parts.get(id(instead.get(id(operation), operation)))
            return outputs if part is None else Tap(name=self._name(part))(outputs)

        inputs = keras.tree.map_structure(_input_like, source.input)
        return keras.models.clone_model(source, input_tensors=inputs, clone_function=same, call_function=call)

    def _name(self, part: LayerPart) -> str:
        """`<layer>_tap`, or by its path where a layer elsewhere has that; and numbered for each further call."""
        path = f"{part.path.replace('/', '_')}_tap"
        first = self.first.setdefault(
            part.path, path if f"{part.layer.name}_tap" in self.names else f"{part.layer.name}_tap"
        )
        name, n = first, 1
        while name in self.names:
            n += 1
            name = f"{first}_{n}"
        self.names.add(name)
        return name


def _tappable(selectors: Iterable[Any], anatomy: Anatomy, in_graph: set[int]) -> Iterator[LayerPart]:
    parts = [part for part in anatomy.layers if not is_input(part)]
    for selector in selectors:
        found = select("with_taps(...)", [selector], parts)
        seen = [part for part in found if id(part.layer) in in_graph]
        if not seen:
            outer = found[0].path.rpartition("/")[0]
            raise WatchError(
                "with_taps(...) to name layers that the model, or a functional model in it, is made of",
                f"{shown(selector)}, which runs inside {outer!r}",
                f"Tap {outer!r}, or watch it with fs.activations({found[0].path!r}), which needs no taps",
            )
        yield from seen


def _graph(model: Any) -> Any:
    """The functional model that a model is, or that a sequential one keeps."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if isinstance(graph, Functional):
        return graph
    raise ModelError(
        "a functional or sequential model, whose graph is known",
        f"{model.name!r}, a {type(model).__name__}",
        "Watch it with fs.activations(...), which needs no taps; or put fs.layers.Tap('name') or fs.tap(...) into its call()",
    )


def _is_graph(layer: Any) -> bool:
    return isinstance(layer, Functional) or isinstance(getattr(layer, "_functional", None), Functional)


def _in_graph(model: Any) -> Iterator[Any]:
    """The layers that can be tapped: those of the model, and of functional models in it."""
    for layer in _graph(model).layers:
        yield layer
        if _is_graph(layer):
            yield from _in_graph(layer)


def _class_of(model: Any) -> Any:
    """The model's own class where it can be made of inputs and outputs, else a plain one."""
    kind = type(model)
    if not isinstance(model, keras.Sequential) and functional_like_constructor(kind):
        return kind
    base = keras.Sequential if isinstance(model, keras.Sequential) else Functional
    own = [name for name in _OWN_WAYS if getattr(kind, name) is not getattr(base, name)]
    if own:
        raise ModelError(
            "a model that is made of its inputs and outputs",
            f"{model.name!r}, whose class {kind.__name__} has a constructor and a {own[0]}() of its own",
            "Watch it with fs.activations(...), which needs no taps; or make the taps part of the class: fs.layers.Tap",
        )
    return keras.Model


def _input_like(tensor: Any) -> Any:
    layer = tensor._keras_history.operation
    return keras.Input(
        batch_shape=tensor.shape,
        dtype=tensor.dtype,
        sparse=tensor.sparse,
        name=tensor.name,
        optional=getattr(layer, "optional", False),
    )
