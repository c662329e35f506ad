"""Decides whether the compiled function of a model is the one that Keras makes, or the user's own.

A model may override `make_train_function`, and a program may wrap `model.train_function`. Such a function may do more than the step of
the model: count its calls, change the batch, run the step twice. A tapped step that replaces it would leave that out.
"""

from __future__ import annotations

from typing import Any

WHY = (
    "`{0}` is not the function that Keras makes, but one of your own (`make_{0}` is overridden, or the function was replaced), and "
    "fitscope cannot see inside it; override `{1}` instead to have the step recorded"
)
_INSIDE = ("python_function", "_torchdynamo_orig_callable", "__wrapped__", "plain")
#: packages that compile or wrap functions of others
_WRAPPERS = ("tensorflow", "torch", "jax", "jaxlib", "fitscope")


def is_users_own(function: Any) -> bool:
    """Whether a function that does the steps of a model is neither Keras's nor a framework's form of Keras's."""
    code = getattr(function, "__func__", function)
    module = getattr(code, "__globals__", {}).get("__name__") or type(code).__module__
    package = str(module).partition(".")[0]
    if package in _WRAPPERS:
        inside = next(
            (getattr(code, name) for name in _INSIDE if getattr(code, name, None) is not None), None
        )
        return inside is not None and is_users_own(inside)
    return package != "keras"
