"""A read-only mapping from sites to arrays, which are made on access: `scope.batch` and `run.replay(step)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class BySite(Mapping[str, np.ndarray[Any, Any]]):
    """Arrays by the names of their sites. A subclass has `__getitem__`, which makes an array of a value."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, site: object) -> bool:
        return site in self._values  # `Mapping` would make an array

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)
