"""The adapters to the frameworks. fitscope imports an adapter, and so its framework, only when a model of that backend is used."""

from __future__ import annotations

import importlib
from functools import cache

from fitscope._compat import unseen, versions
from fitscope.capture.backends._base import Adapter, Ask, Call, Own, Program, TapFailed
from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.self_test import failure
from fitscope.errors import ModelError, one_of
from fitscope.pipeline.troubles import warn

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
    try:
        found: Adapter = importlib.import_module(ADAPTERS[backend]).ADAPTER
    except Exception as error:  # for example, this version of the framework lacks a name
        raise AdapterError(
            f"fitscope cannot be used with {versions('keras', backend) or backend}: its adapter does not load "
            f"({type(error).__name__}: {error}). Nothing is recorded. Upgrade fitscope, or use older versions of these"
        ) from error
    new = unseen("keras", backend)
    if new:
        wrong = failure(backend)
        if wrong is not None:
            raise AdapterError(
                f"fitscope was never tested with {new}, and its self-test fails here: {wrong}. Nothing is recorded. "
                "Upgrade fitscope, or use older versions of these"
            )
        warn(
            f"fitscope was never tested with {new}. Its self-test passes, so it records, and compares its first captured "
            "steps with your own program as always: run.identity has the result, run.unseen what could not be seen"
        )
    return found


class AdapterError(RuntimeError):
    """The adapter of a backend cannot be loaded. fitscope reports it and never raises it into a training."""


__all__ = ["Adapter", "AdapterError", "Ask", "Call", "Harvest", "Own", "Program", "TapFailed", "adapter"]
