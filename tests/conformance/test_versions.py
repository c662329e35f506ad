"""A version of a framework in which something of ours is gone: one clear warning that names it, and the training goes on."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import fitscope as fs
from fitscope import _compat
from fitscope.capture import backends, self_test
from fitscope.errors import FitscopeWarning


def trained(*callbacks: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((16, 4), "float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=list(callbacks))
    return model


@pytest.mark.parametrize(
    "error", [ImportError("cannot import name 'Literal'"), AttributeError("no attribute 'Primitive'")]
)
def test_an_adapter_that_does_not_load_is_reported_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = importlib.import_module

    def broken(name: str, *args: Any) -> Any:
        if name in backends.ADAPTERS.values():
            raise error
        return real(name, *args)

    plain = trained()
    backends.adapter.cache_clear()
    monkeypatch.setattr(backends.importlib, "import_module", broken)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", FitscopeWarning)
            watched = trained(fs.Scope(tmp_path))
    finally:
        monkeypatch.undo()
        backends.adapter.cache_clear()
    said = [str(w.message) for w in told if issubclass(w.category, FitscopeWarning)]
    assert len(said) == 1, said
    assert str(error) in said[0]
    assert f"keras {keras.__version__}" in said[0]
    for a, b in zip(plain.get_weights(), watched.get_weights(), strict=True):
        assert np.array_equal(a, b)


def test_untested_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _compat.unseen("keras") == "", "this one is tested"
    monkeypatch.setattr(keras, "__version__", "99.1.dev0")
    assert _compat.unseen("keras") == "keras 99.1.dev0"
    assert "keras 99.1.dev0" in _compat.versions("keras", "nothing")


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="this adapter copies masks")
def test_a_mask_that_keras_keeps_elsewhere_is_still_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras.src import backend

    class Tensor:
        pass

    source, target = Tensor(), Tensor()
    source._keras_mask = "mask"  # type: ignore[attr-defined]
    for name in ("get_keras_mask", "set_keras_mask"):
        monkeypatch.delattr(backend, name)
    _compat.copy_keras_mask(source, target)
    assert target._keras_mask == "mask"  # type: ignore[attr-defined]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="breaks a part of this adapter")
def test_the_true_reason_of_a_missing_gradient_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fitscope.capture.backends import _jax_taps

    def gone(*_: Any) -> None:
        raise AttributeError("module 'keras.src.backend' has no attribute 'get_keras_mask'")

    monkeypatch.setattr(_jax_taps, "copy_keras_mask", gone)
    with pytest.warns(FitscopeWarning, match="get_keras_mask"):
        trained(fs.Scope(tmp_path, every=1))
    why = {site: text for site, text in fs.open(tmp_path).unseen.items() if site.startswith("gradients/")}
    assert len(why) == 2
    assert all("get_keras_mask" in text for text in why.values()), why


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no test had run with this Keras."""
    monkeypatch.setitem(_compat.UNSEEN, "keras", (3, 0))
    backends.adapter.cache_clear()
    yield
    backends.adapter.cache_clear()


def told_by(*scopes: fs.Scope) -> tuple[list[str], keras.Model]:
    """What trainings with these scopes warn about, and the last model."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FitscopeWarning)
        models = [trained(scope) for scope in scopes]
    return [str(w.message) for w in told if issubclass(w.category, FitscopeWarning)], models[-1]


def test_an_untested_version_is_self_tested_and_warned_about_once(unseen: None, tmp_path: Path) -> None:
    said, _ = told_by(*(fs.Scope(tmp_path / name, every=1) for name in ("a", "b")))
    assert len(said) == 1, said
    assert f"keras {keras.__version__}" in said[0]
    assert "self-test passes" in said[0]
    assert fs.open(tmp_path / "b").identity == "proven"


def test_fitscope_records_nothing_if_its_self_test_fails(
    unseen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "failure", lambda backend: f"{backend} showed no loss")
    plain = trained()
    said, watched = told_by(fs.Scope(tmp_path, every=1))
    assert len(said) == 1, said
    assert f"keras {keras.__version__}" in said[0]
    assert "showed no loss" in said[0]
    assert list(tmp_path.iterdir()) == []
    for a, b in zip(plain.get_weights(), watched.get_weights(), strict=True):
        assert np.array_equal(a, b)


def test_the_self_test_finds_values_that_are_wrong_or_missing() -> None:
    rng = np.random.default_rng(1)
    expected = self_test.by_hand(
        rng.normal(size=(8, 4)), rng.normal(size=(8, 1)), [rng.normal(size=n) for n in ((4, 3), 3, (3, 1), 1)]
    )
    assert self_test.compare(expected, expected) is None
    for site in expected:
        assert site in str(self_test.compare({**expected, site: expected[site] * 1.01}, expected))
        rest = {name: value for name, value in expected.items() if name != site}
        assert site in str(self_test.compare(rest, expected))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch.compile")
def test_a_tapped_step_does_not_use_up_the_recompilations_of_the_users_step() -> None:
    """After `recompile_limit` of them torch runs a function eagerly, which rounds differently."""
    import torch

    runs: list[str] = []

    def noting(graph: Any, _: Any) -> Any:
        runs.append("compiled")
        return graph.forward

    def step(x: Any, factor: int) -> Any:
        return x * factor

    own = torch.compile(step, backend=noting, dynamic=False)
    tapped = _compat.torch_compile_apart(torch, step, backend=noting, dynamic=False)
    x = torch.ones(2)
    limit = torch._dynamo.config.recompile_limit
    for factor in range(100, 100 + limit):
        tapped(x, factor)
    assert len(runs) == limit
    for factor in range(limit):
        own(x, factor)
    assert len(runs) == 2 * limit
