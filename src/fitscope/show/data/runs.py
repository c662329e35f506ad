"""The table of runs: for each its model, settings, state and result, as plain values for the page to sort and filter.

It reads the facts of a run again only after its state changed. A fact that cannot be read is absent: one damaged run must not hide
the others.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from fitscope.errors import FitscopeError
from fitscope.read import Brief, Run

MOST = 200  #: the most runs in the table: the newest
DEEPEST = 40  #: the most settings of a run

Held = Callable[[str], AbstractContextManager[Run | None]]

#: Settings of an optimizer, with the usual values at which they are not worth a column.
_USUAL = {
    "epsilon": (1e-7, 1e-8),
    "beta_1": (0.9,),
    "beta_2": (0.999,),
    "ema_momentum": (0.99,),
    "rho": (0.9, 0.95),
}
_FIT = ("batch_size", "epochs", "steps_per_epoch", "samples")


class RunTable:
    """The rows of the table, kept while nothing changes."""

    def __init__(self) -> None:
        self._known: dict[
            str, tuple[tuple[Any, ...], dict[str, Any]]
        ] = {}  # for each run the state that its facts describe, and the facts
        self._lock = threading.Lock()

    def rows(self, briefs: Mapping[str, Brief], held: Held) -> list[dict[str, Any]]:
        """One row for each run, in this order. `held` lends a run, or gives None if another request uses it."""
        with self._lock:
            wanted = dict(list(briefs.items())[:MOST])
            self._known = {name: known for name, known in self._known.items() if name in wanted}
            return [self._row(name, brief, held) for name, brief in wanted.items()]

    def _row(self, name: str, brief: Brief, held: Held) -> dict[str, Any]:
        about: dict[str, Any] = {
            "id": name,
            "model": brief.model,
            "status": brief.status,
            "step": brief.last_step,
            "created": brief.created.timestamp() if brief.created else None,
            "problem": brief.problem,
        }
        if brief.problem is not None:
            return about
        state = (brief.path, brief.status, brief.last_step, brief.created)
        before, facts = self._known.get(name, (None, {}))
        with contextlib.suppress(FitscopeError, OSError), held(name) as run:
            if run is not None:
                facts = (facts if before == state else _facts(run)) | {
                    "tags": _tried(lambda: run.tags) or [],
                    "notes": _tried(lambda: run.notes),
                }
                self._known[name] = (state, facts)
        return {**about, "tags": [], **facts}


def _facts(run: Run) -> dict[str, Any]:
    findings = _tried(run.findings)
    loss = _tried(lambda: float(run.series("loss").iloc[-1]))
    share = run.overhead.get("cpu_share")
    return {
        "loss": loss,
        "settings": _tried(lambda: settings(run.configuration)) or {},
        "findings": len(findings) if findings is not None else None,
        "worst": findings[0].title if findings else None,
        "severity": findings[0].severity if findings else None,
        "cost": share if isinstance(share, float) else None,
    }


def settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a run: its optimizer with the settings that are not the default, and the arguments of `fit`."""
    found: dict[str, Any] = {}
    optimizer = configuration.get("optimizer")
    if isinstance(optimizer, Mapping):
        found["optimizer"] = optimizer.get("class")
        for key, value in optimizer.items():
            if (
                key not in ("class", "name")
                and value not in (None, False)
                and value not in _USUAL.get(key, ())
            ):
                found[key] = value
    fit = configuration.get("fit")
    if isinstance(fit, Mapping):
        found |= {key: fit[key] for key in _FIT if fit.get(key) is not None}
    plain = {key: value for key, value in found.items() if isinstance(value, str | int | float)}
    return dict(list(plain.items())[:DEEPEST])


def _tried(fact: Callable[[], Any]) -> Any:
    """A fact, or None if it was not recorded, or its files are damaged."""
    try:
        found = fact()
    except (FitscopeError, OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return None if isinstance(found, float) and math.isnan(found) else found
