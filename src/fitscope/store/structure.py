"""Stores the nested form of a batch as JSON: tuples, lists and dicts around arrays. A stored batch comes back unchanged.

An array is `{"array": n}`, its number in a list next to the form. Python numbers, strings and None stand for themselves. Nothing is
pickled, and reading a form calls no code that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

DEEPEST = 32

Form = Any  #: JSON


def taken_apart(batch: Any, array: Callable[[Any], Any], leaves: list[Any]) -> Form:
    """The form of a batch. It appends the leaves to a list, each converted by `array`, which raises if one cannot be stored."""

    def form(value: Any, depth: int) -> Form:
        if depth > DEEPEST:
            raise ValueError(f"the batch is nested more than {DEEPEST} deep")
        if type(value) is float:
            return {"float": value.hex()}  # JSON has no NaN
        if value is None or isinstance(value, bool | int | str):
            return {"value": value}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise TypeError("a batch has a dict whose keys are not text")
            return {"dict": [[key, form(inner, depth + 1)] for key, inner in value.items()]}
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [form(inner, depth + 1) for inner in value]}
        leaf = array(value)
        if isinstance(leaf, Absent):
            return {"missing": True}
        leaves.append(leaf)
        return {"array": len(leaves) - 1}

    return form(batch, 0)


class Absent:
    """A part of a batch that the framework marks as absent, other than by None."""


def put_together(form: Form, leaves: Sequence[Any], missing: Any = None, depth: int = 0) -> Any:
    """The batch of a form and its leaves. ValueError if the form is invalid."""
    if not isinstance(form, dict) or len(form) != 1 or depth > DEEPEST:
        raise ValueError("it is not the form of a batch")
    ((kind, inside),) = form.items()
    if kind == "array" and type(inside) is int and 0 <= inside < len(leaves):
        return leaves[inside]
    if kind == "value" and (inside is None or isinstance(inside, bool | int | str)):
        return inside
    if kind == "float" and isinstance(inside, str):
        return float.fromhex(inside)
    if kind == "missing":
        return missing
    if kind in ("tuple", "list") and isinstance(inside, list):
        parts = [put_together(one, leaves, missing, depth + 1) for one in inside]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "dict" and isinstance(inside, list):
        pairs = [
            pair for pair in inside if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
        ]
        if len(pairs) == len(inside):
            return {key: put_together(one, leaves, missing, depth + 1) for key, one in pairs}
    raise ValueError("it is not the form of a batch")
