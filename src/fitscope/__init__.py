"""See inside `model.fit()`: records the tensors of the training step itself.

Record with `fs.Scope(to, watch, every)` as a callback of `fit`. Choose what to watch with `fs.activations`, `fs.gradients`,
`fs.weights`, `fs.weight_gradients`, `fs.updates`, `fs.loss`, `fs.metrics`, `fs.inputs`, `fs.targets`, `fs.predictions`,
`fs.activity`, `fs.data`, `fs.changes` and `fs.taps`, and when with `fs.steps` and `fs.epochs`. Show a value inside a layer with
`fs.tap`, `fs.layers.Tap` or `fs.with_taps`. Read with `fs.open` and `fs.runs`, look with `run.plot`, `fs.serve` and `fs.compare`,
export with `fs.export_run`, compute on a cluster with `run.to_dask` and `fs.map_steps`. Check a model with `fs.lint` and a run with
`run.findings()`; `fs.RULES` are the rules, `fs.rule` makes another, and `fs.expect` declares what is intended. `fs.BlackBox` sets up a
scope's black box, and `run.replay` runs one of its steps again.

These names and the errors are the public API; `dir(fitscope)` lists them. In the package contents below, only `layers` is public. The
others are the stages that a tensor passes through, and may change at any time: see ARCHITECTURE.md.

Importing fitscope imports no framework.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fitscope._version import __version__

if TYPE_CHECKING:
    from fitscope import layers
    from fitscope.capture.tap import tap
    from fitscope.diagnose import RULES, Finding, expect, rule
    from fitscope.errors import (
        FitscopeError,
        FitscopeWarning,
        ModelError,
        RunError,
        StoreError,
        WatchError,
    )
    from fitscope.export import export_run
    from fitscope.layers.into_model import with_taps
    from fitscope.plan.black_box import BlackBox
    from fitscope.plan.lint import lint
    from fitscope.read import Run, open, runs  # noqa: A004
    from fitscope.read.cluster import map_steps
    from fitscope.schedule import epochs, steps
    from fitscope.scope import Scope
    from fitscope.show.plot import compare
    from fitscope.show.serve import Server, serve
    from fitscope.show.views import View
    from fitscope.watch import (
        activations,
        activity,
        changes,
        data,
        gradients,
        inputs,
        loss,
        metrics,
        predictions,
        taps,
        targets,
        updates,
        weight_gradients,
        weights,
    )

#: Public name → module. Loaded when first used, so that `import fitscope` stays fast.
_NAMES = {
    "Scope": "fitscope.scope",
    "open": "fitscope.read",
    "runs": "fitscope.read",
    "Run": "fitscope.read",
    "map_steps": "fitscope.read.cluster",
    "export_run": "fitscope.export",
    **dict.fromkeys(("RULES", "Finding", "expect", "rule"), "fitscope.diagnose"),
    "lint": "fitscope.plan.lint",
    "BlackBox": "fitscope.plan.black_box",
    "serve": "fitscope.show.serve",
    "Server": "fitscope.show.serve",
    "View": "fitscope.show.views",
    "compare": "fitscope.show.plot",
    "steps": "fitscope.schedule",
    "epochs": "fitscope.schedule",
    "tap": "fitscope.capture.tap",
    "with_taps": "fitscope.layers.into_model",
    **dict.fromkeys(
        (
            "activations", "gradients", "weights", "weight_gradients", "updates", "loss", "metrics",
            "inputs", "targets", "predictions", "activity", "data", "taps", "changes",
        ),
        "fitscope.watch",
    ),
    **dict.fromkeys(
        ("FitscopeError", "WatchError", "ModelError", "StoreError", "RunError", "FitscopeWarning"), "fitscope.errors"
    ),
}  # fmt: skip

#: Public modules. They import Keras, and are loaded when first used, too.
_MODULES = ("layers",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fitscope.{name}")
    if name not in _NAMES:
        # With the object, Python suggests the name that was meant.
        raise AttributeError(
            f"module 'fitscope' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES, "__version__"])


__all__ = [
    "RULES",
    "BlackBox",
    "Finding",
    "FitscopeError",
    "FitscopeWarning",
    "ModelError",
    "Run",
    "RunError",
    "Scope",
    "Server",
    "StoreError",
    "View",
    "WatchError",
    "__version__",
    "activations",
    "activity",
    "changes",
    "compare",
    "data",
    "epochs",
    "expect",
    "export_run",
    "gradients",
    "inputs",
    "layers",
    "lint",
    "loss",
    "map_steps",
    "metrics",
    "open",
    "predictions",
    "rule",
    "runs",
    "serve",
    "steps",
    "tap",
    "taps",
    "targets",
    "updates",
    "weight_gradients",
    "weights",
    "with_taps",
]
