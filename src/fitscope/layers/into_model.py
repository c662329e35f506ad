"""`fs.with_taps(model, layers)`: a model with `Tap` layers, built from the same layer objects.

The function walks the graph of the model, calls the same layer objects again, and adds a tap after each selected one. So the new
model has no weights of its own, and the original model does not change.
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

#: Methods of a model class whose overrides a plain functional model would lose.
_OWN_WAYS = ("call", "train_step", "test_step", "predict_step", "compute_loss")


def with_taps(model: keras.Model, layers: Layers) -> keras.Model:
    """Returns a model with the same layers, and an `fs.layers.Tap` named `<layer>_tap` after each selected one.

    Args:
        model: A built functional or sequential model. Nested models may be either, too.
        layers: Which layers, as in `fs.activations`.

    Both models share their weights: training one trains the other, and their predictions are bit-identical. A layer that the model
    calls several times gets a tap for each call: `<layer>_tap`, `<layer>_tap_2`. If a tapped layer is a model output, that output
    takes the name of the tap, which matters if you pass losses or targets by name.

    The new model is not compiled, and needs its own optimizer. An optimizer stores its state by the position of the weights, and taps
    can change the order of the layers in a graph with branches.
    """
    alone = isinstance(layers, str | type | keras.layers.Layer)
    selectors = [layers] if alone else list(layers)  # type: ignore[arg-type]
    if not selectors:
        raise WatchError("with_taps(model, layers) to name layers", "none", 'Write with_taps(model, "conv*")')
    anatomy = Anatomy.of(model)
    if not model.built:
        raise ModelError(
            "a built model",
            f"{model.name!r}, which has no weights yet",
            "Call it on a batch or model.build(...) first",
        )
    _graph(model)
    in_graph = {id(layer) for layer in _in_graph(model)}
    parts = {id(part.layer): part for part in _tappable(selectors, anatomy, in_graph)}
    return _Chosen(parts, names={part.layer.name for part in anatomy.layers}).tapped(model)


@dataclass
class _Chosen:
    """The layers to tap, and the names of their taps."""

    parts: dict[int, LayerPart]
    names: set[str]  #: names already in use
    first: dict[str, str] = field(default_factory=dict)  #: path → the name of the tap of its first call

    def tapped(self, model: Any) -> Any:
        """Rebuilds the model from the same layers, with the taps."""
        graph = _graph(model)
        # An uncompiled copy of the graph: cloning a compiled model would copy its settings, with a new optimizer.
        source = _class_of(model)(graph.input, graph.output, name=model.name)
        instead: dict[int, Any] = {}  # a nested model with taps → the original

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
        """`<layer>_tap`, the full path if that name is taken, and a number for each further call."""
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
                "with_taps(...) to name layers of the model or of a functional model inside it",
                f"{shown(selector)}, which runs inside {outer!r}",
                f"Tap {outer!r}, or watch it with fs.activations({found[0].path!r}), which needs no taps",
            )
        yield from seen


def _graph(model: Any) -> Any:
    """The functional model behind a model: itself, or the one inside a sequential model."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if isinstance(graph, Functional):
        return graph
    raise ModelError(
        "a functional or sequential model",
        f"{model.name!r}, a {type(model).__name__}",
        "Watch it with fs.activations(...), which needs no taps; or put fs.layers.Tap('name') or fs.tap(...) into its call()",
    )


def _is_graph(layer: Any) -> bool:
    return isinstance(layer, Functional) or isinstance(getattr(layer, "_functional", None), Functional)


def _in_graph(model: Any) -> Iterator[Any]:
    """The layers that can be tapped: those of the model and of the functional models inside it."""
    for layer in _graph(model).layers:
        yield layer
        if _is_graph(layer):
            yield from _in_graph(layer)


def _class_of(model: Any) -> Any:
    """The model's own class if its constructor takes inputs and outputs, else a plain model."""
    kind = type(model)
    if not isinstance(model, keras.Sequential) and functional_like_constructor(kind):
        return kind
    base = keras.Sequential if isinstance(model, keras.Sequential) else Functional
    own = [name for name in _OWN_WAYS if getattr(kind, name) is not getattr(base, name)]
    if own:
        raise ModelError(
            "a model class whose constructor takes inputs and outputs",
            f"{model.name!r}, whose class {kind.__name__} overrides the constructor and {own[0]}()",
            "Watch it with fs.activations(...), which needs no taps; or add fs.layers.Tap layers in the class",
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
