"""Selects parts of a model by name, by a glob on name or path, by class, or by the layer itself.

All functions that take layers from the user share it. A selector that matches nothing is an error that lists the layers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any, TypeVar

from fitscope.errors import WatchError, one_of
from fitscope.plan.anatomy import LayerPart, WeightPart

Part = TypeVar("Part", LayerPart, WeightPart)


def select(who: str, selectors: Iterable[Any], parts: list[Part]) -> list[Part]:
    """The parts that the selectors match, in order. `who` is the caller's name for the error."""
    found: list[Part] = []
    for selector in selectors:
        matching = [part for part in parts if _matches(selector, part) and not _looped(part)]
        if not matching:
            names = [part.path for part in parts if not _looped(part)]
            inside = next((part for part in parts if _matches(selector, part)), None)
            if inside is not None:
                raise WatchError(
                    f"{who} to name a layer that runs once in a step",
                    f"{shown(selector)}, which {_looped(inside)!r} runs once per time step",
                    f"Watch {_looped(inside)!r}: with return_sequences=True its output holds all time steps",
                )
            raise WatchError(
                f"{who} to name a layer of the model",
                shown(selector),
                one_of(names, selector if isinstance(selector, str) else "", limit=40),
            )
        found.extend(matching)
    return found


def is_input(part: LayerPart) -> bool:
    """Whether a part is an input layer, which computes nothing: its data is the site `inputs`."""
    return type(part.layer).__name__ == "InputLayer"


def shown(selector: Any) -> str:
    """A selector as shown in a message or a run."""
    if isinstance(selector, str):
        return repr(selector)
    return selector.__name__ if isinstance(selector, type) else getattr(selector, "name", repr(selector))


def _matches(selector: Any, part: LayerPart | WeightPart) -> bool:
    owner = part if isinstance(part, LayerPart) else part.owner
    if isinstance(selector, str):
        names = {part.path, owner.path, getattr(owner.layer, "name", owner.path)}
        return any(fnmatch.fnmatchcase(name, selector) for name in names)
    if isinstance(selector, type):
        return isinstance(owner.layer, selector)
    return owner.layer is selector


def _looped(part: LayerPart | WeightPart) -> str:
    return part.looped if isinstance(part, LayerPart) else ""  # a weight has one value, however many uses
