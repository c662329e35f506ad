"""Runs written straight into a store, with numbers that a test knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope.record import Moment, Record
from fitscope.reduce.oracle import reduce
from fitscope.store import RunWriter

Tensors = Callable[[int], Mapping[str, Any]]  #: what is seen at a step, by site


def described(names: Sequence[str], types: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A model as the capturing side describes it: layers one after another, each with a kernel and a bias."""
    layers = [
        {
            "path": name,
            "name": name,
            "type": (types or {}).get(name, "Dense"),
            "from": [names[i - 1]] if i else [],
            "output_shape": [None, 6],
            "weights": {f"{name}/{w}": {"trainable": True} for w in ("kernel", "bias")},
        }
        for i, name in enumerate(names)
    ]
    return {"name": "net", "parameters": 1234, "layers": layers}


class Written:
    """A run that can go on growing."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.path = str(writer.path)

    def add(self, steps: Sequence[int], tensors: Tensors, *, epoch_of: int = 100) -> Written:
        """Records of these steps, in one part."""
        for step in steps:
            at = Moment(step, step // epoch_of, step % epoch_of, 1_800_000_000.0 + step / 10)
            arrays = {site: np.asarray(tensor, np.float32) for site, tensor in tensors(step).items()}
            self.writer.write(
                [
                    Record(site, at, a.shape, "float32", reduce(a), batched=a.ndim > 0)
                    for site, a in arrays.items()
                ]
            )
        self.writer.flush()
        return self

    def close(self) -> Written:
        """The run is complete."""
        self.writer.close()
        return self


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Written]:
    """Begins a run of layers with these names."""

    def begin(names: Sequence[str] = ("a", "b", "c"), name: str = "first", **info: Any) -> Written:
        about = {"model": described(names), "backend": "jax", **info}
        return Written(RunWriter.create(tmp_path / "runs", name, about))

    return begin


def steady(names: Sequence[str], change: Callable[[int, str, float], float] | None = None) -> Tensors:
    """A loss and, for each layer, an output and a gradient that do not change but where `change` says so."""

    def at(step: int) -> dict[str, Any]:
        found: dict[str, Any] = {"loss": 1.0}
        for i, name in enumerate(names):
            value = 2.0**-i
            value = change(step, name, value) if change else value
            found[f"activations/{name}"] = np.full((2, 3), value)
            found[f"gradients/{name}"] = np.full((2, 3), value / 1024)
        return found

    return at
