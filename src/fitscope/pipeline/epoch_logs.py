"""Turns Keras's logs of an epoch into rows of the run: `logs/loss`, `logs/val_loss`, `logs/accuracy`, …

Keras passes its logs to every callback as Python floats, so this computes nothing and waits for nothing. They are the numbers of
the progress bar, at the last step of their epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.record import Block, Head, Moment
from fitscope.reduce import host
from fitscope.reduce.stats import Columns
from fitscope.sites import Site

KIND = "logs"


@dataclass(frozen=True, slots=True)
class EpochLogs:
    """The logs of one epoch, on their way to the writer."""

    at: Moment
    logs: Mapping[str, Any]

    def names(self) -> list[Site]:
        return [Site(KIND, label=str(name)) for name in self.logs]

    def block(self) -> Block | None:
        """One row per number. Other values, which a custom `train_step` may return, are left out."""
        heads, numbers = [], []
        for site, value in zip(self.names(), self.logs.values(), strict=True):
            try:
                numbers.append(float(value))
            except (TypeError, ValueError):
                continue
            heads.append(Head(site, (), "float64", batched=False))
        if not heads:
            return None
        stats = Columns.of([host.reduce(np.asarray(number)) for number in numbers])
        return Block((self.at,), tuple(heads), stats, np.array(numbers))
