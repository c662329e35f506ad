"""The pair of a watched and an unwatched training, which every test of what is captured is made of: watching changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import fitscope as fs
from complete import assert_complete

BOTH = {"keep": "both"}

#: How Keras may run a step, as arguments of `compile`.
MODES: list[dict[str, bool]] = {
    "jax": [{"jit_compile": True}, {"run_eagerly": True}],
    "tensorflow": [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    "torch": [{"jit_compile": False}],
}[keras.backend.backend()]
EACH_MODE = pytest.mark.parametrize(
    "mode", MODES, ids=lambda mode: next(f"{name}={value}" for name, value in mode.items())
)


def everything() -> list[Any]:
    """Every kind of watch, with the whole tensors."""
    return [
        fs.activations(**BOTH), fs.gradients(**BOTH), fs.weights(**BOTH), fs.weight_gradients(**BOTH), fs.updates(**BOTH),
        fs.loss(), fs.metrics(), fs.inputs(**BOTH), fs.targets(**BOTH), fs.predictions(**BOTH), fs.activity(), fs.data(),
    ]  # fmt: skip


@pytest.fixture
def watch_fit(tmp_path) -> Callable[..., SimpleNamespace]:
    """Trains twice from the same seed, with and without a scope, and asserts that it made no difference at all."""

    def fit(
        make: Callable[[], keras.Model],
        x: Any,
        y: Any = None,
        *,
        watch: Any = None,
        every: Any = 1,
        scope: dict[str, Any] | None = None,
        callbacks: Callable[[], list[Any]] = list,
        **settings: Any,
    ) -> SimpleNamespace:
        of_arrays = {} if callable(x) else {"batch_size": 8, "shuffle": False}
        settings = {"verbose": 0, **of_arrays, **settings}
        plain = make()
        plain_history = plain.fit(anew(x), y, callbacks=callbacks(), **anew(settings)).history
        model = make()
        recorder = fs.Scope(
            tmp_path / "runs", everything() if watch is None else watch, every, **(scope or {})
        )
        history = model.fit(anew(x), y, callbacks=[recorder, *callbacks()], **anew(settings)).history
        same(plain, model)
        np.testing.assert_equal(history, plain_history)
        run = fs.open(tmp_path / "runs")
        assert run.status == "complete"
        assert run.errors == []
        if every == 1:
            validates = "validation_data" in settings or "validation_split" in settings
            assert_complete(run, ("train", "validation") if validates else ("train",))
        return SimpleNamespace(run=run, model=model, plain=plain, scope=recorder, at=Reader(run))

    return fit


def anew(what: Any) -> Any:
    """A function makes data anew for each training."""
    if isinstance(what, dict):
        return {name: anew(value) for name, value in what.items()}
    return what() if callable(what) else what


class Reader:
    """`at(site, step)`: the tensor as recorded."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, site: str, step: int = 0) -> np.ndarray:
        if site.split("/")[0] in ("loss", "metrics", "loss_scale"):
            return self.run.series(site).loc[step]
        return np.asarray(self.run.array(site, step))


def same(a: keras.Model, b: keras.Model) -> None:
    """Bit for bit the same weights, state of the optimizer and state of random generators."""
    for one, other in ((a, b), (a.optimizer, b.optimizer)):
        if one is None:
            continue
        mine, theirs = one.variables, other.variables
        assert len(mine) == len(theirs)
        for v, w in zip(mine, theirs, strict=True):
            assert np.array_equal(
                keras.ops.convert_to_numpy(v), keras.ops.convert_to_numpy(w), equal_nan=True
            ), f"{v.path} is not the same"
