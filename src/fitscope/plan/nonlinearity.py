"""The nonlinearity of a layer's output, by name, and how its units look when they are stuck.

The name is the one that Keras gives the function (`relu`, `leaky_relu`, `softmax`). This also holds for a separate layer (`ReLU`,
`Activation`, `Softmax`) and inside a wrapper (`TimeDistributed`, `Bidirectional`). Custom activations keep the name of their function. This
module imports no framework.
"""

from __future__ import annotations

import functools
import re
from typing import Any

#: Layers and operations that are nothing but a nonlinearity, by class.
_BY_CLASS = {
    "ReLU": "relu", "Relu": "relu", "LeakyReLU": "leaky_relu", "LeakyRelu": "leaky_relu", "PReLU": "prelu", "ELU": "elu",
    "Elu": "elu", "ThresholdedReLU": "threshold", "Softmax": "softmax", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Relu6": "relu6", "ReLU6": "relu6", "Gelu": "gelu", "Silu": "silu", "Selu": "selu", "Celu": "celu", "Softplus": "softplus",
    "LogSoftmax": "log_softmax", "HardSigmoid": "hard_sigmoid", "HardTanh": "hard_tanh", "HardSilu": "hard_silu",
    "Softsign": "softsign", "Mish": "mish",
}  # fmt: skip
_ALIASES = {"swish": "silu", "hard_swish": "hard_silu"}

#: Nonlinearities whose units can be stuck, and the test for it: see `reduce.activity`.
FAMILIES = {
    "relu": "relu", "relu6": "relu", "sparse_plus": "relu",
    "leaky_relu": "leaky", "prelu": "leaky", "elu": "leaky", "selu": "leaky", "celu": "leaky", "gelu": "leaky", "silu": "leaky",
    "mish": "leaky", "hard_silu": "leaky",
    "sigmoid": "sigmoid", "hard_sigmoid": "sigmoid", "sparse_sigmoid": "sigmoid",
    "tanh": "tanh", "hard_tanh": "tanh", "softsign": "tanh",
    "softmax": "softmax", "sparsemax": "softmax",
}  # fmt: skip


def nonlinearity(layer: Any) -> str | None:
    """The name of the nonlinearity of this layer's output; None if it has none.

    A `Dense` layer without one has "linear". Never raises.
    """
    try:
        return _of(layer, depth=0)
    except Exception:  # the attributes of a custom layer may do anything
        return None


def name_of(activation: Any) -> str | None:
    """The name of an activation as Keras takes it: a string, a function, a layer or a serialised configuration."""
    if activation is None:
        return None
    if isinstance(activation, str):
        return _ALIASES.get(activation, _BY_CLASS.get(activation, activation))
    if isinstance(activation, functools.partial):
        return name_of(activation.func)
    if isinstance(activation, dict):  # a Keras configuration
        config = activation.get("config")
        return name_of(config if isinstance(config, str) else activation.get("class_name"))
    if isinstance(activation, type):
        return _BY_CLASS.get(activation.__name__, _snake(activation.__name__))
    if hasattr(activation, "get_config") and not hasattr(activation, "__name__"):
        return _of(activation, depth=0) or _snake(type(activation).__name__)
    name = getattr(activation, "__name__", None) or _snake(type(activation).__name__)
    return _ALIASES.get(name, _BY_CLASS.get(name, name))


def _of(layer: Any, depth: int) -> str | None:
    kind = _class(layer)
    if kind == "ReLU":
        return "leaky_relu" if float(getattr(layer, "negative_slope", 0.0) or 0.0) else "relu"
    if kind in _BY_CLASS:
        return _BY_CLASS[kind]
    if kind == "GraphLayer":  # a layer of a session: the operation that computes its output
        return _BY_CLASS.get(layer.output.op.type)
    if depth > 4:  # wrappers within wrappers
        return None
    if kind == "Bidirectional" and getattr(layer, "merge_mode", "concat") not in ("concat", None):
        return None  # sums and products of the two directions are not values of the nonlinearity
    for inner in ("forward_layer", "cell", "layer"):
        wrapped = getattr(layer, inner, None)
        if wrapped is not None and hasattr(wrapped, "get_config"):
            return _of(wrapped, depth + 1)
    if hasattr(layer, "train_step"):
        return _of_model(layer, depth)
    return name_of(getattr(layer, "activation", None))


def _of_model(model: Any, depth: int) -> str | None:
    """The nonlinearity of a nested model: that of its output, if known."""
    outputs = list(getattr(model, "outputs", None) or ())
    source = (
        getattr(getattr(outputs[0], "_keras_history", None), "operation", None) if len(outputs) == 1 else None
    )
    return None if source is None else _of(source, depth + 1)


def _class(layer: Any) -> str:
    """The class of a layer, or its Keras base class if that is a pure nonlinearity."""
    own = type(layer).__name__
    return next((kind.__name__ for kind in type(layer).__mro__ if kind.__name__ in _BY_CLASS), own)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
