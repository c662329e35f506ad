"""The setup of a model as plain JSON: layers, outputs, losses, optimizers, and the arguments of `fit`.

A run stores it, and the rules of a diagnosis read it as evidence. Nothing here raises for any model: unknown values are None or absent. It
reads no weights, only the learning rate, which is a setting. It imports no framework.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fitscope.plan.anatomy import Anatomy, LayerPart
from fitscope.plan.nonlinearity import name_of, nonlinearity
from fitscope.plan.objective import losses_of, metrics_of, optimizer_of, plain

Json = dict[str, Any]
T = TypeVar("T")

#: Settings that are copied unchanged from a layer that has them.
_SETTINGS = (
    "units", "filters", "kernel_size", "strides", "padding", "dilation_rate", "rate", "momentum", "epsilon", "axis",
    "center", "scale", "use_bias", "return_sequences", "input_dim", "output_dim", "num_heads", "key_dim", "groups",
    "negative_slope", "max_value", "threshold", "stddev", "dropout", "recurrent_dropout",
    "data_format",
)  # fmt: skip
_INITIALIZERS = (
    "kernel_initializer", "bias_initializer", "recurrent_initializer", "depthwise_initializer", "pointwise_initializer",
    "embeddings_initializer", "gamma_initializer", "beta_initializer",
)  # fmt: skip
_REGULARIZERS = (
    "kernel_regularizer", "bias_regularizer", "activity_regularizer", "recurrent_regularizer", "embeddings_regularizer",
    "kernel_constraint",
)  # fmt: skip
#: Layers that pass their input values on, though they may drop or move some.
_PASS_ON = frozenset((
    "Reshape", "Flatten", "Permute", "RepeatVector", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D",
    "Identity", "ActivityRegularization", "Masking", "Cropping1D", "Cropping2D", "Cropping3D", "Tap", "Squeeze", "Cast",
))  # fmt: skip


def configuration(
    model: Any, *, optimizers: Iterable[Any] = (), fit: Mapping[str, Any] | None = None
) -> Json:
    """The setup of the model before its first step.

    Args:
        optimizers: Further optimizers that train it, in a custom loop.
        fit: Known arguments of `fit`: "batch_size", "steps_per_epoch", "epochs", "shuffle".
    """
    anatomy = _tried(lambda: Anatomy.of(model))
    parts: tuple[LayerPart, ...] = anatomy.layers if anatomy is not None else ()
    paths = {id(part.layer): part.path for part in parts}
    own = getattr(model, "optimizer", None)
    others = {id(each): each for each in (*optimizers, *_kept(model)) if each is not own}.values()
    several = [found for each in (own, *others) if (found := _tried(functools.partial(optimizer_of, each)))]
    outputs = _tried(lambda: _outputs(model, paths)) or []
    return {
        "layers": [_layer(part, anatomy, paths) for part in parts],
        "outputs": outputs,
        "losses": _tried(lambda: losses_of(model, [str(each["name"]) for each in outputs])) or [],
        "metrics": _tried(lambda: metrics_of(model)) or [],
        "optimizer": several[0] if several else None,
        **({"optimizers": several} if len(several) > 1 else {}),
        "custom": {name: _overridden(model, name) for name in ("train_step", "compute_loss", "call")},
        "fit": {key: plain(value) for key, value in (fit or {}).items()},
        "dtype_policy": _tried(lambda: _policy(model)),
        "jit_compile": plain(_tried(lambda: model.jit_compile)),
        "run_eagerly": plain(_tried(lambda: model.run_eagerly)),
    }


def _layer(part: LayerPart, anatomy: Any, paths: dict[int, str]) -> Json:
    layer = part.layer
    weights = [weight for weight in anatomy.weights if weight.owner is part]
    found: Json = {
        "path": part.path,
        "class": type(layer).__name__,
        "container": part.container,
        "looped": part.looped or None,
        "activation": nonlinearity(layer),
        "trainable": plain(_tried(lambda: bool(layer.trainable))),
        "dtype": _tried(lambda: _policy(layer)),
        "inbound": _tried(lambda: _inbound(part, anatomy, paths)) or [],
        "weights": [weight.path.rpartition("/")[2] for weight in weights],
        "parameters": sum(_tried(functools.partial(_size, weight.variable)) or 0 for weight in weights),
    }
    recurrent = _tried(lambda: name_of(getattr(layer, "recurrent_activation", None)))
    if recurrent is not None:
        found["recurrent_activation"] = recurrent
    if _tried(lambda: "add_loss" in type(layer).call.__code__.co_names):
        found["adds_loss"] = True
    if untracked := _tried(lambda: _untracked(layer, anatomy)):
        found["untracked"] = untracked
    for name in _SETTINGS:
        value = plain(_tried(functools.partial(getattr, layer, name, None)))
        if value is not None:
            found[name] = value
    for name in (*_INITIALIZERS, *_REGULARIZERS):
        value = _tried(functools.partial(getattr, layer, name, None))
        if value is not None:
            found[name] = _tried(functools.partial(_small, value))
    return found


def _untracked(layer: Any, anatomy: Anatomy) -> list[str]:
    """Layers with weights that a function of this layer calls, as a lambda does, and that the model does not know."""
    function: Any = getattr(layer, "function", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    named = [function.__globals__.get(name) for name in code.co_names]
    reached = [cell.cell_contents for cell in function.__closure__ or ()] + named
    known = {id(weight.variable) for weight in anatomy.weights}
    return [
        str(each.name)
        for each in reached
        if hasattr(each, "_inbound_nodes")
        and each.trainable_weights
        and not known & {id(weight) for weight in each.trainable_weights}
    ]


def _inbound(part: LayerPart, anatomy: Anatomy, paths: dict[int, str]) -> list[str]:
    """The paths of the layers that feed this one, through operations that are not layers, in the order of its arguments."""
    found = dict.fromkeys(
        path
        for node in getattr(part.layer, "_inbound_nodes", ())
        for tensor in _inputs(node)
        for path in _behind(tensor, paths, depth=0)
    )
    if found:
        return list(found)
    before = _before(part, anatomy, paths)  # a Sequential model is a chain also before it is built
    return [before] if before is not None else []


def _behind(tensor: Any, paths: dict[int, str], depth: int) -> Iterable[str]:
    source = getattr(getattr(tensor, "_keras_history", None), "operation", None)
    if source is None or depth > 50:
        return
    if id(source) in paths:
        yield paths[id(source)]
        return
    node = _node(tensor, source)
    for each in _inputs(node) if node is not None else ():
        yield from _behind(each, paths, depth + 1)


def _inputs(node: Any) -> list[Any]:
    tensors = getattr(node, "input_tensors", ())
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]


def _node(tensor: Any, source: Any) -> Any:
    nodes = getattr(source, "_inbound_nodes", ())
    index = getattr(tensor._keras_history, "node_index", 0)
    return nodes[index] if index < len(nodes) else None


def _before(part: LayerPart, anatomy: Anatomy, paths: dict[int, str]) -> str | None:
    """The previous layer in a Sequential model."""
    parent = part.path.rpartition("/")[0]
    within = next((each.layer for each in anatomy.layers if each.path == parent), anatomy.model)
    chain = list(within.layers) if type(within).__name__ == "Sequential" else []
    at = next((i for i, layer in enumerate(chain) if layer is part.layer), 0)
    return paths.get(id(chain[at - 1])) if at else None


def _outputs(model: Any, paths: dict[int, str]) -> list[Json]:
    """The outputs of a model that is a graph; those of a subclassed model are known only to its `call`."""
    tensors = getattr(model, "outputs", None) or ()
    names = [str(name) for name in getattr(model, "output_names", None) or ()]
    if not tensors and type(model).__name__ == "Sequential" and model.layers:  # the model is not built yet
        last = model.layers[-1]
        path = paths.get(id(last))
        return [{"layer": path, "name": last.name, "activation": nonlinearity(last), "shape": None}]
    found = []
    for i, tensor in enumerate(tensors):
        source = getattr(getattr(tensor, "_keras_history", None), "operation", None)
        found.append(
            {
                "layer": paths.get(id(source)) or next(iter(_behind(tensor, paths, 0)), None),
                "name": names[i] if i < len(names) else getattr(source, "name", str(i)),
                "activation": _activation_behind(tensor, depth=0),
                "shape": [None if n is None else int(n) for n in tensor.shape],
            }
        )
    return found


def _activation_behind(tensor: Any, depth: int) -> str | None:
    """The nonlinearity that produced an output, behind layers that only pass values on."""
    source = getattr(getattr(tensor, "_keras_history", None), "operation", None)
    if source is None:
        return None
    own = nonlinearity(source)
    passes = type(source).__name__ in _PASS_ON or (type(source).__name__ == "Activation" and own == "linear")
    node = _node(tensor, source)
    before = _inputs(node) if node is not None else []
    if passes and len(before) == 1 and depth < 50:
        return _activation_behind(before[0], depth + 1) or own
    return own


def _kept(model: Any) -> list[Any]:
    """The optimizers that a model stores under its own names, as a GAN does."""
    attributes = _tried(lambda: list(vars(model).values())) or []
    return [each for each in attributes if hasattr(type(each), "apply_gradients")]


def _policy(layer: Any) -> str | None:
    policy = getattr(layer, "dtype_policy", None)
    name = getattr(policy, "name", None)
    return str(name) if name is not None else None


def _overridden(model: Any, name: str) -> bool:
    """Whether the class of the model overrides a method of Keras."""
    method = _tried(lambda: getattr(type(model), name, None))
    return method is not None and not str(getattr(method, "__module__", "")).startswith(
        ("keras.", "tf_keras.")
    )


def _size(variable: Any) -> int:
    return math.prod(int(n) for n in variable.shape)


def _small(thing: Any) -> Json:
    """An initializer or regularizer: its class, and its settings that are numbers or text."""
    config = thing.get_config() if hasattr(thing, "get_config") else {}
    numbers = {
        key: plain(value) for key, value in config.items() if isinstance(value, bool | int | float | str)
    }
    name = getattr(thing, "__name__", None) or type(thing).__name__
    return {"class": name, **numbers}


def _tried(ask: Callable[[], T]) -> T | None:
    """Calls a function of the model, and returns None if it raises: custom layers may do anything."""
    try:
        return ask()
    except Exception:
        return None
