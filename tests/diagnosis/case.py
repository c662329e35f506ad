"""What the corpus is made of: a fault with its repaired twin, or a healthy program, and the training that either builds.

A fault is one function `build(broken)`. It returns the training with the fault in it, or the same training repaired; the two differ by
the fault only. A healthy program is a function without arguments. Both are registered by their decorator, in the order of the file.

The name of a program decides its part: a third of the names, chosen by hash, is held out (see README.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

BACKENDS = ("jax", "tensorflow", "torch")

#: The names that a finding may have, as the public contract lists them.
RULES = (
    "nonfinite", "exploding_gradient", "vanishing_gradient", "dead_relu", "saturated", "layer_not_learning",
    "updates_too_large", "updates_too_small", "loss_not_decreasing", "loss_spike", "loss_diverging", "overfitting",
    "class_collapse", "bad_initial_loss", "input_not_normalised", "constant_or_duplicate_features", "label_problem",
    "output_loss_mismatch", "batchnorm", "precision_underflow", "unshuffled", "dropout_too_high", "wrong_axis",
    "exploding_weights", "clipped_gradient", "optimizer_misconfigured", "odd_batch",
)  # fmt: skip
KINDS = ("dense", "conv", "recurrent", "attention", "custom")


@dataclass
class Training:
    """One call of `fit`, ready to be made. `validates`: the program validates by itself, whatever the setting is."""

    model: Any
    x: Any
    y: Any = None
    validation: tuple[Any, Any] | None = None
    epochs: int = 5
    batch_size: int = 16
    validates: bool = False
    shuffle: bool = True
    callbacks: Sequence[Any] = ()
    sample_weight: Any = None

    def fit(self, *callbacks: Any, validate: bool = False) -> dict[str, list[float]]:
        checked = self.validation if validate or self.validates else None
        history = self.model.fit(
            self.x,
            self.y,
            batch_size=self.batch_size,
            epochs=self.epochs,
            shuffle=self.shuffle,
            validation_data=checked,
            sample_weight=self.sample_weight,
            callbacks=[*self.callbacks, *callbacks],
            verbose=0,
        )
        return dict(history.history)


@dataclass(frozen=True)
class Expect:
    """A finding that counts as right: its rule, and the layers any of which it may name. No layers: none is guilty."""

    rule: str
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.rule in RULES, f"no such rule: {self.rule}"


@dataclass(frozen=True)
class Program:
    """What every entry of the corpus has."""

    name: str
    kind: str
    build: Callable[..., Training]
    backends: tuple[str, ...] = BACKENDS

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode()) % 10_000

    @property
    def held_out(self) -> bool:
        return zlib.crc32(f"fitscope {self.name}".encode()) % 3 == 0

    @property
    def part(self) -> str:
        """`dev`, `held_out`, or a part that was added when the rules existed and is scored on its own."""
        for part in ("wild", "fresh", "outside", "unseen"):
            if f".{part}." in self.build.__module__:
                return part
        if not self.held_out:
            return "dev"
        return "later" if self.build.__module__.endswith("_later") else "held_out"


@dataclass(frozen=True)
class Fault(Program):
    """A planted fault. The first of `expected` is the verdict a good colleague would give; the others are fair as well.

    Args:
        step: The step, counted from 0, at which the fault shows for the first time; None where that means little.
        within: So many steps later is still right.
        note: Only the author knows whether it is a mistake, so a note is enough.
    """

    expected: tuple[Expect, ...] = field(default=())
    step: int | None = None
    within: int = 0
    note: bool = False


FAULTS: list[Fault] = []
HEALTHY: list[Program] = []


def expect(rule: str, *layers: str) -> Expect:
    return Expect(rule, layers)


def fault(
    kind: str, *expected: Expect, step: int | None = None, within: int = 0, note: bool = False,
    backends: tuple[str, ...] = BACKENDS,
) -> Callable[[Callable[[bool], Training]], Callable[[bool], Training]]:  # fmt: skip
    """Register `build(broken)` as a fault under its own name."""
    assert kind in KINDS
    assert expected, "a fault without a verdict"

    def registered(build: Callable[[bool], Training]) -> Callable[[bool], Training]:
        FAULTS.append(Fault(build.__name__, kind, build, backends, expected, step, within, note))
        return build

    return registered


def healthy(
    kind: str, backends: tuple[str, ...] = BACKENDS
) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Register `build()` as a healthy program under its own name."""
    assert kind in KINDS

    def registered(build: Callable[[], Training]) -> Callable[[], Training]:
        HEALTHY.append(Program(build.__name__, kind, build, backends))
        return build

    return registered
