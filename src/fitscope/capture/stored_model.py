"""Builds the model of a stored step from its configuration, which is not trusted.

Keras finds classes by names in the configuration, and older versions import the module that it names. So fitscope
checks every name first. It builds only the parts of models that Keras itself has (`PARTS`), and classes that the user registered in this
process. Keras's safe mode is on, so no stored Python code runs. Anything else needs the user's own model.
"""

from __future__ import annotations

from typing import Any

import keras

from fitscope.errors import RunError
from fitscope.pipeline.troubles import described

#: Parts of Keras whose classes and functions make up a model.
PARTS = frozenset(
    ("activations", "constraints", "dtype_policies", "initializers", "layers", "losses", "metrics", "models", "ops", "optimizers",
     "quantizers", "random", "regularizers")
)  # fmt: skip
#: Values that Keras writes as objects.
VALUES = frozenset(
    ("__tuple__", "__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__")
)


def model_from(config: dict[str, Any] | None, why_not: str | None) -> Any:
    """The compiled model of a configuration. An error asks for the user's own model."""
    if config is None:
        raise _asks(f"none, because Keras could not serialize the model ({why_not or 'it gave no reason'})")
    odd = next(_odd(config), None)
    if odd is not None:
        raise _asks(f"a model with {odd}, which fitscope does not build from a file")
    try:
        model = keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:
        raise _asks(f"a model that Keras cannot build from it ({described(error)})") from error
    if not isinstance(model, keras.Model) or not model.compiled:
        raise _asks("a model that is not compiled")
    return model


def _asks(received: str) -> RunError:
    return RunError(
        "the configuration of a model that Keras can build",
        received,
        "Build and compile the model as in the training, and pass it: run.replay(step, model=model)",
    )


def _odd(value: Any) -> Any:
    """The names of classes and functions that fitscope refuses to build."""
    if isinstance(value, list):
        for inner in value:
            yield from _odd(inner)
    if isinstance(value, dict):
        name = value.get("class_name")
        if isinstance(name, str) and not _known(name, value.get("module"), value.get("registered_name")):
            yield f"the class {name!r} of {value.get('module')!r}"
        for inner in value.values():
            yield from _odd(inner)


def _known(name: str, module: Any, registered: Any) -> bool:
    if name.startswith("__"):
        return name in VALUES
    if isinstance(registered, str) and keras.saving.get_registered_object(registered) is not None:
        return True
    if module in ("builtins", "keras"):
        return True
    parts = str(module).split(".")
    inside = parts[2:3] if parts[:2] == ["keras", "src"] else parts[1:2]
    if parts[:3] == ["keras", "src", "backend"]:  # the optimizers of PyTorch
        inside = parts[4:5]
    return parts[0] == "keras" and bool(PARTS.intersection(inside))
