"""TF1 programs in the style of well-known tutorials, each of them as small as it can be.

A program takes a `Watch`, which it puts around its session, and returns its variables in the end. It does not know whether anybody watches:
without a scope `Watch` does nothing. `PROGRAMS` has what a person would expect to find of each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


@dataclass
class Watch:
    """What a program puts around its session."""

    scope: Any = None

    def session(self, sess: Any, **said: Any) -> Any:
        return nullcontext(sess) if self.scope is None else self.scope.session(sess, **said)

    def hooks(self) -> list[Any]:
        return [] if self.scope is None else [self.scope.hook()]


@dataclass(frozen=True)
class Program:
    """A program, and what is to be found of it."""

    main: Callable[[Watch], Any]
    sites: frozenset[str]  #: that are recorded
    epochs: tuple[int, ...] | None = None  #: of its steps
    unseen: frozenset[str] = field(default_factory=frozenset)  #: that are not, and explained
    identity: str = (
        "proven"  #: what a run can say of it: a run that draws numbers or data cannot be made twice
    )


PROGRAMS: dict[str, Program] = {}

TRAINING = ("loss", "inputs", "targets", "predictions")
VALIDATION = ("validation/predictions", "validation/targets", "validation/loss")


def program(
    *sites: str,
    epochs: tuple[int, ...] | None = None,
    unseen: tuple[str, ...] = (),
    identity: str = "proven",
) -> Any:
    """Enters a function into the table."""

    def enter(main: Callable[[Watch], Any]) -> Callable[[Watch], Any]:
        PROGRAMS[main.__name__] = Program(main, frozenset(sites), epochs, frozenset(unseen), identity)
        return main

    return enter


def one_thread(**kwargs: Any) -> Any:
    """Sums of several threads are not the same twice."""
    return tf1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, **kwargs)


def images(n: int, side: int = 8, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Flat images, and one-hot labels that can be learnt from them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    pictures = rng.random((n, side * side), dtype="float32") * 0.5
    pictures[np.arange(n), labels * 3] += 1
    return pictures, np.eye(classes, dtype="float32")[labels]


def variables(sess: Any) -> list[np.ndarray]:
    return list(sess.run(tf1.global_variables()))
