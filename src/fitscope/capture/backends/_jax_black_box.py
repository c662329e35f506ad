"""Keeps the steps of a model on JAX. The state passes through the step as its argument and its result.

An array never changes. So a variable was assigned between two steps if and only if it is not the object that the step returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fitscope.capture.backends._base import Call
from fitscope.capture.backends._black_box import Array, Keeper, few, logs_of
from fitscope.capture.backends._jax_second_run import held_batches


class JaxKeeper(Keeper):
    _left: list[Any] | None = None  # the state that the newest step returned

    def why_not(self) -> str | None:
        from keras.distribution import distribution

        if distribution() is not None:
            return "the model trains under keras.distribution, whose state is spread over devices"
        if self._optimizers:
            return "the model has several optimizers, and Keras passes only one through a step on JAX"
        return None

    def held(self, call: Call) -> tuple[list[Any], Call, dict[str, Any]]:
        held = held_batches(self.model, call)
        return held.batches, held.call(), {}

    def state(self, call: Call) -> list[Array]:
        leaves = _flat(call.args[0])
        return [np.array(value, copy=True) for value in jax.device_get(leaves)]

    def changed(self, call: Call, first: bool) -> dict[int, Array] | None:  # noqa: ARG002
        leaves, left = _flat(call.args[0]), self._left
        if left is None or len(left) != len(leaves):
            return None
        new = [n for n, (one, other) in enumerate(zip(leaves, left, strict=True)) if one is not other]
        if few(dict.fromkeys(new, np.empty(0)), leaves) is None:
            return None
        return {n: np.array(leaves[n], copy=True) for n in new}

    def ran(self, result: Any) -> Any:
        logs, state = result
        self._left = _flat(state)
        return logs_of(logs, np.size)

    def to_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    # ---- for a replay ----------------------------------------------------------------------------------------

    def build(self, batch: Any, facts: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.model._symbolic_build(data_batch=batch)
        self.model.make_train_function()

    def tensor(self, array: Array, *, given: str) -> Any:
        return array if given == "numpy" else jax.numpy.asarray(array)

    def call(self, batches: list[Any], facts: Mapping[str, Any]) -> Call:  # noqa: ARG002
        names = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
        state = self.model._get_jax_state(**dict.fromkeys(names, True), purge_model_variables=False)
        return Call((state, iter(batches)), {})

    def adopt(self, result: Any) -> Any:
        for (_, variable), value in zip(self.variables(), _flat(result[1]), strict=True):
            variable.assign(value)
        return logs_of(result[0], np.size)


def _flat(state: Any) -> list[Any]:
    return [leaf for part in state for leaf in part]
