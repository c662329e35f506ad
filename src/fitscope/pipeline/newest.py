"""`scope.batch`: the newest captured batch, for another callback or for code after the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fitscope.errors import WatchError, one_of
from fitscope.pipeline.by_site import BySite
from fitscope.pipeline.handover import HostAdapter
from fitscope.pipeline.to_record import tensor_of
from fitscope.record import Moment


class Batch(BySite):
    """The tensors of one captured step by site, as NumPy arrays: `scope.batch["activations/conv1"]`.

    `.step`, `.epoch` and `.batch` say which step it is. An array is created on access and shares memory with the framework where
    possible, so do not write to it.
    """

    def __init__(self, at: Moment, values: Mapping[str, Any], adapter: HostAdapter) -> None:
        super().__init__(values)
        self.step, self.epoch, self.batch = at.step, at.epoch, at.batch
        self._adapter = adapter

    def __getitem__(self, site: str) -> np.ndarray[Any, Any]:
        value = self._values.get(site)
        if value is None:
            raise WatchError("a site of the newest captured batch", repr(site), one_of(self._values, site))
        array = tensor_of(value, self._adapter)
        if array is None:
            raise WatchError(
                "a site whose tensor was kept",
                f"{site!r}, for which the step returned only statistics",
                "Watch it with keep='tensor' or keep='both'",
            )
        return array

    def __repr__(self) -> str:
        return f"<Batch of step {self.step} (epoch {self.epoch}, batch {self.batch}): {', '.join(self)}>"
