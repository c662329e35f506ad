"""The adapters to the frameworks. Only modules here import a framework, and only when a model of it is used."""

from __future__ import annotations

import importlib
from functools import cache

from fitscope.capture.backends._base import Adapter, Ask, Call, Harvest, Own, Program, TapFailed
from fitscope.errors import ModelError, one_of

#: Keras backend → the module whose `ADAPTER` serves it.
ADAPTERS = {
    "jax": "fitscope.capture.backends.jax",
    "tensorflow": "fitscope.capture.backends.tensorflow",
    "torch": "fitscope.capture.backends.torch",
}


@cache
def adapter(backend: str) -> Adapter:
    """The adapter for a Keras backend, imported on demand."""
    if backend not in ADAPTERS:
        raise ModelError(
            "a Keras backend that fitscope can tap",
            f"{backend!r}",
            f"{one_of(ADAPTERS, backend)}; choose one with KERAS_BACKEND",
        )
    found: Adapter = importlib.import_module(ADAPTERS[backend]).ADAPTER
    return found


__all__ = ["Adapter", "Ask", "Call", "Harvest", "Own", "Program", "TapFailed", "adapter"]
