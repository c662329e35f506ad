"""Computes the lane of ranks: the time of a step on each process against the others, and how far each is behind.

Each cell is the time of a step divided by the median of all ranks at that step, as one byte: 0 for nothing, else 1 to 255 for a quarter to
four times the median, by doublings. There are at most `ROWS` rows. A row of several ranks shows the one farthest from the median, so a
single slow rank among a thousand is visible.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from fitscope.diagnose.pulses import Array, Pulses, medians

ROWS = 32
DOUBLINGS = 2.0  #: doublings of the median at either end of the scale


def lane(pulses: Pulses | None, statuses: Mapping[int, str]) -> dict[str, Any] | None:
    """The facts for the page; None for one process, or ranks without a common step."""
    if pulses is None or len(pulses.steps) < 2:
        return None
    seconds, skew = pulses.step_seconds, pulses.skew
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.clip(np.log2(seconds / medians(seconds, axis=0)), -DOUBLINGS, DOUBLINGS)
    groups = np.array_split(np.arange(len(pulses.ranks)), min(len(pulses.ranks), ROWS))
    cells = np.stack([_farthest(apart[rows]) for rows in groups])
    newest = [_newest(skew[rows]) for rows in groups]
    usual = medians(medians(seconds, axis=0), axis=1)
    stopped = [
        [int(rank) for rank in pulses.ranks[rows] if statuses.get(int(rank)) in _STOPPED] for rows in groups
    ]
    return {
        "count": len(pulses.ranks),
        "rows": [[int(pulses.ranks[rows[0]]), int(pulses.ranks[rows[-1]])] for rows in groups],
        "steps": pulses.steps.tolist(),
        "cells": base64.b64encode(_codes(cells).tobytes()).decode(),
        "seconds": _rounded(float(usual[0, 0])),
        "skew": newest,
        "stopped": stopped,
    }


_STOPPED = ("interrupted", "failed", "not started")


def _farthest(table: Array) -> Array:
    """The number farthest from zero in each column; NaN if there is none."""
    size = np.where(np.isfinite(table), np.abs(table), -1.0)
    found: Array = np.take_along_axis(table, size.argmax(axis=0)[None], axis=0)[0]
    return found


def _codes(cells: Array) -> Array:
    share = (np.nan_to_num(cells) + DOUBLINGS) / (2 * DOUBLINGS)
    return np.where(np.isfinite(cells), 1 + np.rint(254 * share), 0).astype(np.uint8)


def _newest(skew: Array) -> float | None:
    """The newest skew of the rank that is farthest from the others."""
    last = [row[np.isfinite(row)][-1] for row in skew if np.isfinite(row).any()]
    return _rounded(max(last, key=abs)) if last else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if np.isfinite(value) else None
