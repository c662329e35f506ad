"""Keeps the steps of a model on PyTorch. A step changes its variables in place.

A tensor counts the changes made in place. So a variable was assigned between two steps if its count or its tensor changed.
The step is Python and may draw from torch's own generators, so their state is kept for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fitscope.capture.backends._base import Call
from fitscope.capture.backends._black_box import Array, Keeper, few, logs_of


class TorchKeeper(Keeper):
    _left: list[tuple[int, int]] | None = None  # the tensors after the newest step, and their counts

    @property
    def eager(self) -> bool:
        return bool(self.model.run_eagerly or not self.model.jit_compile)

    def held(self, call: Call) -> tuple[list[Any], Call, dict[str, Any]]:
        given = call.args[0] if call.args else None  # a list of one batch
        return list(given[:1]) if isinstance(given, list | tuple) else [], call, {}

    def state(self, call: Call) -> list[Array]:  # noqa: ARG002
        self._variables = self.variables()
        return [np.array(self.to_numpy(variable.value), copy=True) for _, variable in self._variables]

    def changed(self, call: Call, first: bool) -> dict[int, Array] | None:  # noqa: ARG002
        now = self._counts()
        if self._left is None or len(self._left) != len(now):
            return None
        new = [n for n, (one, other) in enumerate(zip(now, self._left, strict=True)) if one != other]
        if few(dict.fromkeys(new, np.empty(0)), now) is None:
            return None
        return {n: np.array(self.to_numpy(self._variables[n][1].value), copy=True) for n in new}

    def ran(self, result: Any) -> Any:
        self._left = self._counts()
        return logs_of(
            result, lambda value: value.numel() if isinstance(value, torch.Tensor) else np.size(value)
        )

    def random(self) -> dict[str, Array]:
        states = {"torch": torch.get_rng_state().numpy().copy()}
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state().numpy().copy()
        return {**super().random(), **states}

    def to_numpy(self, tensor: Any) -> Array:
        if not isinstance(tensor, torch.Tensor):
            return np.asarray(tensor)
        from fitscope.capture.backends.torch import ADAPTER

        return ADAPTER.to_numpy(tensor)

    def _counts(self) -> list[tuple[int, int]]:
        values = [variable.value for _, variable in self._variables]
        return [(id(value), value._version) for value in values]

    # ---- for a replay ----------------------------------------------------------------------------------------

    def build(self, batch: Any, facts: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.model._symbolic_build(data_batch=batch)
        self.model.make_train_function()

    def tensor(self, array: Array, *, given: str) -> Any:
        if given == "numpy":
            return array
        from keras import ops

        return ops.convert_to_tensor(array)

    def call(self, batches: list[Any], facts: Mapping[str, Any]) -> Call:  # noqa: ARG002
        return Call(([batches[0]],), {})

    def set_random(self, states: Mapping[str, Array]) -> None:
        super().set_random(states)
        if "torch" in states:
            torch.set_rng_state(torch.from_numpy(states["torch"].copy()))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(states["cuda"].copy()))
