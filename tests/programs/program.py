"""The interface between a program and the harness: what a program is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Trained:
    """Everything a training leaves behind. The harness compares all of it bit for bit."""

    model: Any
    history: Any = None  #: numbers, in any nesting of dicts and lists
    optimizers: tuple[Any, ...] = ()  #: those that `model.optimizer` does not name
    others: tuple[Any, ...] = ()  #: more models, such as a target network
    arrays: list[Any] = field(default_factory=list)  #: state outside of any model, as a stateless loop has it


class Unwatched:
    """Stands in for a scope in the training that nobody watches: it does nothing."""

    def attach(self, model: Any, *, optimizer: Any = None) -> Any:
        return nullcontext(self)

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def epoch_end(self) -> None:
        pass
