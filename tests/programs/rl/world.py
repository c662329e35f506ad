"""A pole on a cart, in a few lines of NumPy: small worlds for the programs that act."""

from __future__ import annotations

import numpy as np


class Cart:
    """Push left (0) or right (1); it ends when the pole leans too far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state.astype("float32")

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        x, speed, angle, turning = self.state
        force = 10.0 if action == 1 else -10.0
        push = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        spin = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        slide = push - 0.05 * spin * np.cos(angle) / 1.1
        self.state = np.array(
            [x + 0.02 * speed, speed + 0.02 * slide, angle + 0.02 * turning, turning + 0.02 * spin]
        )
        return self.state.astype("float32"), 1.0, bool(abs(self.state[2]) > 0.2 or abs(self.state[0]) > 2.4)
