"""Finds limits before the first step of a training: why fitscope cannot watch its steps, and which settings have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fitscope.capture.backends import Adapter
from fitscope.capture.peers import together

NO_STOP = (
    'Expected a training in one process for on_finding="stop". Received: one in several, which must all end at the same step. '
    "The training is not stopped; findings are in the run"
)
IGNORED = (
    "Expected keras.distribution on the JAX backend. Received: the {} backend, on which Keras ignores it: every process trains by "
    "itself, on one device. Use the JAX backend, or leave it out"
)


def why_not(adapter: Adapter, model: Any, about: Any) -> str | None:
    """Why no step of this training can be watched, or None. All processes must agree on `about`."""
    found = adapter.why_not(model)
    return together(adapter.name, about) if found is None and adapter.lockstep() else found


def without_effect(adapter: Adapter, model: Any, on_finding: Any) -> Iterator[str]:
    """The settings that have no effect in this training."""
    from keras.distribution import distribution

    ignored = adapter.without_effect(model)
    if ignored is not None:
        yield ignored
    if adapter.lockstep() and on_finding == "stop":
        yield NO_STOP
    if adapter.name != "jax" and distribution() is not None:
        yield IGNORED.format(adapter.name)
