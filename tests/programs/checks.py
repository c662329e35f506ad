"""The questions the harness asks of a pair of trainings and of a run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from programs.program import Trained

FOLDER = Path(__file__).parent  #: of the programs

#: Functions of the frameworks that fitscope replaces while it makes a tapped step.
REPLACED = {
    "jax": [("jax", "grad"), ("jax", "value_and_grad"), ("jax", "vjp")],
    "tensorflow": [("tensorflow.GradientTape", "gradient")],
    "torch": [("torch.Tensor", "backward"), ("torch.autograd", "grad"), ("torch.autograd", "backward")],
}


def differences(plain: Trained, watched: Trained) -> list[str]:
    """The names of everything that is not bit for bit the same."""
    mine, theirs = list(_numbers(plain)), list(_numbers(watched))
    if [name for name, _ in mine] != [name for name, _ in theirs]:
        return ["the trainings left different variables or histories behind"]
    return [
        f"{name} by {_distance(a, b):.2g}"
        for (name, a), (_, b) in zip(mine, theirs, strict=True)
        if a.dtype != b.dtype or a.tobytes() != b.tobytes()
    ]


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("nan")
    return float(np.max(np.abs(a.astype("float64") - b.astype("float64")), initial=0.0))


def _numbers(trained: Trained) -> Iterator[tuple[str, np.ndarray]]:
    for part, variables in _variables(trained):
        for i, variable in enumerate(variables):
            yield f"{part}[{i}] {variable.path}", np.asarray(keras.ops.convert_to_numpy(variable))
    for i, array in enumerate(trained.arrays):
        yield f"arrays[{i}]", np.asarray(keras.ops.convert_to_numpy(array))
    yield from _flat("history", trained.history)


def _variables(trained: Trained) -> Iterator[tuple[str, list[Any]]]:
    for i, model in enumerate((trained.model, *trained.others)):
        yield f"model {i}", model.variables
    for i, optimizer in enumerate(optimizers(trained)):
        yield f"optimizer {i}", optimizer.variables


def optimizers(trained: Trained) -> list[Any]:
    own = getattr(trained.model, "optimizer", None)
    return [*([own] if own is not None else []), *trained.optimizers]


def _flat(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if value is None:
        return
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _flat(f"{name}[{i}]", part)
    else:
        yield name, np.asarray(keras.ops.convert_to_numpy(value))


def framework_functions() -> dict[str, Any]:
    """The functions that are replaced while a step is tapped, as they are now."""
    found = {}
    for path, name in REPLACED[keras.backend.backend()]:
        try:
            thing: Any = importlib.import_module(path)
        except ModuleNotFoundError:
            module, _, owner = path.rpartition(".")
            thing = getattr(importlib.import_module(module), owner)
        found[f"{path}.{name}"] = getattr(thing, name)
    return found


def left_over(plain: Trained, watched: Trained) -> list[str]:
    """What fitscope left on the watched model that the unwatched one does not have."""
    found = []
    for mine, theirs in zip(_parts(plain), _parts(watched), strict=True):
        name = f"{type(theirs).__name__} {getattr(theirs, 'name', '')}"
        more = set(vars(theirs)) ^ set(vars(mine))
        found += [f"{name}: {key}" for key in sorted(more)]
        found += [f"{name}: {key}" for key, value in vars(theirs).items() if _ours(value)]
    return found


def _parts(trained: Trained) -> list[Any]:
    parts: list[Any] = []
    for model in (trained.model, *trained.others):
        parts += [*model._flatten_layers(), *model.metrics]
    for optimizer in optimizers(trained):
        parts += [optimizer, *filter(None, [getattr(optimizer, "inner_optimizer", None)])]
    return parts


def _ours(value: Any) -> bool:
    """Whether a value was made by fitscope: an object of its classes, or a function defined in it."""
    modules = (type(value).__module__, getattr(value, "__module__", None))
    return any(str(module).split(".")[0] == "fitscope" for module in modules)


def validated(trained: Trained) -> bool:
    """Whether the training ran a validation of Keras's own."""
    return isinstance(trained.history, dict) and any(str(key).startswith("val_") for key in trained.history)
