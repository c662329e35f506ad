"""The objective of a model as plain data: its losses, metrics and optimizer.

It comes from the arguments of `compile`, because Keras resolves names and structures only in the first step.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Json = dict[str, Any]

#: Short names of losses, as Keras takes them.
_ALIASES = {
    "bce": "BinaryCrossentropy", "BCE": "BinaryCrossentropy", "mse": "MeanSquaredError", "MSE": "MeanSquaredError",
    "mae": "MeanAbsoluteError", "MAE": "MeanAbsoluteError", "mape": "MeanAbsolutePercentageError",
    "MAPE": "MeanAbsolutePercentageError", "msle": "MeanSquaredLogarithmicError", "MSLE": "MeanSquaredLogarithmicError",
    "kld": "KLDivergence", "KLD": "KLDivergence", "kl_divergence": "KLDivergence", "logcosh": "LogCosh", "log_cosh": "LogCosh",
    "huber_loss": "Huber", "ctc": "CTC",
}  # fmt: skip

#: Losses of classes, and whether their targets are labels or one number for each class.
CLASSIFYING = {
    "SparseCategoricalCrossentropy": "labels", "CategoricalCrossentropy": "one-hot", "BinaryCrossentropy": "binary",
    "CategoricalFocalCrossentropy": "one-hot", "BinaryFocalCrossentropy": "binary", "CategoricalHinge": "one-hot",
    "KLDivergence": "one-hot",
}  # fmt: skip

_NUMBERS = (
    "epsilon", "clipnorm", "clipvalue", "global_clipnorm", "weight_decay", "momentum", "nesterov", "beta_1", "beta_2",
    "rho", "amsgrad", "centered", "use_ema", "ema_momentum", "gradient_accumulation_steps", "loss_scale_factor",
    "l1_regularization_strength", "l2_regularization_strength", "l2_shrinkage_regularization_strength",
)  # fmt: skip


def losses_of(model: Any, outputs: list[str]) -> list[Json]:
    """The losses passed to `compile`, one for each output that has one."""
    given = getattr(model, "loss", None)
    if given is None:
        return []
    flat = list(_flat(given, outputs))
    if len(flat) == 1 and flat[0][0] is None and len(outputs) > 1:  # one loss for all outputs
        return [_loss(name, flat[0][1]) for name in outputs]
    only = outputs[0] if len(outputs) == 1 else None
    return [_loss(only if name is None else name, loss) for name, loss in flat]


def metrics_of(model: Any) -> list[str]:
    """The names of the metrics passed to `compile`."""
    given = getattr(model, "_compile_metrics", None)
    found = [getattr(given, "_user_metrics", None), getattr(given, "_user_weighted_metrics", None)]
    return [str(_name(metric)) for each in found for _, metric in _flat(each, [])]


def optimizer_of(optimizer: Any) -> Json | None:
    """The settings of an optimizer; None if there is none."""
    if optimizer is None:
        return None
    inner = getattr(optimizer, "inner_optimizer", None)  # LossScaleOptimizer wraps the real one
    own = inner if inner is not None else optimizer
    found: Json = {"class": type(own).__name__, "name": plain(getattr(own, "name", None))}
    found["learning_rate"] = _learning_rate(own)
    for name in _NUMBERS:
        found[name] = plain(_attribute(own, name))
    found["loss_scale"] = found.pop("loss_scale_factor")
    if inner is not None:
        found["loss_scale"] = plain(_attribute(optimizer, "initial_scale"))
        found["dynamic_loss_scale"] = True
    return found


def _learning_rate(optimizer: Any) -> Any:
    rate = _attribute(optimizer, "_learning_rate")
    rate = _attribute(optimizer, "learning_rate") if rate is None else rate
    if hasattr(rate, "get_config") and callable(rate):  # a schedule
        config = _called(rate.get_config) or {}
        return {
            "class": type(rate).__name__,
            **{key: plain(value) for key, value in config.items() if key != "name"},
        }
    if callable(rate):
        return {"class": str(_name(rate))}
    number = _called(lambda: float(rate))
    if number is None:
        number = _called(lambda: float(rate.numpy()))
    short = np.float32(np.nan if number is None else number)  # as the user wrote it: not 0.0010000000475
    return plain(float(str(short)) if short == number else number)


def _loss(output: str | None, loss: Any) -> Json:
    bound = loss.keywords if isinstance(loss, functools.partial) else getattr(loss, "_fn_kwargs", None) or {}
    name = str(_name(loss))
    kind = type(loss).__name__ if hasattr(loss, "reduction") else _ALIASES.get(name, _camel(name))
    if kind == "LossFunctionWrapper":
        kind = _ALIASES.get(name, _camel(str(_name(getattr(loss, "fn", name)))))
    logits = getattr(loss, "from_logits", bound.get("from_logits"))
    return {
        "output": output,
        "class": kind,
        "name": name,
        "from_logits": plain(False if logits is None and "Crossentropy" in kind else logits),
        "reduction": plain(getattr(loss, "reduction", "sum_over_batch_size")),
        "label_smoothing": plain(getattr(loss, "label_smoothing", bound.get("label_smoothing"))),
        "ignore_class": plain(getattr(loss, "ignore_class", bound.get("ignore_class"))),
        "classification": CLASSIFYING.get(kind),
    }


def _flat(given: Any, names: list[str], path: str | None = None) -> Iterator[tuple[str | None, Any]]:
    """The items of a structure that `compile` takes, each with its output if the structure names it."""
    if given is None:
        return
    if isinstance(given, Mapping) and "class_name" not in given:
        for key, inner in given.items():
            yield from _flat(inner, [], str(key) if path is None else f"{path}/{key}")
    elif isinstance(given, list | tuple):
        for i, inner in enumerate(given):
            name = names[i] if len(names) == len(given) else path if path is not None else str(i)
            yield from _flat(inner, [], name if len(given) > 1 or names else path)
    else:
        yield path, given


def _name(thing: Any) -> Any:
    if isinstance(thing, str):
        return thing
    if isinstance(thing, functools.partial):
        return _name(thing.func)
    if isinstance(thing, Mapping):
        return thing.get("class_name")
    return getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__


def _camel(name: str) -> str:
    return (
        name
        if not re.fullmatch(r"[a-z0-9_]+", name)
        else "".join(part.capitalize() for part in name.split("_"))
    )


def _attribute(thing: Any, name: str) -> Any:
    return _called(lambda: getattr(thing, name, None))


def _called(ask: Any) -> Any:
    try:
        return ask()
    except Exception:
        return None


def plain(value: Any) -> Any:
    """The value as JSON; None if JSON cannot represent it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():  # a NumPy number
        return plain(_called(item))
    return None
