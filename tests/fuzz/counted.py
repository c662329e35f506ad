"""What all campaigns of `make fuzz` have come to: `counts.json` next to this file, and its table in docs/reliability.md.

A model counts once, by its seed. One that failed does not count: what it showed is mended, and its seed is tried again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz.layers import drawable
from ledger import put_into, stretches, within

COUNTS = Path(__file__).with_name("counts.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
ASKED = {"jax": 1000, "tensorflow": 500, "torch": 500}  #: models of a whole campaign
NAMES = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
IDENTITIES = ("proven", "twin", "not provable")

Counts = dict[str, Any]


def added(counts: Counts, results: Iterable[dict[str, Any]]) -> Counts:
    """The counts of one backend with these results in them."""
    seeds = counts.get("seeds", [])
    new = [one for one in results if one["outcome"] != "failed" and not within(seeds, one["seed"])]
    layers = {name for one in new for name in (one["must"], *one["layers"])}
    return {
        "models": counts.get("models", 0) + len(new),
        **{key: counts.get(key, 0) + _of(new, "outcome", key) for key in ("equal", "unrepeatable")},
        **{key: counts.get(key, 0) + _of(new, "identity", key) for key in IDENTITIES},
        "cpu_hours": round(counts.get("cpu_hours", 0.0) + sum(one.get("cpu", 0.0) for one in new) / 3600, 2),
        "layers": sorted(layers.union(counts.get("layers", ()))),
        "seeds": stretches([*seeds, *([one["seed"], one["seed"]] for one in new)]),
    }


def _of(results: list[dict[str, Any]], key: str, value: str) -> int:
    return sum(one.get(key) == value for one in results)


def table(counts: dict[str, Counts]) -> str:
    rows = [
        "| backend | asked | models | bit-identical | differ without a scope, too | proven | twin | not provable | layers of Keras | CPU |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for backend, one in counts.items():
        cells = [ASKED[backend], one["models"], one["equal"], one["unrepeatable"], *map(one.get, IDENTITIES)]
        covered = f"{len(set(drawable(backend)) & set(one['layers']))} of {len(drawable(backend))}"
        rows.append(
            f"| {NAMES[backend]} | "
            + " | ".join(f"{cell:,}" for cell in cells)
            + f" | {covered} | {one['cpu_hours']:.1f} h |"
        )
    return "\n".join(rows) + "\n"


def read() -> dict[str, Counts]:
    return json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}


def write(backend: str, results: Iterable[dict[str, Any]]) -> None:
    counts = read()
    counts[backend] = added(counts.get(backend, {}), results)
    counts = {backend: counts[backend] for backend in ASKED if backend in counts}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    put_into(PAGE, "make fuzz", table(counts))
