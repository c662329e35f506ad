"""Joins the parts of one tensor that several replicas handed over, on the writer thread.

A replica returns its rows in one of the forms of `handover`: all, some, or statistics. The result has the same form,
as if one device had computed all rows; so nothing after this depends on the number of replicas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fitscope.pipeline.handover import HostAdapter, ReplicaRows, Thin
from fitscope.reduce import in_step

Array = np.ndarray[Any, Any]


def together(value: ReplicaRows, adapter: HostAdapter, samples: int | None = None) -> Any:
    """The tensor of all replicas: an array, a `Thin`, or a dictionary. `samples` is the number of kept ones."""
    parts = value.parts
    if isinstance(parts[0], dict):
        return _reduced([_on_host(part, adapter) for part in parts], samples)
    if any(isinstance(part, Thin) for part in parts):  # a replica with few rows returns all of them
        thin = [_thin(part, adapter) for part in parts]
        return Thin(np.concatenate([part.rows for part in thin]), _shape([part.shape for part in thin]))
    return np.concatenate([adapter.to_numpy(part) for part in parts])


def _thin(part: Any, adapter: HostAdapter) -> Thin:
    if isinstance(part, Thin):
        return Thin(adapter.to_numpy(part.rows), adapter.to_numpy(part.shape))
    array = adapter.to_numpy(part)
    return Thin(array.reshape(len(array), -1), np.array(array.shape, np.int32))


def _shape(shapes: list[Array]) -> Array:
    """The shape of all rows."""
    whole = np.array(shapes[0])
    whole[0] = sum(int(shape[0]) for shape in shapes)
    return whole


def _on_host(part: dict[str, Any], adapter: HostAdapter) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in part.items():
        if key == "rows":
            found[key] = value  # unchanged: it may be a `Thin`
        elif isinstance(value, tuple | list):
            found[key] = [adapter.to_numpy(item) for item in value]
        else:
            found[key] = adapter.to_numpy(value)
    if "rows" in found:
        found["rows"] = _thin(found["rows"], adapter)
    return found


def _reduced(parts: list[dict[str, Any]], samples: int | None) -> dict[str, Any]:
    """The values that the step itself computed from the rows of each replica."""
    found: dict[str, Any] = {"shape": _shape([part["shape"] for part in parts]), "like": parts[0]["like"]}
    if "stats" in parts[0]:
        found["stats"] = in_step.merge([part["stats"] for part in parts])
    if "tensor" in parts[0]:
        found["tensor"] = np.concatenate([part["tensor"] for part in parts])[:samples]
    if "active" in parts[0]:
        found["active"] = np.sum([part["active"] for part in parts], axis=0)
    if "rows" in parts[0]:
        rows = [part["rows"] for part in parts]
        found["rows"] = Thin(np.concatenate([one.rows for one in rows]), _shape([one.shape for one in rows]))
    if "moments" in parts[0]:
        found["moments"] = _moments([(*part["moments"], int(part["shape"][0])) for part in parts])
    return found


def _moments(parts: list[tuple[Array, Array, int]]) -> tuple[Array, Array]:
    """The mean of each element over all rows, and the squared distances from it."""
    known = [part for part in parts if part[2] > 0] or parts[:1]
    mean, m2, n = known[0]
    for other, more, m in known[1:]:
        delta = other - mean
        mean, m2 = mean + delta * (m / (n + m)), m2 + more + delta**2 * (n * m / (n + m))
        n += m
    return mean, m2
