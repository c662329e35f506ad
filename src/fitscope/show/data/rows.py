"""The rows of the picture: the model's layers in order, the input on top, and the sites of each.

A row is one call of a layer. Inputs, taps and predictions have separate rows above and below. Sites of unknown kinds are not in
the picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fitscope.diagnose.network import Network
from fitscope.sites import OF_LAYERS, OF_WEIGHTS, TRAIN, Site

#: Rows before the first layer and after the last, and the kind that each counts as.
BEFORE = ("inputs",)
AFTER = ("predictions", "targets")

_MARKS = ("_", ".")  #: that end the part of a name that layers share
_MOST_ENDS = 200  #: places where the name of a layer may end in that of a row


@dataclass(frozen=True, slots=True)
class Row:
    """One row, with its sites by kind."""

    name: str  #: the path of a layer, `dense#2` for a second call; else the site's own name
    type: str  #: the class of the layer, or the kind of another row
    block: str = ""  #: the block it belongs to, for the brackets
    shape: str = ""  #: the shape of the output
    after: tuple[str, ...] = ()  #: the rows whose outputs it takes
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def rows_of(model: Any, sites: Iterable[str], configuration: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows for these sites, in the model's order. `configuration` has the connections through operations that are not layers."""
    described = _described(model)
    owners = {path: name for name, layer in described.items() for path in layer.get("weights") or ()}
    found: dict[str, dict[str, list[str]]] = {}
    for site in sorted(sites):
        facts = Site.parse(site)
        row = _row(facts, owners)
        if row is not None:
            name, kind = row
            kind = kind if facts.in_pass == TRAIN else f"{facts.in_pass}/{kind}"
            found.setdefault(name, {}).setdefault(kind, []).append(site)
    order = {name: i for i, name in enumerate(described)}
    names = sorted(found, key=lambda name: _place(name, order))
    after = _connections(names, described, configuration)
    shared = Counter((path.partition(mark)[0], mark) for path in described for mark in _MARKS if mark in path)
    return [_made(name, found[name], described, order, after.get(name, ()), shared) for name in names]


def _connections(
    names: list[str], described: Mapping[str, dict[str, Any]], configuration: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """For each row, the rows whose outputs it takes, directly or through layers that were not recorded. Empty if the model is no graph."""
    try:
        network = Network({"layers": [*described.values()]}, configuration)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # a forged description loses the connections, not the rows
        return {}
    if not network.graph:
        return {}
    layers = frozenset(name for name in names if name in described)
    inputs = tuple(name for name in names if name.partition("/")[0] in BEFORE)
    found = {name: tuple(network.producers(name, layers)) for name in layers}
    for name in layers:
        if not found[name] and network.inbound(name):  # an input feeds it
            found[name] = inputs
    outputs = tuple(name for name in network.outputs if name in layers)
    if "predictions" in names:
        found["predictions"] = outputs
    return found


def _described(model: Any) -> dict[str, dict[str, Any]]:
    layers = model.get("layers", ()) if isinstance(model, dict) else ()
    return {
        str(layer["path"]): layer for layer in layers or () if isinstance(layer, dict) and "path" in layer
    }


def _row(site: Site, owners: Mapping[str, str]) -> tuple[str, str] | None:
    """The row of a site, and its kind there."""
    base, kind, name = site.base, site.kind, site.path
    if base in OF_LAYERS and name:
        return name, kind
    if base in OF_WEIGHTS and name:
        return owners.get(name, site.layer or name), kind
    if base in (*BEFORE, *AFTER):  # several inputs have separate names
        return (f"{base}/{name}" if name else base), kind.replace(base, "activations")
    if base == "taps" and name:
        return f"taps/{name}", kind.replace(base, "activations")
    return None


def _owner(name: str, order: Mapping[str, int]) -> str | None:
    """The layer at the start of a row's name: the whole name, or the part before `#2`, `/key` or `[0]`."""
    ends = (n for n in range(len(name), -1, -1) if n == len(name) or name[n] in "#/[")
    return next((name[:n] for n in islice(ends, _MOST_ENDS) if name[:n] in order), None)


def _place(name: str, order: Mapping[str, int]) -> tuple[int, str]:
    owner = _owner(name, order)
    if owner is not None:
        return order[owner], name
    first = name.partition("/")[0]
    if first in BEFORE:
        return -1, name
    ends = ("taps", *AFTER)
    return len(order) + (1 + ends.index(first) if first in ends else 0), name


def _made(
    name: str,
    sites: Mapping[str, list[str]],
    described: Mapping[str, dict[str, Any]],
    order: Mapping[str, int],
    after: tuple[str, ...],
    shared: Mapping[tuple[str, str], int],
) -> Row:
    owner = _owner(name, order)
    kinds = {kind: tuple(of) for kind, of in sites.items()}
    if owner is None:
        first = name.partition("/")[0]
        known = first in (*BEFORE, *AFTER, "taps")
        return Row(name, first if known else "", "taps" if first == "taps" else "", after=after, sites=kinds)
    layer = described[owner]
    shape = layer.get("output_shape")
    return Row(
        name,
        str(layer.get("type") or ""),
        _block(name, shared),
        " × ".join("?" if n is None else str(n) for n in shape[1:]) if isinstance(shape, list) else "",
        after,
        kinds,
    )


def _block(name: str, shared: Mapping[tuple[str, str], int]) -> str:
    """The block of a layer: the model that contains it, or the part of its name that it shares with its neighbours.

    `shared` counts the layers by the first part of their name and the mark that ends it.
    """
    outer, slash, _ = name.rpartition("/")
    if slash:
        return outer
    for mark in _MARKS:
        first, found, _ = name.partition(mark)
        if found and shared.get((first, mark), 0) > 1:
            return first
    return ""
