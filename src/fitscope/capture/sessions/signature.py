"""The part of a `sess.run` call that decides what is executed: the operations, and the fed tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fitscope.capture.sessions.graph import Op


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call `run`. Equal signatures execute the same operations."""

    fetched: tuple[str, ...]  #: names of operations and tensors
    fed: frozenset[str]  #: names of tensors


def signature(graph: Any, fetches: Any, feed_dict: Any) -> Signature | None:
    """The signature of a call; None if it cannot be read, and then fitscope ignores the call."""
    try:
        fed = frozenset(_name(graph, key) for given in feed_dict or () for key in _leaves(given))
        return Signature(tuple(_name(graph, leaf) for leaf in _leaves(fetches)), fed)
    except Exception:
        return None


def fed_values(graph: Any, feed_dict: Any) -> dict[str, Any]:
    """The fed values, by name. Composite tensors (sparse ones) are left out."""
    return {
        _name(graph, key): value
        for key, value in (feed_dict or {}).items()
        if len(leaves := list(_leaves(key))) == 1 and leaves[0] is key
    }


def operations(graph: Any, sig: Signature) -> list[Op]:
    """The operations that a call names. A fed tensor is not computed."""
    return [
        graph.as_graph_element(name).op if ":" in name else graph.get_operation_by_name(name)
        for name in sig.fetched
        if name not in sig.fed
    ]


def _name(graph: Any, leaf: Any) -> str:
    return str(graph.as_graph_element(leaf, allow_tensor=True, allow_operation=True).name)


def _leaves(fetches: Any) -> Iterator[Any]:
    """The tensors and operations in the nested argument of `run`."""
    if fetches is None:
        return
    if isinstance(fetches, Mapping):
        for key in fetches:
            yield from _leaves(fetches[key])
    elif isinstance(fetches, list | tuple):
        for item in fetches:
            yield from _leaves(item)
    elif hasattr(fetches, "indices") and hasattr(fetches, "values"):  # IndexedSlices, SparseTensor
        yield from _leaves([fetches.indices, fetches.values, fetches.dense_shape])
    elif hasattr(fetches, "row_splits") and hasattr(fetches, "flat_values"):  # RaggedTensor
        yield from _leaves([fetches.flat_values, *fetches.nested_row_splits])
    elif hasattr(fetches, "__attrs_attrs__"):
        yield from _leaves([getattr(fetches, field.name) for field in fetches.__attrs_attrs__])
    else:
        yield fetches
