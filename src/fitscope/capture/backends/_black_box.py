"""The contract between a black box and a framework: the state, the batches and the randomness of the model's training step.

While the training runs, a keeper copies them to this machine's memory. For a replay, it puts them back and calls the step with
them. A step is the compiled function of the model (`train_function`); a keeper never changes what that function does.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fitscope.capture.backends._base import Call
from fitscope.store.structure import Absent

Array = np.ndarray[Any, Any]

LARGEST_LOG = 1024  #: elements of a log; a larger result of a step is no log


class Keeper(ABC):
    """Keeps and restores the steps of one compiled model. One thread at a time may call it."""

    missing: Any = None  #: stands for a part of a batch that the framework marks as absent

    def __init__(self, model: Any, optimizers: Sequence[Any] = ()) -> None:
        self.model = model
        self._optimizers = [o for o in optimizers if o is not getattr(model, "optimizer", None)]
        self._variables = self.variables()

    # ---- while the training runs -----------------------------------------------------------------------------

    def why_not(self) -> str | None:
        """The reason why the steps of this model cannot be kept, or None."""
        return None

    @abstractmethod
    def held(self, call: Call) -> tuple[list[Any], Call, dict[str, Any]]:
        """The batches that the step will use, the arguments that give them to it, and facts for a replay.

        Raises the errors of drawing. No batches: they cannot be kept.
        """

    @abstractmethod
    def state(self, call: Call) -> list[Array]:
        """A copy of the value of every variable before the step."""

    @abstractmethod
    def changed(self, call: Call, first: bool) -> dict[int, Array] | None:
        """The variables assigned since the last step, by number. None if that is unknown, or is nearly all of it.

        `first` is True before the first batch of an epoch.
        """

    @abstractmethod
    def ran(self, result: Any) -> Any:
        """Takes the result of the step, and returns its logs."""

    def random(self) -> dict[str, Array]:
        """The state of the generators of this process, if the step is Python that may draw from them."""
        if not self.eager:
            return {}
        _, words, place, has, cached = np.random.get_state()
        _, numbers, gauss = random.getstate()
        return {
            "numpy": np.array(words, np.uint32),
            "numpy_place": np.array([place, has, cached], np.float64),
            "python": np.array(numbers, np.uint64),
            "python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        }

    @property
    def eager(self) -> bool:
        """Whether the step runs as Python."""
        return bool(self.model.run_eagerly)

    def array(self, leaf: Any) -> Array | Absent:
        """A copy of a part of a batch in this machine's memory."""
        found = self.to_numpy(leaf)
        if found.dtype.kind == "O":  # text
            found = found.astype("S")
        if found.dtype.kind == "U":
            found = np.char.encode(found, "utf-8")
        return np.array(found, copy=True)

    @abstractmethod
    def to_numpy(self, tensor: Any) -> Array:
        """The values of a tensor, or of any object that the user passed instead of one."""

    # ---- for a replay ----------------------------------------------------------------------------------------

    def variables(self) -> list[tuple[str, Any]]:
        """Every variable that the step may change, with its group."""
        model, optimizer = self.model, getattr(self.model, "optimizer", None)
        groups = {
            "trainable": model.trainable_variables,
            "non_trainable": model.non_trainable_variables,
            "optimizer": [] if optimizer is None else optimizer.variables,
            "metrics": model.metrics_variables,
            "optimizers": [variable for other in self._optimizers for variable in other.variables],
        }
        return [(group, variable) for group, some in groups.items() for variable in some]

    @abstractmethod
    def build(self, batch: Any, facts: Mapping[str, Any]) -> None:
        """Builds what the first step would build, as Keras does before it."""

    @abstractmethod
    def tensor(self, array: Array, *, given: str) -> Any:
        """A part of a batch as the step takes it; `given` says how the user passed it: "numpy" or "tensor"."""

    @abstractmethod
    def call(self, batches: list[Any], facts: Mapping[str, Any]) -> Call:
        """The arguments of the step for these batches, on the model's current state."""

    def adopt(self, result: Any) -> Any:
        """Puts the result of the step into the model, and returns its logs."""
        return self.ran(result)

    def values(self) -> list[Array]:
        """The current value of every variable, copied."""
        return [np.array(self.to_numpy(variable.value), copy=True) for _, variable in self.variables()]

    def put(self, values: Mapping[int, Array]) -> None:
        """Sets variables, by number."""
        known = self.variables() if values else []
        for number, value in values.items():
            known[number][1].assign(value)

    def set_random(self, states: Mapping[str, Array]) -> None:
        """Puts the generators of this process into these states."""
        if "numpy" in states:
            place, has, cached = states["numpy_place"]
            known = ("MT19937", states["numpy"], int(place), int(has), float(cached))
            np.random.set_state(known)
            gauss = states["python_gauss"]
            random.setstate(
                (3, tuple(int(n) for n in states["python"]), float(gauss[0]) if gauss.size else None)
            )


def logs_of(result: Any, size: Any) -> dict[str, Any] | None:
    """The small values that a step returned, by name; None if it did not return a dict."""
    if not isinstance(result, Mapping):
        return None
    return {str(name): value for name, value in result.items() if size(value) <= LARGEST_LOG}


def few(changed: dict[int, Array], known: Sequence[Any]) -> dict[int, Array] | None:
    """The changes, unless they are most of the state: then a copy of all of it is as cheap."""
    return changed if 2 * len(changed) <= len(known) or len(known) < 4 else None
