"""Holds numbers that are known when a step is traced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_static
@dataclass(frozen=True)
class Known:
    """Whole numbers, such as a shape, beside the tensors of a step.

    They belong to the structure of what the program returns, and JAX has one for each trace. As arrays they would be outputs: each
    costs a constant in the program, a copy of it at every step, and an array to hold that.
    """

    numbers: tuple[int, ...]

    @cached_property
    def array(self) -> np.ndarray[Any, Any]:
        return np.array(self.numbers, np.int32)
